"""JSON exports whose requests are nested: OTLP spans, Langfuse, LiteLLM, Helicone; a whole document or one per line.

Each format is a function from one parsed document to its records, flat dicts by the names in `FIELDS`. A document that
is one JSON array or object is read whole, so such a file must fit into memory; line by line files need not. `line` is
the line of the document or, inside one document, the number of the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from traces.decode import Clock, code
from traces.formats.batch import Batch
from traces.formats.layout import Columns
from traces.formats.lines import as_text, load_json
from traces.source import Block, Source

__all__ = ["FIELDS", "RECORD_FORMATS", "RecordFormat", "read_records"]

Record = dict[str, Any]
FIELDS: Final = Columns(at="at", input="input", output="output", session="session", status="status")
MAX_DOCUMENT_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """One nested format: how it is recognised in a parsed document, and how its requests are taken out."""

    name: str
    about: str
    clock: Clock
    claims: Callable[[Any], bool]
    records: Callable[[Any], Iterator[Record | None]]  # None: a record that is no model request
    notes: tuple[str, ...] = ()


def _listed(document: Any) -> list[Any]:
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        return list(document["data"])
    return document if isinstance(document, list) else [document]


def _sample(document: Any) -> Record:
    first = next(iter(_listed(document)), None)
    return first if isinstance(first, dict) else {}


def _get(record: Any, *path: str) -> Any:
    for key in path:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _litellm(document: Any) -> Iterator[Record | None]:
    for row in _listed(document):
        yield {
            "at": _get(row, "startTime"),
            "input": _get(row, "prompt_tokens"),
            "output": _get(row, "completion_tokens"),
            "session": _get(row, "session_id"),
            "status": _get(row, "status"),
        }


def _helicone(document: Any) -> Iterator[Record | None]:
    for row in _listed(document):
        yield {
            "at": _get(row, "request_created_at"),
            "input": _get(row, "prompt_tokens"),
            "output": _get(row, "completion_tokens"),
            "status": _get(row, "response_status"),
        }


def _langfuse(document: Any) -> Iterator[Record | None]:
    for row in _listed(document):
        if _get(row, "type") not in (None, "GENERATION"):
            yield None
            continue
        yield {
            "at": _get(row, "startTime"),
            "input": _first(_get(row, "usageDetails", "input"), _get(row, "usage", "input"), _get(row, "promptTokens")),
            "output": _first(
                _get(row, "usageDetails", "output"), _get(row, "usage", "output"), _get(row, "completionTokens")
            ),
            "session": _get(row, "sessionId"),
            "status": "failed" if _get(row, "level") == "ERROR" else "ok",
        }


def _spans(document: Any) -> Iterator[Any]:
    for one in _listed(document):
        for resource in _get(one, "resourceSpans") or ():
            for scope in _first(_get(resource, "scopeSpans"), _get(resource, "instrumentationLibrarySpans")) or ():
                yield from _get(scope, "spans") or ()


def _otlp(document: Any) -> Iterator[Record | None]:
    for span in _spans(document):
        attributes = {_get(item, "key"): _get(item, "value") for item in _get(span, "attributes") or ()}

        def value(*names: str, attributes: Record = attributes) -> Any:
            found = _first(*(attributes.get(name) for name in names))
            return _first(_get(found, "intValue"), _get(found, "stringValue"), _get(found, "doubleValue"))

        tokens_in = value("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
        tokens_out = value("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
        operation = value("gen_ai.operation.name")
        inference = operation in ("chat", "text_completion", "generate_content", None)
        if not inference or (operation is None and tokens_in is None):
            yield None  # a tool call, an agent's outer span, an embedding, or no GenAI span at all
            continue
        failed = _get(span, "status", "code") in (2, "STATUS_CODE_ERROR") or value("error.type") is not None
        yield {
            "at": _get(span, "startTimeUnixNano"),
            "input": tokens_in,
            "output": tokens_out,
            "session": value("gen_ai.conversation.id", "session.id"),
            "status": "failed" if failed else "ok",
        }


RECORD_FORMATS: Final = (
    RecordFormat(
        name="otlp",
        about="OpenTelemetry GenAI spans as OTLP JSON",
        clock="ns",
        claims=lambda document: "resourceSpans" in _sample(document),
        records=_otlp,
    ),
    RecordFormat(
        name="langfuse",
        about="Langfuse observations as JSON",
        clock="iso",
        claims=lambda document: (
            "startTime" in _sample(document)
            and not _sample(document).keys().isdisjoint(("usageDetails", "usage", "promptTokens", "traceId"))
        ),
        records=_langfuse,
    ),
    RecordFormat(
        name="litellm",
        about="LiteLLM spend logs as JSON",
        clock="iso",
        claims=lambda document: {"startTime", "prompt_tokens", "completion_tokens"} <= _sample(document).keys(),
        records=_litellm,
    ),
    RecordFormat(
        name="helicone",
        about="Helicone exports as JSON",
        clock="iso",
        claims=lambda document: {"request_created_at", "prompt_tokens"} <= _sample(document).keys(),
        records=_helicone,
    ),
    RecordFormat(
        name="ragpulse",
        about="RAGPulse: seconds",
        clock="s",
        claims=lambda document: isinstance(_get(_sample(document), "hash_ids"), dict),
        records=lambda document: iter(
            {
                "at": _get(row, "timestamp"),
                "input": _get(row, "input_length"),
                "output": _get(row, "output_length"),
                "session": _get(row, "session_id"),
            }
            for row in _listed(document)
        ),
        notes=("hash_ids name prompt components of unequal length, not blocks: they are not read as shared prefixes",),
    ),
)


def _documents(source: Source) -> Iterator[tuple[int, Any]]:
    """Parsed documents with their line; a file that is one document has line 0. Unparsable lines give None."""
    whole = source.head.lstrip()
    first_line = whole.partition(b"\n")[0]
    if whole.startswith(b"{") and _parses(first_line):
        for block in source.blocks(quoted=False):
            yield from _by_line(block)
        return
    parts, size = [], 0
    for block in source.blocks(quoted=False):
        parts.append(block.data)
        size += len(block.data)
        if size > MAX_DOCUMENT_BYTES:
            raise source.fault("one JSON document of more than 2 GiB", remedy="export it as JSON lines")
    text = b"".join(parts)
    try:
        yield 0, load_json(text)
    except json.JSONDecodeError as fault:
        if fault.msg == "Extra data":  # one document a line after all, the first longer than what was looked at
            yield from _by_line(Block(data=text, first_line=1, lines=0))
            return
        raise source.fault(
            f"not JSON: {fault.msg}",
            line=fault.lineno,
            rows="nothing was read",
            remedy="export it again: it seems cut short",
        ) from None
    except ValueError as fault:
        raise source.fault(f"not JSON: {fault}", rows="nothing was read", remedy="export it again") from None


def _by_line(block: Block) -> Iterator[tuple[int, Any]]:
    for number, text in enumerate(block.data.split(b"\n"), start=block.first_line):
        if text.strip():
            try:
                yield number, load_json(text)
            except ValueError:
                yield number, None


def _parses(text: bytes) -> bool:
    try:
        load_json(text)
    except ValueError:
        return False
    return True


def read_records(source: Source, form: RecordFormat, batch_rows: int = 50_000) -> Iterator[Batch]:
    """Batches of text columns named as in `FIELDS`."""
    names = FIELDS.names()
    rows = _rows(source, form)
    while chunk := list(islice(rows, batch_rows)):
        lines, reasons, records = zip(*chunk, strict=True)
        yield Batch(
            columns={name: as_text([record.get(name) for record in records]) for name in names},
            line=np.array(lines, dtype=np.int64),
            reasons=np.array(reasons, dtype=np.int8),
        )


def _rows(source: Source, form: RecordFormat) -> Iterator[tuple[int, int, Record]]:
    number = 0
    for line, document in _documents(source):
        if document is None:
            yield line, code("bad_row"), {}
            continue
        for record in form.records(document):
            number += 1
            yield line or number, 0 if record is not None else code("not_a_request"), record or {}
