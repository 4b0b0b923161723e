"""Traces as files: vLLM's timed_trace, Mooncake, and our own CSV and Parquet, which keep everything.

What is written reads back exactly: instants to the nanosecond (as decimal digits, never as floats), lengths, block ids.
What a format has no place for is named in the `WriteReport`. A file appears under its name only when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from traces.decode import DIGITS
from traces.errors import TraceError, printable
from traces.formats.catalogue import OWN_HASHES
from traces.trace import OUTCOMES, Trace

__all__ = ["WRITERS", "WriteReport", "write_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What was written, what the format could not hold, and how to read it with its own tool."""

    path: str
    format: str
    rows: int
    lost: tuple[str, ...]
    hint: str


def write_trace(trace: Trace, path: str | Path, format: str) -> WriteReport:  # noqa: A002
    """Write a trace as `format`, one of WRITERS. Raises `TraceError` where that cannot be done."""
    if format not in WRITERS:
        raise TraceError(f"no writer for {printable(format)!r}", remedy="pass one of " + ", ".join(WRITERS))
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        hint = WRITERS[format](trace, partial)
        partial.replace(path)
    except OSError as fault:
        raise TraceError(f"cannot be written ({fault.strerror})", path=path, remedy="pass a path that can") from None
    finally:
        partial.unlink(missing_ok=True)
    return WriteReport(path=str(path), format=format, rows=len(trace), lost=_lost(trace, format), hint=hint)


def _lost(trace: Trace, name: str) -> tuple[str, ...]:
    lost = ["source lines"]
    if name in ("mooncake", "timed_trace"):
        lost += ["outcomes"] * bool(trace.outcome.any()) + ["sessions and parents"] * (trace.session is not None)
    return tuple(lost)


def _decimals(ns: int, digits: int) -> str:
    """Nanoseconds in a unit of 10^digits ns, exactly, without needless zeros."""
    whole, rest = divmod(ns, 10**digits)
    return f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)


def _json_lines(trace: Trace, unit: str) -> Iterator[str]:
    digits = DIGITS[unit]
    rows = zip(trace.at_ns.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    for row, (at, input_tokens, output_tokens) in enumerate(rows):
        ids = "" if trace.hashes is None else ', "hash_ids": ' + str(trace.hashes.of(row).tolist())
        lengths = f'"input_length": {input_tokens}, "output_length": {output_tokens}'
        yield f'{{"timestamp": {_decimals(at, digits)}, {lengths}{ids}}}\n'


def _write_lines(trace: Trace, path: Path, unit: str) -> None:
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.writelines(_json_lines(trace, unit))


def _mooncake(trace: Trace, path: Path) -> str:
    _write_lines(trace, path, "ms")
    own = (
        ""
        if trace.hashes is None or trace.hashes.block_tokens == 512
        else f" --block-tokens {trace.hashes.block_tokens}"
    )
    return f"milliseconds; read it with --format mooncake{own}"


def _timed_trace(trace: Trace, path: Path) -> str:
    if trace.hashes is None:
        raise TraceError(
            "no block ids, and vLLM builds timed_trace prompts from nothing else: they would be empty",
            remedy="write mooncake, csv or parquet",
        )
    _write_lines(trace, path, "s")
    size = trace.hashes.block_tokens
    return (
        f"seconds; vllm bench serve --dataset-name timed_trace --self-timed --timed-trace-sec-multiplier 1 "
        f"--timed-trace-chunk-hash-size {size}; read it with --format timed_trace --block-tokens {size}"
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


def _csv(trace: Trace, path: Path) -> str:
    pacsv.write_csv(_table(trace, text=True), str(path), pacsv.WriteOptions(quoting_style="none"))
    return "nanoseconds; read it without options"


def _parquet(trace: Trace, path: Path) -> str:
    pq.write_table(_table(trace, text=False), str(path), compression="zstd")
    return "nanoseconds; read it without options"


WRITERS: Final[dict[str, Callable[[Trace, Path], str]]] = {
    "timed_trace": _timed_trace,
    "mooncake": _mooncake,
    "csv": _csv,
    "parquet": _parquet,
}
