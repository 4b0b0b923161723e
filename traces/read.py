"""`read_trace`: the one door to every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from traces.collect import Collector, OnInvalid
from traces.errors import TraceError, printable
from traces.formats.batch import Batch
from traces.formats.detect import FORMATS, Found, find_format
from traces.formats.lines import read_lines
from traces.formats.parquet import read_parquet
from traces.formats.records import read_records
from traces.formats.tables import read_csv
from traces.report import ReadReport
from traces.source import Source, open_source
from traces.trace import Trace

__all__ = ["FORMATS", "read_trace"]


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the name of the command line's option
    mapping: Mapping[str, str] | None = None,
    unit: str | None = None,
    block_tokens: int | None = None,
    on_invalid: OnInvalid = "error",
    max_tokens: int | None = None,
) -> tuple[Trace, ReadReport]:
    """Read a trace file, exactly, in memory bounded by its columns.

    The format is told from the content; `format` (one of `FORMATS`) overrides. `mapping` reads any CSV, JSON-lines or
    Parquet file: `timestamp`, `input`, `output`, optionally `hashes`, `session`, `id`, `parent`, `status` -> column,
    and `unit` says what its timestamps are: `iso`, `s`, `ms`, `us` or `ns`. `block_tokens` overrides the format's
    hash-block size. `on_invalid`: `error` refuses a file with unusable rows, `drop` leaves them out, `clip` puts token
    counts right where that is possible and drops the rest; all count by reason. `max_tokens` makes longer rows
    (input + output) unusable.

    Raises `TraceError`, one line: file, line, what was wrong, how many rows, what to pass.
    """
    if on_invalid not in ("error", "drop", "clip"):
        raise TraceError(f"on_invalid {on_invalid!r}", remedy="pass error, drop or clip")
    if block_tokens is not None and block_tokens < 1:
        raise TraceError(f"a block of {block_tokens} tokens", remedy="pass --block-tokens 512, or 16")
    with open_source(path) as source:
        found = find_format(source, name=format, mapping=mapping or {}, unit=unit, block_tokens=block_tokens)
        collector = Collector(path=str(path), found=found, on_invalid=on_invalid, max_tokens=max_tokens)
        try:
            for batch in _batches(source, found):
                collector.add(batch)
        except pa.ArrowException as fault:
            what = f"a column of a type that holds no trace, or damaged data ({printable(fault)})"
            raise source.fault(what, rows=f"{collector.rows} rows were read", remedy="write the file again") from None
    trace, report = collector.finish()
    _check_blocks(path, trace)
    return trace, report


def _batches(source: Source, found: Found) -> Iterator[Batch]:
    if found.reader == "csv":
        counts = (found.columns.input, found.columns.output)
        return read_csv(source, found.header, found.columns.names(), counts)
    if found.reader == "parquet":
        return read_parquet(source, found.columns.names())
    if found.record_format is not None:
        return read_records(source, found.record_format)
    return read_lines(source, found.columns, dates=found.clock == "iso")


def _check_blocks(path: str | Path, trace: Trace) -> None:
    """Refuse a block size that the lengths contradict: prompts would come out many times too short or too long."""
    if trace.hashes is None:
        return
    size, counts = trace.hashes.block_tokens, trace.hashes.counts
    long = (trace.input_tokens > 2 * size) & (counts > 1)
    if not long.any():
        return
    seen = float(np.median(trace.input_tokens[long] / counts[long]))
    if not size / 2 <= seen <= 2 * size:
        guess = 512 if 256 < seen <= 768 else 16 if 8 < seen <= 24 else round(seen)
        raise TraceError(
            f"block ids stand for about {seen:.0f} tokens each, not {size}",
            path=path,
            line=int(trace.line[int(np.argmax(long))]),
            rows=f"{int(long.sum())} of {len(trace)} rows",
            remedy=f"pass --block-tokens {guess}, or the right --format",
        )
