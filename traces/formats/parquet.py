"""Parquet: any layout's columns by name, in batches of row groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from traces.errors import printable
from traces.formats.batch import Batch
from traces.source import Source

__all__ = ["parquet_names", "read_parquet"]


def parquet_names(source: Source) -> list[str]:
    """The names of columns, and of what lies inside them, joined by dots. Raises `TraceError` for a damaged file."""
    schema = _open(source).schema_arrow
    return [name for field in schema for name in _names(field)]


def _names(field: pa.Field) -> Iterator[str]:
    yield field.name
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from (f"{field.name}.{name}" for name in _names(inner))


def read_parquet(source: Source, wanted: list[str], batch_rows: int = 1 << 18) -> Iterator[Batch]:
    """Batches of the wanted columns in the file's own types; `line` is the row's number."""
    line = 1
    with _open(source) as file:
        for part in file.iter_batches(batch_size=batch_rows, columns=wanted):
            columns = {name: _leaf(part, name) for name in wanted}
            yield Batch(
                columns=columns,
                line=np.arange(line, line + part.num_rows, dtype=np.int64),
                reasons=np.zeros(part.num_rows, dtype=np.int8),
            )
            line += part.num_rows


def _leaf(part: pa.RecordBatch, name: str) -> pa.Array:
    """A column, or what lies at a path inside one."""
    place = part.schema.get_field_index(name)
    if place >= 0:
        return part.column(place)
    top, *keys = name.split(".")
    return pc.struct_field(part.column(part.schema.get_field_index(top)), keys)


def _open(source: Source) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source.stream)
    except (pa.ArrowInvalid, OSError) as fault:
        what = f"damaged Parquet ({printable(fault)})"
        raise source.fault(what, rows="nothing was read", remedy="write or fetch the file again") from None
