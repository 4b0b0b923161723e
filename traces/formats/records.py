"""Batches from JSON records: a known export, OpenTelemetry spans, or any records by a map of paths."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import numpy as np

from traces.decode import code
from traces.formats.batch import Batch
from traces.formats.documents import dig, documents, expand
from traces.formats.exports import Export, Row
from traces.formats.layout import Columns
from traces.formats.lines import as_text
from traces.formats.spans import otlp_records
from traces.source import Source

__all__ = ["FIELDS", "OTLP", "read_mapped", "read_records"]

FIELDS: Final = Columns(at="at", input="input", output="output", session="session", status="status")
OTLP: Final = Export(
    name="otlp",
    about="OpenTelemetry GenAI and OpenInference spans as OTLP JSON",
    clock="ns",
    claims=lambda r: "resourceSpans" in r,
    record=lambda _: None,
)


def read_records(source: Source, form: Export) -> Iterator[Batch]:
    """Batches of text columns named as in `FIELDS`, and `duration` where the instant is the end."""
    names = FIELDS.names() + ["duration"] * form.ends
    rows = otlp_records(documents(source), source.notes) if form is OTLP else _rows(source, form)
    parts, nothing = attrgetter(*names), (None,) * len(names)
    read = ((line, nothing, "not_a_request") if row is None else (line, parts(row), row.skip) for line, row in rows)
    yield from _batched(read, names)


def read_mapped(source: Source, paths: dict[str, tuple[str, ...]], hashes: str) -> Iterator[Batch]:
    """Batches of the columns at the given paths, from records in any JSON; `paths`: column -> its keys.

    The column `hashes`, if any, stays a list of lists.
    """
    keys, nothing = tuple(paths.values()), (None,) * len(paths)
    read = (
        (line, tuple(dig(record, path) for path in keys), "")
        if isinstance(record, dict)
        else (line, nothing, "bad_row")
        for line, record in _numbered(source)
    )
    yield from _batched(read, list(paths), hashes)


def _rows(source: Source, form: Export) -> Iterator[tuple[int, Row | None]]:
    for line, record in _numbered(source):
        yield line, form.record(record) if isinstance(record, dict) else Row(skip="bad_row")


def _numbered(source: Source) -> Iterator[tuple[int, Any]]:
    """Every record with its line, or with its number where the file is one document."""
    number = 0
    for line, document in documents(source):
        for record in expand(document):
            number += 1
            yield line or number, record


def _batched(
    rows: Iterator[tuple[int, tuple[object, ...], str]], names: list[str], hashes: str = "", batch_rows: int = 10_000
) -> Iterator[Batch]:
    """Batches of (line, values of the columns `names`, reason to leave the row out)."""
    while chunk := list(islice(rows, batch_rows)):
        lines, values, skips = zip(*chunk, strict=True)
        columns = zip(names, zip(*values, strict=True), strict=True)
        yield Batch(
            columns={name: list(column) if name == hashes else as_text(column) for name, column in columns},
            line=np.array(lines, dtype=np.int64),
            reasons=np.array([code(skip) for skip in skips], dtype=np.int8),
        )
