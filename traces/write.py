"""Traces as files: vLLM's timed_trace, Mooncake, and our own CSV and Parquet, which keep everything.

What is written reads back exactly: instants to the nanosecond (as decimal digits, never as floats), lengths, block ids;
the two JSON formats say their unit and block size in their first record. What a format has no place for is named in the
`WriteReport`. A file appears under its name only when it is whole.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from traces.decode import DIGITS
from traces.errors import TraceError, printable
from traces.formats.catalogue import OWN_HASHES
from traces.formats.evidence import MARK
from traces.trace import OUTCOMES, Trace

__all__ = ["STDOUT", "WRITERS", "WriteReport", "refuse_target", "write_trace"]

STDOUT: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What was written, what the format could not hold, and how to read it with its own tool."""

    path: str
    format: str
    rows: int
    lost: tuple[str, ...]
    hint: str


def write_trace(
    trace: Trace,
    path: str | Path,
    format: str,  # noqa: A002
    *,
    force: bool = False,
) -> WriteReport:
    """Write a trace as `format`, one of WRITERS, to a file or to standard output (`-`).

    A file that exists is replaced with `force` alone, and only a regular one; a link stays one. Raises `TraceError`
    where that cannot be done.
    """
    if format not in WRITERS:
        raise TraceError(f"no writer for {printable(format)!r}", remedy="pass one of " + ", ".join(WRITERS))
    try:
        if str(path) == STDOUT:
            hint = WRITERS[format](trace, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            refuse_target(path, force=force)
            hint = _replace(trace, Path(os.path.realpath(path)), WRITERS[format])
    except BrokenPipeError:
        raise
    except OSError as fault:
        raise TraceError(f"cannot be written ({fault.strerror})", path=path, remedy="pass a path that can") from None
    return WriteReport(path=str(path), format=format, rows=len(trace), lost=_lost(trace, format), hint=hint)


def refuse_target(path: str | Path, *, force: bool, sources: Iterable[str] = ()) -> None:
    """Raise `TraceError` where `path` must not be written: no regular file, one of `sources`, or there without `force`.

    Devices and pipes are never written to: to replace `/dev/null` by a file harms the whole machine.
    """
    path = Path(path)
    if str(path) == STDOUT:
        return
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise TraceError("a link to nothing", path=path, remedy="pass the path that it should lead to") from None
        return
    except OSError as fault:
        raise TraceError(f"cannot be written ({fault.strerror})", path=path, remedy="pass a path that can") from None
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
        remedy = "pass a file in it" if stat.S_ISDIR(mode) else "pass a file, or - for standard output"
        raise TraceError(f"is {kind}, not a file", path=path, remedy=remedy)
    if any(Path(one).exists() and path.samefile(one) for one in sources):
        raise TraceError("is what is read", path=path, remedy="pass another name to write to")
    if not force:
        raise TraceError("exists", path=path, remedy="pass another name, or --force to replace it")


def _replace(trace: Trace, path: Path, write: Callable[[Trace, BinaryIO], str]) -> str:
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            hint = write(trace, file)
        if path.exists():
            shutil.copymode(path, partial)
        else:
            mask = os.umask(0)
            os.umask(mask)
            Path(partial).chmod(0o666 & ~mask)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return hint


def _lost(trace: Trace, name: str) -> tuple[str, ...]:
    lost = ["source lines"]
    if name in ("mooncake", "timed_trace"):
        lost += ["outcomes"] * bool(trace.outcome.any()) + ["sessions and parents"] * (trace.session is not None)
    return tuple(lost)


def _decimals(ns: int, digits: int) -> str:
    """Nanoseconds in a unit of 10^digits ns, exactly, without needless zeros."""
    whole, rest = divmod(ns, 10**digits)
    return f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)


def _json_lines(trace: Trace, unit: str) -> Iterator[bytes]:
    digits = DIGITS[unit]
    rows = zip(trace.at_ns.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    size = "" if trace.hashes is None else f', "block_tokens": {trace.hashes.block_tokens}'
    mark = f', "{MARK}": {{"unit": "{unit}"{size}}}'
    for row, (at, input_tokens, output_tokens) in enumerate(rows):
        ids = "" if trace.hashes is None else ', "hash_ids": ' + str(trace.hashes.of(row).tolist())
        lengths = f'"input_length": {input_tokens}, "output_length": {output_tokens}'
        yield f'{{"timestamp": {_decimals(at, digits)}, {lengths}{ids}{mark}}}\n'.encode("ascii")
        mark = ""


def _mooncake(trace: Trace, file: BinaryIO) -> str:
    file.writelines(_json_lines(trace, "ms"))
    return "milliseconds; read it without options"


def _timed_trace(trace: Trace, file: BinaryIO) -> str:
    if trace.hashes is None:
        raise TraceError(
            "no block ids, and vLLM builds timed_trace prompts from nothing else: they would be empty",
            remedy="write mooncake, csv or parquet",
        )
    file.writelines(_json_lines(trace, "s"))
    return (
        f"seconds; vllm bench serve --dataset-name timed_trace --self-timed --timed-trace-sec-multiplier 1 "
        f"--timed-trace-chunk-hash-size {trace.hashes.block_tokens}; read it without options"
    )


def _table(trace: Trace, *, text: bool) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "row": pa.array(np.arange(len(trace))),
        "at_ns": pa.array(trace.at_ns),
        "input_tokens": pa.array(trace.input_tokens),
        "output_tokens": pa.array(trace.output_tokens),
        "outcome": pa.DictionaryArray.from_arrays(pa.array(trace.outcome), pa.array(OUTCOMES)).cast(pa.string()),
    }
    if trace.session is not None and trace.parent is not None:
        columns |= {"session": pa.array(trace.session), "parent": pa.array(trace.parent)}
    if trace.hashes is not None:
        ids = trace.hashes.ids
        values = pa.array(ids) if not text else pa.array([str(x) for x in ids.tolist()], pa.string())
        lists = pa.LargeListArray.from_arrays(pa.array(trace.hashes.starts), values)
        name = f"{OWN_HASHES}{trace.hashes.block_tokens}"
        columns[name] = pa.compute.binary_join(lists, " ") if text else lists.cast(pa.list_(pa.int64()))
    return pa.table(columns)


def _csv(trace: Trace, file: BinaryIO) -> str:
    pacsv.write_csv(_table(trace, text=True), file, pacsv.WriteOptions(quoting_style="none"))
    return "nanoseconds; read it without options"


def _parquet(trace: Trace, file: BinaryIO) -> str:
    pq.write_table(_table(trace, text=False), file, compression="zstd")
    return "nanoseconds; read it without options"


WRITERS: Final[dict[str, Callable[[Trace, BinaryIO], str]]] = {
    "timed_trace": _timed_trace,
    "mooncake": _mooncake,
    "csv": _csv,
    "parquet": _parquet,
}
