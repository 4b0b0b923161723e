"""The report of a read trace: its refusal in one line, by policy, or its notes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from traces.decode import REASONS
from traces.errors import TraceError
from traces.formats.detect import absent_columns
from traces.trace import NS

if TYPE_CHECKING:
    from traces.collect import Collector

__all__ = ["EXPECTED", "FIXABLE", "NAMES", "in_order", "notes_of", "refuse_by_policy"]

# rows left out under every policy: the source itself says that they are not requests to a server
EXPECTED: Final = {"failed", "not_a_request", "cache_hit", "no_generation", "nested_span"}
NAMES: Final = list(REASONS)
FIXABLE: Final = np.array(
    [name.split("_")[0] in ("missing", "zero", "negative", "huge") and not name.endswith("time") for name in NAMES]
)
_FATAL: Final = {"mixed_zone"}
_SINCE_2001_NS: Final = 978_307_200 * NS
_SUSPECT_STEP_NS: Final = 1800 * NS


def in_order(counts: dict[str, int]) -> dict[str, int]:
    """Counts by reason in the order of reports."""
    return {name: counts[name] for name in NAMES if name in counts}


def refuse_by_policy(read: Collector) -> None:
    """Raise `TraceError` where rows cannot be used and the policy is to say so, or nothing usable was read."""
    at = read.path

    def fault(what: str, line: int, rows: str, remedy: str) -> TraceError:
        return TraceError(what, path=at, line=line, rows=rows, remedy=remedy)

    wanted = read.found.columns.names() if read.found.name == "generic" and read.found.paths else []
    if read.rows and (absent := [name for name in wanted if name not in read.seen]):
        raise absent_columns(read.path, absent, read.found.header)
    slashes = read.decoder.slashes
    if slashes.day_first or slashes.undecided:
        which = "with the day first" if slashes.day_first else "that may have the day or the month first"
        first, second, year = min(slashes.seen)
        example = f"{first}/{second}/{year}"
        raise fault(f"dates {which} (such as {example})", 0, f"{read.rows} rows", "export them as 2025-03-01 12:00:00")
    if read.rows == 0:
        raise fault(
            "a header and no rows" if read.found.reader == "csv" else "no rows",
            0,
            "0 rows",
            "pass a file with requests",
        )
    faults = {k: v for k, v in (read.dropped | read.clipped).items() if k not in EXPECTED}
    kept = read.rows - sum(read.dropped.values())
    if read.first_fault is not None:
        at, line, name, value = read.first_fault
        listed = ", ".join(f"{v} {k}" for k, v in in_order(faults).items())
        rows = f"{sum(faults.values())} of {read.rows} rows cannot be used ({listed})"
        if _FATAL & faults.keys():
            raise fault(REASONS["mixed_zone"], line, rows, "give every time its zone")
        if read.on_invalid == "error" or not kept:
            clip = ", or clip to put counts right" if any(FIXABLE[NAMES.index(k)] for k in faults) else ""
            remedy = f"pass --on-invalid drop to leave them out{clip}" if kept else "pass another --format or --map"
            raise fault(REASONS[name] + value, line, rows, remedy)
    if not kept:
        listed = ", ".join(f"{v} {k}" for k, v in in_order(read.dropped).items())
        raise fault(
            "no request that could be sent",
            0,
            f"{read.rows} rows ({listed})",
            "pass --on-invalid clip to keep those that failed"
            if "failed" in read.dropped
            else "no row is a model request that a server has to answer: pass another file, or --map",
        )
    _refuse_laid_over(read)


def _refuse_laid_over(read: Collector) -> None:
    """Files that each count from a start of their own cannot be put on one clock."""
    extents = sorted(extent for extent in read.extents if extent[0] <= extent[1])
    own_clock = any(least < _SINCE_2001_NS for least, _ in extents)
    if own_clock and any(later[0] <= earlier[1] for earlier, later in pairwise(extents)):
        raise TraceError(
            "several files that each count from a start of their own: which follows which is not known",
            path=read.path,
            rows=f"{len(extents)} files",
            remedy="pass them one by one, or give their times a date",
        )


def notes_of(read: Collector) -> list[str]:
    """What a reader of the trace should know, in sentences."""
    notes = [*read.found.notes, *read.more_notes]
    if read.decoder.rounded:
        notes.append(f"{read.decoder.rounded} timestamps finer than a nanosecond were rounded to one")
    if read.inversions:
        back, line = read.step_back
        notes.append(f"line {line}: the clock steps back by {back / NS:g} s, the most in this file; rows were sorted")
        if read.found.clock == "iso" and not read.decoder.zoned and back >= _SUSPECT_STEP_NS:
            notes.append("local time across a change of summer time? two hours are then interleaved: convert to UTC")
    return notes
