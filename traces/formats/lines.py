"""JSON lines: blocks through Arrow's parser, and line by line where a block holds something Arrow will not take.

Timestamps are read as decimals, from the digits in the file, never as floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from traces.decode import code
from traces.formats.batch import Batch
from traces.formats.layout import Columns
from traces.source import Block, Source

__all__ = ["as_text", "head_records", "load_json", "read_lines"]

# Arrow wraps around silently on exponents in decimals
_EXPONENT: Final = re.compile(rb"[0-9][eE][+-]?[0-9]+\s*[,}\]]")


def load_json(text: str | bytes) -> Any:
    """One JSON value, numbers exact (ints, `Decimal`s), NaN and Infinity as strings. Raises `ValueError`."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=str)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def head_records(source: Source, limit: int = 200) -> list[dict[str, Any]]:
    """The objects on the first whole lines of a file, for its layout to be recognised by."""
    lines = source.head.splitlines()
    if len(lines) > 1 and not source.head.endswith(b"\n"):
        lines.pop()
    found = []
    for line in lines[:limit]:
        try:
            value = load_json(line) if line.strip() else None
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def read_lines(source: Source, columns: Columns, *, dates: bool) -> Iterator[Batch]:
    """Batches with the timestamp as decimals (as text with `dates`), tokens as integers, hashes as lists."""
    sample = next(iter(head_records(source, 1)), {})
    # ids are numbers in one format and text in the next; Arrow wants to know beforehand
    types: dict[str, pa.DataType] = {
        name: pa.int64() if type(sample.get(name)) is int else pa.string() for name in columns.names()
    }
    types[columns.at] = pa.string() if dates else pa.decimal128(38, 18)
    types[columns.input] = types[columns.output] = pa.int64()
    if columns.hashes:
        types[columns.hashes] = pa.list_(pa.int64())
    schema = pa.schema(list(types.items()))
    for block in source.blocks(quoted=False):
        yield _fast(block, schema) or _slow(block, columns)


def _fast(block: Block, schema: pa.Schema) -> Batch | None:
    if _has_exponents(block.data):
        return None
    try:
        table = pajson.read_json(
            pa.BufferReader(block.data),
            read_options=pajson.ReadOptions(block_size=1 << 22),
            parse_options=pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if len(table) != block.lines:
        return None
    line = np.arange(block.first_line, block.first_line + block.lines, dtype=np.int64)
    columns = {name: table[name].combine_chunks() for name in schema.names}
    return Batch(columns=columns, line=line, reasons=np.zeros(block.lines, dtype=np.int8))


def _has_exponents(data: bytes) -> bool:
    # an array scan rules nearly every block out, ten times faster than the expression that confirms the rest
    letters = np.frombuffer(data, dtype=np.uint8)
    after = letters[1:][(letters[:-1] | 32) == ord("e")]
    possible = ((after >= ord("0")) & (after <= ord("9"))) | (after == ord("+")) | (after == ord("-"))
    return bool(possible.any()) and _EXPONENT.search(data) is not None


def _slow(block: Block, columns: Columns) -> Batch:
    names = columns.names()
    values: dict[str, list[Any]] = {name: [] for name in names}
    line: list[int] = []
    reasons: list[int] = []
    for number, text in enumerate(block.data.split(b"\n"), start=block.first_line):
        if not text.strip():
            continue
        try:
            record = load_json(text)
        except ValueError:
            record = None
        whole = isinstance(record, dict)
        line.append(number)
        reasons.append(0 if whole else code("bad_row"))
        for name in names:
            values[name].append(record.get(name) if whole else None)
    return Batch(
        columns={name: column if name == columns.hashes else as_text(column) for name, column in values.items()},
        line=np.array(line, dtype=np.int64),
        reasons=np.array(reasons, dtype=np.int8),
    )


def as_text(values: list[Any]) -> pa.Array:
    """JSON values as Arrow strings: what is neither a number nor a string becomes text that no decoder accepts."""
    return pa.array([None if value is None else _shown(value) for value in values], pa.string())


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # JSON can spell half a surrogate pair
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return "?"
    try:
        return str(value)
    except ValueError:  # an int beyond Python's digit limit
        return "?"
