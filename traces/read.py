"""`read_trace`: reads every format."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from traces.collect import Collector, OnInvalid
from traces.errors import TraceError, printable
from traces.formats.batch import Batch
from traces.formats.detect import FORMATS, Found, find_format
from traces.formats.lines import read_lines
from traces.formats.parquet import read_parquet
from traces.formats.records import read_mapped, read_records
from traces.formats.tables import read_csv
from traces.report import ReadReport
from traces.source import STDIN, Source, open_source
from traces.trace import Trace

__all__ = ["FORMATS", "files_of", "read_trace"]


def read_trace(
    path: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - the name of the command line's option
    mapping: Mapping[str, str] | None = None,
    unit: str | None = None,
    block_tokens: int | None = None,
    on_invalid: OnInvalid = "error",
    max_tokens: int | None = None,
) -> tuple[Trace, ReadReport]:
    """Read a trace, exactly, in memory bounded by its columns.

    `path` is a file, a pattern such as `logs/*.jsonl`, a pipe, `-` for standard input, or several of these: files of
    one kind and on one clock, put together as one trace. The content decides the format; `format` (one of
    `FORMATS`) overrides. `mapping` reads any CSV, JSON or Parquet file: `timestamp`, `input`, `output`, optionally
    `hashes`, `session`, `id`, `parent`, `status` -> column, or the path of one (`usage.prompt_tokens`), and `unit` says
    what its timestamps are: `iso`, `s`, `ms`, `us` or `ns`. `block_tokens` overrides the format's hash-block size.
    `on_invalid`: `error` refuses a file with unusable rows, `drop` leaves them out, `clip` puts token counts right
    where that is possible and drops the rest; all count by reason. `max_tokens` makes longer rows (input + output)
    unusable.

    Raises `TraceError`, one line: file, line, what was wrong, how many rows, what to pass.
    """
    if on_invalid not in ("error", "drop", "clip"):
        raise TraceError(f"on_invalid {on_invalid!r}", remedy="pass error, drop or clip")
    if block_tokens is not None and block_tokens < 1:
        raise TraceError(f"a block of {block_tokens} tokens", remedy="pass --block-tokens 512, or 16")
    collector: Collector | None = None
    for one in files_of(path):
        with open_source(one) as source:
            found = find_format(source, name=format, mapping=mapping or {}, unit=unit, block_tokens=block_tokens)
            if collector is None:
                collector = Collector(path=str(one), found=found, on_invalid=on_invalid, max_tokens=max_tokens)
            else:
                collector.next_file(str(one), found)
            try:
                for batch in _batches(source, found):
                    collector.add(batch)
            except (pa.ArrowException, OSError) as fault:
                what = f"a column of a type that holds no trace, or damaged data ({printable(fault)})"
                rows = f"{collector.rows} rows were read"
                raise source.fault(what, rows=rows, remedy="write the file again") from None
            collector.more_notes += source.notes
    assert collector is not None
    trace, report = collector.finish()
    _check_blocks(report.path, trace)
    return trace, report


def files_of(path: str | Path | Sequence[str | Path]) -> list[str]:
    """The files that names and patterns stand for, each once. Raises `TraceError` where one names none."""
    asked = [str(path)] if isinstance(path, str | Path) else [str(one) for one in path]
    files: dict[str, str] = {}
    for one in asked:
        # a name with brackets in it is a name first
        matched = [one] if one == STDIN or os.path.lexists(one) or not glob.has_magic(one) else sorted(glob.glob(one))  # noqa: PTH207
        if not matched:
            raise TraceError("no file has such a name", path=one, remedy="pass the path of a trace file")
        files |= {os.path.realpath(name): name for name in matched if name == one or Path(name).is_file()}
    if not files:
        raise TraceError("no files", remedy="pass the path of a trace file")
    return list(files.values())


def _batches(source: Source, found: Found) -> Iterator[Batch]:
    columns = found.columns
    more = [one.column for one in found.filters]
    wanted = list(dict.fromkeys([*columns.names(), *more]))
    if found.reader == "csv":
        return read_csv(source, found.delimiter, found.header, wanted, (columns.input, columns.output))
    if found.reader == "parquet":
        return read_parquet(source, wanted)
    if found.export is not None:
        return read_records(source, found.export)
    if found.reader == "mapped":
        return read_mapped(source, found.paths, columns.hashes)
    return read_lines(source, columns, more, found.paths, found.kinds, dates=found.clock == "iso")


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
