"""Batches from JSON records: a known export, OpenTelemetry spans, or any records by a map of paths."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np

from traces.decode import code
from traces.formats.batch import Batch
from traces.formats.documents import dig, documents, expand
from traces.formats.exports import Export, Record
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
    yield from _batched(otlp_records(documents(source), source.notes) if form is OTLP else _rows(source, form), names)


def read_mapped(source: Source, paths: dict[str, tuple[str, ...]], hashes: str) -> Iterator[Batch]:
    """Batches of the columns at the given paths, from records in any JSON; `paths`: column -> its keys.

    The column `hashes`, if any, stays a list of lists.
    """
    number = 0

    def rows() -> Iterator[tuple[int, Record | None]]:
        nonlocal number
        for line, document in documents(source):
            for record in expand(document):
                number += 1
                if isinstance(record, dict):
                    yield line or number, {name: dig(record, path) for name, path in paths.items()}
                else:
                    yield line or number, {"skip": "bad_row"}

    yield from _batched(rows(), list(paths), hashes)


def _rows(source: Source, form: Export) -> Iterator[tuple[int, Record | None]]:
    number = 0
    for line, document in documents(source):
        for record in expand(document):
            number += 1
            yield line or number, {"skip": "bad_row"} if not isinstance(record, dict) else form.record(record)


def _batched(
    rows: Iterator[tuple[int, Record | None]], names: list[str], hashes: str = "", batch_rows: int = 10_000
) -> Iterator[Batch]:
    while chunk := list(islice(rows, batch_rows)):
        lines, found = zip(*chunk, strict=True)
        records: list[dict[str, Any]] = [record or {"skip": "not_a_request"} for record in found]
        reasons = [code(record.get("skip") or "") for record in records]
        columns = ((name, [record.get(name) for record in records]) for name in names)
        yield Batch(
            columns={name: values if name == hashes else as_text(values) for name, values in columns},
            line=np.array(lines, dtype=np.int64),
            reasons=np.array(reasons, dtype=np.int8),
        )
