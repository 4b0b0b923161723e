"""OpenTelemetry spans: which of them are model requests, and which of those belong to one call.

A call that passes an application, a gateway and a server leaves a span in each. One of them is a request: the outermost
client's, where it has token counts. Spans are matched by their ids, wherever in the file they lie, so all of them are
held until the file ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from traces.errors import printable
from traces.formats.documents import dig
from traces.formats.exports import Row

__all__ = ["otlp_records"]

_INPUT: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_INFERENCE: Final = ("chat", "text_completion", "generate_content")
_CLIENT: Final = (3, "3", "SPAN_KIND_CLIENT")


@dataclass(slots=True)
class _Span:
    """A model request: what is read of it, and what decides whether it stands for its call."""

    row: Row
    service: str
    line: int
    parent: tuple[str, str] | None
    client: bool
    counted: bool
    covered: bool = False  # another span of the same call stands for it


def otlp_records(numbered: Iterable[tuple[int, Any]], notes: list[str]) -> Iterator[tuple[int, Row | None]]:
    """(line, row) of each span in parsed OTLP documents; None: no model request. `skip` names a span left out.

    Whose spans were left out because another one stands for the call is added to `notes`.
    """
    calls: list[_Span] = []
    by_id: dict[tuple[str, str], _Span] = {}
    parents: dict[tuple[str, str], tuple[str, str] | None] = {}
    number = 0
    for line, document in numbered:
        if document is None:
            yield line, Row(skip="bad_row")
            continue
        for service, span in _spans(document):
            number += 1
            trace, own, up = (_text(dig(span, (key,))) for key in ("traceId", "spanId", "parentSpanId"))
            parent = (trace, up) if up else None
            if own:
                parents[trace, own] = parent
            row = _row(span)
            if row is None:
                yield line or number, None
                continue
            call = _Span(
                row=row,
                service=service,
                line=line or number,
                parent=parent,
                client=dig(span, ("kind",)) in _CLIENT,
                counted=row.input is not None and row.output is not None,
            )
            calls.append(call)
            if own:
                by_id[trace, own] = call
    _cover(calls, by_id, parents)
    if covered := Counter(call.service or "a service without a name" for call in calls if call.covered):
        listed = ", ".join(f"{n} of {printable(service, 40)}" for service, n in covered.most_common(5))
        notes.append(f"calls are counted once, by their outermost client span; inner spans left out: {listed}")
    alone = sum(call.parent is not None and call.parent not in parents for call in calls)
    if alone:
        notes.append(f"{alone} requests have a parent span that is not in the file: if it is of the same call, and in "
                     "another file, pass both files")  # fmt: skip
    for call in calls:
        yield call.line, replace(call.row, skip="nested_span") if call.covered else call.row


def _cover(
    calls: list[_Span],
    by_id: dict[tuple[str, str], _Span],
    parents: dict[tuple[str, str], tuple[str, str] | None],
) -> None:
    """Mark every span whose call another one stands for: with counts before without, clients first, outermost first."""

    def rank(span: _Span) -> tuple[bool, bool]:
        return span.counted, span.client

    for call in calls:
        above, seen = call.parent, 0
        while above is not None and seen < 1000:  # hostile parents may go in circles
            outer = by_id.get(above)
            if outer is not None and outer is not call:
                (outer if rank(call) > rank(outer) else call).covered = True
            above, seen = parents.get(above), seen + 1


def _spans(document: Any) -> Iterator[tuple[str, Any]]:
    """(service, span) of each span in a document."""
    for resource in _items(dig(document, ("resourceSpans",))):
        named = (dig(item, ("value", "stringValue")) for item in _items(dig(resource, ("resource", "attributes")))
                 if dig(item, ("key",)) == "service.name")  # fmt: skip
        service = str(next(named, None) or "")
        scopes = dig(resource, ("scopeSpans",))
        for scope in _items(dig(resource, ("instrumentationLibrarySpans",)) if scopes is None else scopes):
            yield from ((service, span) for span in _items(dig(scope, ("spans",))))


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.strip("0") else ""


def _row(span: Any) -> Row | None:
    attributes: dict[str, Any] = {}
    for item in _items(dig(span, ("attributes",))):
        key = dig(item, ("key",))
        if isinstance(key, str):
            attributes[key] = dig(item, ("value",))

    def value(*names: str) -> Any:
        for name in names:
            for kind in ("intValue", "stringValue", "doubleValue"):
                if (found := dig(attributes.get(name), (kind,))) is not None:
                    return found
        return None

    tokens_in, tokens_out = value(*_INPUT), value(*_OUTPUT)
    operation = value("gen_ai.operation.name")
    kind = value("openinference.span.kind")
    if operation is not None:
        inference = operation in _INFERENCE
    else:
        inference = kind == "LLM" if kind is not None else tokens_in is not None
    if not inference:
        return None  # a tool call, an agent's outer span, an embedding, or no GenAI span at all
    failed = dig(span, ("status", "code")) in (2, "2", "STATUS_CODE_ERROR") or value("error.type") is not None
    return Row(
        at=dig(span, ("startTimeUnixNano",)),
        input=tokens_in,
        output=tokens_out,
        session=value("gen_ai.conversation.id", "session.id"),
        status="failed" if failed else "ok",
    )
