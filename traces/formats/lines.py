"""JSON lines: blocks through Arrow's parser, and line by line where a block holds something Arrow will not take.

Timestamps are read as decimals, from the digits in the file, never as floats. A column may be a path into nested
objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from traces.decode import code
from traces.formats.batch import Batch
from traces.formats.documents import Head, dig, load_json
from traces.formats.layout import Columns
from traces.source import LineChunk, Source

__all__ = ["Path", "as_text", "find_paths", "read_lines"]

Path = tuple[str, ...]
# Arrow wraps around silently on exponents in decimals, and on more digits than fit
_EXPONENT: Final = re.compile(rb"[0-9][eE][+-]?[0-9]+\s*[,}\]]")
_TYPES: Final = {int: pa.int64(), bool: pa.bool_()}
_MANY_DIGITS: Final = re.compile(rb"[0-9]{20}")


def find_paths(names: list[str], head: Head) -> dict[str, Path]:
    """Where each column lies: the key of that very name where a first record has it, else the keys between its dots."""

    def path_of(name: str) -> Path:
        if "." not in name or any(name in record for record in head.objects):
            return (name,)
        keys = name.split(".")
        # a key may have dots of its own: the longest ones first, as far as the records have them
        for record in head.objects:
            if (found := _match(record, keys)) is not None:
                return found
        return tuple(keys)

    return {name: path_of(name) for name in names}


def _match(record: Any, keys: list[str]) -> Path | None:
    if not keys:
        return ()
    if isinstance(record, str) and record.lstrip()[:1] == "{":  # JSON in a string
        return _match(_parsed(record), keys)
    if isinstance(record, dict):
        for n in range(len(keys), 0, -1):
            key = ".".join(keys[:n])
            if key in record and (rest := _match(record[key], keys[n:])) is not None:
                return (key, *rest)
    return None


def _parsed(text: str) -> Any:
    try:
        return load_json(text)
    except ValueError:
        return None


def read_lines(
    source: Source,
    columns: Columns,
    more: list[str],
    paths: Mapping[str, Path],
    kinds: Mapping[str, type],
    *,
    dates: bool,
) -> Iterator[Batch]:
    """Batches with the timestamp as decimals (as text with `dates`), tokens as integers, hashes as lists.

    `more`: columns read as text beside those of `columns`; `kinds`: the Python type that a
    column has in the first record.
    """
    names = [*columns.names(), *(name for name in more if name not in columns.names())]
    paths = {name: paths.get(name, (name,)) for name in names}
    # ids are numbers in one format and text in the next; Arrow wants to know beforehand
    types: dict[str, pa.DataType] = {name: _TYPES.get(kinds.get(name, str), pa.string()) for name in names}
    types[columns.at] = pa.string() if dates else pa.decimal128(38, 18)
    if columns.duration:
        types[columns.duration] = pa.decimal128(38, 18)
    types[columns.input] = types[columns.output] = pa.int64()
    if columns.hashes:
        types[columns.hashes] = pa.list_(pa.int64())
    schema = _schema({paths[name]: kind for name, kind in types.items()})
    for block in source.blocks():
        batch = _fast(block, schema, paths) if schema is not None else None
        yield batch or _slow(block, paths, columns.hashes)


def _schema(types: Mapping[Path, pa.DataType]) -> pa.Schema | None:
    """A schema of nested objects; None where one path ends inside another."""
    tree: dict[str, Any] = {}
    for path, kind in types.items():
        at = tree
        for key in path[:-1]:
            at = at.setdefault(key, {})
            if not isinstance(at, dict):
                return None
        if path[-1] in at:
            return None
        at[path[-1]] = kind

    def typed(node: Any) -> pa.DataType:
        return pa.struct([(key, typed(one)) for key, one in node.items()]) if isinstance(node, dict) else node

    return pa.schema([(key, typed(node)) for key, node in tree.items()])


def _fast(block: LineChunk, schema: pa.Schema, paths: Mapping[str, Path]) -> Batch | None:
    if _has_exponents(block.data) or _MANY_DIGITS.search(block.data):
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
    columns = {name: _leaf(table[path[0]].combine_chunks(), path[1:]) for name, path in paths.items()}
    return Batch(columns=columns, line=line, reasons=np.zeros(block.lines, dtype=np.int8))


def _leaf(column: pa.Array, path: Path) -> pa.Array:
    return pc.struct_field(column, list(path)) if path else column


def _has_exponents(data: bytes) -> bool:
    # an array scan rules nearly every block out, ten times faster than the expression that confirms the rest
    letters = np.frombuffer(data, dtype=np.uint8)
    after = letters[1:][(letters[:-1] | 32) == ord("e")]
    possible = ((after >= ord("0")) & (after <= ord("9"))) | (after == ord("+")) | (after == ord("-"))
    return bool(possible.any()) and _EXPONENT.search(data) is not None


def _slow(block: LineChunk, paths: Mapping[str, Path], hashes: str) -> Batch:
    values: dict[str, list[object]] = {name: [] for name in paths}
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
        for name, path in paths.items():
            values[name].append(dig(record, path) if whole else None)
    return Batch(
        columns={name: column if name == hashes else as_text(column) for name, column in values.items()},
        line=np.array(line, dtype=np.int64),
        reasons=np.array(reasons, dtype=np.int8),
    )


def as_text(values: Iterable[object]) -> pa.Array:
    """JSON values as Arrow strings: what is neither a number nor a string becomes text that no decoder accepts."""
    return pa.array([None if value is None else _shown(value) for value in values], pa.string())


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # JSON can spell half a surrogate pair
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, int | Decimal):
        return "?"
    try:
        return str(value)
    except ValueError:  # an int beyond Python's digit limit
        return "?"
