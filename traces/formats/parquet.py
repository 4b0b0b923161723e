"""Parquet: any layout's columns by name, in batches of row groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import printable
from traces.formats.batch import Batch
from traces.source import Source

__all__ = ["parquet_names", "read_parquet"]


def parquet_names(source: Source) -> list[str]:
    """The column names. Raises `TraceError` where the file is damaged."""
    return list(_open(source).schema_arrow.names)


def read_parquet(source: Source, wanted: list[str], batch_rows: int = 1 << 18) -> Iterator[Batch]:
    """Batches of the wanted columns in the file's own types; `line` is the row's number."""
    line = 1
    with _open(source) as file:
        for part in file.iter_batches(batch_size=batch_rows, columns=wanted):
            columns = {name: part.column(part.schema.get_field_index(name)) for name in wanted}
            yield Batch(
                columns=columns,
                line=np.arange(line, line + part.num_rows, dtype=np.int64),
                reasons=np.zeros(part.num_rows, dtype=np.int8),
            )
            line += part.num_rows


def _open(source: Source) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source.path)
    except (pa.ArrowInvalid, OSError) as fault:
        what = f"damaged Parquet ({printable(fault)})"
        raise source.fault(what, rows="nothing was read", remedy="write or fetch the file again") from None
