"""Reads an OpenAI-compatible server's answer: body bytes with read stamps in, tokens out, without I/O.

Theory of operation. One reader a request, and one rule: what the dispatcher wants to know of a request in flight (has a
token come, has it finished) and what is recorded of it in the end come from the same reader. It takes the bytes as
they are given to it, at once or piece by piece, and never looks at one twice. An event is complete when its blank line
or the end of the body came. Where the reader cannot know yet whether a token is there, it says so (`unsure`,
`may_be_finished`), and nobody may take that for a miss.

Method, section 2, says what a token event is. What it leaves open is decided here:

- A body is a stream if its content type says so, or if it begins like one whatever its content type.
- A plain JSON answer is one token event at the read that completed it, whether or not a stream was asked for.
- Usage is held against the events. Where it says fewer tokens than events, empty chunks after the last text, then those
  before the first, are no tokens, as far as that explains it. Else it is doubted: token ids count, else events, though
  no more than the limit (`ParsedResponse.usage_doubted`). An answer that ends at its limit with just that usage is
  believed: a server may cut one token into several events.
- Without usage and token ids, finish_reason `length` says that O is the limit that was sent (source `limit`). Else the
  count of events stands in for O (source `events`): events are not tokens, so that is a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Final

import orjson

from analysis.schema import ABSENT
from analysis.text import bounded
from loadgen.send.openai import GOOD_FINISH, HttpEnd, ParsedResponse, outcome_of
from loadgen.send.sse import Event, Splitter

__all__ = ["AnswerReader", "Exchange", "read_answer", "read_exchange"]

_HEAD_BYTES: Final = 64  # of a body show what it is
_FIELDS: Final = (b"data:", b"event:", b":", b"id:", b"retry:")
AROUND_TEXT: Final = re.compile(rb'(.*?"(?:text|content|reasoning|reasoning_content)": ?")[^"\\]+(".*)', re.DOTALL)
_PLAIN_TEXT: Final = re.compile(rb"[ !#-\[\]-~]*")  # the inside of a JSON string in ASCII without escapes
_NO_NUMBER: Final = re.compile(rb"[:\[,]\s*(-?(?:NaN|Infinity))\b")
_COUNT_LIMIT: Final = 1 << 53  # a larger "count" is noise, and would not fit the table
_LEARNS_WITHIN: Final = 8  # token events; a stream whose events are not alike by then is read as much as came at once
_NONE, _OPENER, _EMPTY, _TEXT = range(4)  # what a choice brings


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An answer read to its end, its outcome (method, section 3) and what went wrong."""

    answer: ParsedResponse | None  # of a 200
    outcome: str
    error: str


def read_exchange(
    parts: list[bytes],
    stamps: list[int],
    *,
    status: int,
    content_type: str,
    end: HttpEnd = "complete",
    error: str = "",
    limit_tokens: int = ABSENT,
    forced_tokens: int | None = None,
) -> Exchange:
    """The rules of the load for one exchange that is over, as a survey needs them: parser and outcome in one.

    `stamps[i]` is the stamp of the read that brought `parts[i]`, `status` -1 where there was none, `limit_tokens` the
    largest output that was asked for, `forced_tokens` the one that was forced.
    """
    answer = None
    if status == 200:
        answer = read_answer(parts, stamps, content_type=content_type, end=end, limit_tokens=limit_tokens)
    elif not error:
        error = bounded(b"".join(parts[:8]))
    outcome, text = outcome_of(answer, end=end, status=status, error=error, forced_tokens=forced_tokens)
    return Exchange(answer=answer, outcome=outcome, error=text)


def read_answer(
    parts: list[bytes],
    stamps: list[int],
    *,
    content_type: str,
    end: HttpEnd = "complete",
    limit_tokens: int = ABSENT,
) -> ParsedResponse:
    """The answer that a whole body, or what came of it, holds; arguments as in `read_exchange`."""
    reader, end_ns = AnswerReader(content_type), stamps[-1] if stamps else ABSENT
    return reader.finish(list(parts), list(stamps), end=end, end_ns=end_ns, limit_tokens=limit_tokens)


class AnswerReader:
    """Reads one answer while it comes. Lists of parts and stamps belong to the caller; what is read is taken out."""

    __slots__ = (
        "_after",
        "_around",
        "_before",
        "_between",
        "_closing",
        "_fold",
        "_lead",
        "_marked",
        "_opening",
        "_splitter",
        "_stream",
        "answer",
    )

    def __init__(self, content_type: str) -> None:
        self.answer = ParsedResponse()
        self._marked = "event-stream" in content_type
        self._stream: bool | None = None  # a stream, one document, or not known yet
        self._splitter = Splitter()
        self._fold = _Fold(self.answer)
        self._lead = 0  # token events before the first text, as far as they were counted
        # Nearly all events of a stream differ from the one before in their text alone, and are not worth their JSON.
        # Once an event is known that says nothing but its text, those that begin and end with the same bytes and have
        # another plain JSON string between them are known too: that string decides nothing but whether it is empty.
        self._before = self._after = b""
        self._opening = self._closing = self._between = b""  # a part of the body that is nothing but such events
        self._around = 0  # bytes around the text

    @property
    def one_document(self) -> bool:
        """Whether the body is known to be no stream: nothing can be read of it before its end."""
        return self._stream is False

    @property
    def open_bytes(self) -> int:
        """How many bytes it keeps of an event that is not over."""
        return self._splitter.open_bytes

    def read(self, parts: list[bytes], stamps: list[int]) -> None:
        """Read what has come since the last time."""
        if self._stream is None and parts:
            self._stream = self._is_stream(parts)
        if not self._stream:
            return
        at, total = 0, len(parts)
        while at < total:
            if self._around and (alike := self._alike(parts[at])):
                self.answer.events += [(stamps[at], ABSENT)] * alike
                at += 1
                continue
            learns = self._around or len(self.answer.events) < _LEARNS_WITHIN
            some = slice(at, at + 1 if learns else total)
            at = min(some.stop, total)
            if events := self._splitter.feed(b"".join(parts[some])):
                self._take(events, parts[some], stamps[some])
        parts.clear()
        stamps.clear()

    def unsure(self, parts: list[bytes]) -> bool:
        """Whether a token may have come although none was read: one document may be whole, and its message go on."""
        if self._stream is not False:
            return False
        shown = parts[-1][-_HEAD_BYTES:].rstrip()
        return not shown or shown.endswith(b"}")

    def may_be_finished(self, limit_tokens: int) -> bool:
        """Whether all tokens may have come, with only the end of the stream missing."""
        answer = self.answer
        return bool(answer.finish_reason) or 0 < limit_tokens <= len(answer.events)

    @property
    def first_text_ns(self) -> int:
        """Stamp of the first token that no usage can explain away, -1 if there was none."""
        empty, events = self._fold.empty, self.answer.events
        while self._lead < len(empty) and empty[self._lead] == self._lead:
            self._lead += 1
        return events[self._lead][0] if self._lead < len(events) else ABSENT

    def finish(
        self, parts: list[bytes], stamps: list[int], *, end: HttpEnd, end_ns: int, limit_tokens: int
    ) -> ParsedResponse:
        """Read the rest of a body that ended at `end_ns`; the answer is whole then, or as whole as it came."""
        answer, complete = self.answer, end == "complete"
        self.read(parts, stamps)
        if self._stream:
            rest = self._splitter.rest() if complete or end == "eof" else []
            if complete or (rest and rest[0][2] == b"[DONE]"):
                self._take([(0, name, data) for _, name, data in rest], [b""], [end_ns])
            if complete and not self._fold.began:
                answer.bad = f"a stream without events: {bounded(self._splitter.open)}"
        elif not parts:
            answer.stream = self._marked
            answer.bad = "an empty answer" if complete or not self._marked else ""
        else:
            self._read_document(parts, stamps)
        _settle(answer, self._fold, limit_tokens)
        return answer

    def _is_stream(self, parts: list[bytes]) -> bool | None:
        if self._marked:
            return True
        head = b""
        for part in parts:
            head += part[:_HEAD_BYTES]
            if len(head) >= _HEAD_BYTES:
                break
        shown = head[:_HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
        if shown.startswith(_FIELDS):
            return True
        if len(head) < _HEAD_BYTES and any(field.startswith(shown) for field in _FIELDS):
            return None
        return False

    def _alike(self, part: bytes) -> int:
        """How many events `part` is, if each is known by its bytes around a text; 0 if anything else is in it."""
        if self._splitter.open_bytes or not (part.startswith(self._opening) and part.endswith(self._closing)):
            return 0
        texts = part[len(self._opening) : -len(self._closing)].split(self._between)
        return len(texts) if all(texts) and _PLAIN_TEXT.fullmatch(b"".join(texts)) else 0

    def _take(self, events: list[Event], parts: list[bytes], stamps: list[int]) -> None:
        fold, answer = self._fold, self.answer
        fold.began = True
        add, empty, tokens = fold.add, fold.empty, answer.events
        before, after, around = self._before, self._after, self._around
        ends, part = list(accumulate(map(len, parts))), 0
        for end, name, data in events:
            while ends[part] < end:
                part += 1
            if (
                around
                and data.startswith(before)
                and data.endswith(after)
                and _PLAIN_TEXT.fullmatch(data, len(before), len(data) - len(after))
                and not name
            ):
                if len(data) == around:
                    empty.append(len(tokens))
                tokens.append((stamps[part], ABSENT))
            elif data == b"[DONE]":
                answer.done = True
            else:
                try:
                    document = orjson.loads(data)
                except orjson.JSONDecodeError:
                    document = None
                if type(document) is not dict:
                    if name == b"error":
                        answer.error = answer.error or bounded(data)
                    answer.bad = answer.bad or _not_an_object(data, len(answer.events))
                elif add(document, stamps[part], name) and (match := AROUND_TEXT.fullmatch(data)) is not None:
                    before, after = match.groups()
                    around = len(before) + len(after)
        if around != self._around or before != self._before or after != self._after:
            self._before, self._after, self._around = before, after, around
            self._opening, self._closing = b"data: " + before, after + b"\n\n"
            self._between = self._closing + self._opening

    def _read_document(self, parts: list[bytes], stamps: list[int]) -> None:
        answer = self.answer
        answer.stream = False
        body = b"".join(parts)
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer.bad = f"neither a stream nor JSON: {bounded(body)}"
            return
        if type(document) is not dict:
            answer.bad = f"not an answer object: {bounded(body)}"
            return
        whole = len(body.rstrip())  # blanks behind the document are none of it
        at_ns = next(at for at, end in zip(stamps, accumulate(map(len, parts)), strict=True) if end >= whole)
        self._fold.add(document, at_ns, b"")


class _Fold:
    """Folds a body's JSON documents into an `ParsedResponse`, in order."""

    __slots__ = ("answer", "began", "empty", "told_by_ids")

    def __init__(self, answer: ParsedResponse) -> None:
        self.answer = answer
        self.began = False  # an event came
        self.empty: list[int] = []  # places of token events without content
        self.told_by_ids = 0  # token events that came with their ids

    def add(self, document: dict[str, Any], at_ns: int, name: bytes) -> bool:
        """True for a later token event that said nothing else: one that differs only in its text is alike."""
        answer = self.answer
        choices, usage = document.get("choices"), document.get("usage")
        if document.get("error") or name == b"error" or document.get("object") == "error":
            answer.error = answer.error or _error_text(document.get("error") or document)
            return False
        fresh = ABSENT if usage is None else self._add_usage(usage)
        if (metrics := document.get("metrics")) is not None:
            self._add_metrics(metrics)
        if not choices:
            return False
        if type(choices) is not list or type(choices[0]) is not dict:
            answer.bad = answer.bad or "choices is not a list of objects"
            return False
        events, brought, ids = answer.events, _NONE, ABSENT
        alike = bool(events) and usage is None
        for choice in choices:
            if type(choice) is not dict:
                continue
            if reason := choice.get("finish_reason"):
                alike = False
                if not answer.finish_reason or answer.finish_reason in GOOD_FINISH:
                    answer.finish_reason = bounded(str(reason))
            token_ids = choice.get("token_ids")
            if type(token_ids) is list:
                alike, ids = False, max(ids, 0) + len(token_ids)
            brought = max(brought, _brings(choice))
        if brought == _NONE or (brought == _OPENER and not events):
            return False
        if ids != ABSENT:
            fresh = ids
            self.told_by_ids += 1
        if brought != _TEXT:
            self.empty.append(len(events))
        events.append((at_ns, fresh))
        return alike

    def _add_usage(self, usage: Any) -> int:
        """Note a usage object; the completion tokens it reports beyond the last one, -1 if it reports none."""
        if type(usage) is not dict:
            return ABSENT
        answer = self.answer
        if (prompt := _count(usage.get("prompt_tokens"))) != ABSENT:
            answer.input_tokens = prompt
        details = usage.get("prompt_tokens_details")
        if type(details) is dict and (cached := _count(details.get("cached_tokens"))) != ABSENT:
            answer.cached_tokens = cached
        completion = _count(usage.get("completion_tokens"))
        if completion == ABSENT:
            return ABSENT
        fresh, answer.usage_tokens = max(completion - max(answer.usage_tokens, 0), 0), completion
        return fresh

    def _add_metrics(self, metrics: Any) -> None:
        """vLLM's times of one request (--enable-per-request-metrics); its "time to first token" begins at the start."""
        if type(metrics) is not dict:
            return
        answer = self.answer
        answer.server_queue_ns = _ns(metrics.get("queue_time_ms"))
        answer.server_prefill_ns = _ns(metrics.get("time_to_first_token_ms"))
        answer.server_decode_ns = _ns(metrics.get("generation_time_ms"))


def _brings(choice: dict[str, Any]) -> int:
    """What one choice brings (method, section 2)."""
    text, delta = choice.get("text"), choice.get("delta")
    if text or choice.get("token_ids") or choice.get("message"):
        return _TEXT
    if type(delta) is dict:
        if any(value for key, value in delta.items() if key != "role"):
            return _TEXT
        return _OPENER if delta.get("role") and not choice.get("finish_reason") else _EMPTY
    return _NONE if text is None else _EMPTY


def _settle(answer: ParsedResponse, fold: _Fold, limit_tokens: int) -> None:
    """How many tokens there were, by whose word, and which events at the edges were none."""
    events, usage = answer.events, answer.usage_tokens
    counted = bool(events) and fold.told_by_ids == len(events)
    least = sum(tokens for _, tokens in events) if counted else len(events)
    at_limit = answer.finish_reason == "length" and limit_tokens > 0
    lead, trail = _edges(len(events), fold.empty) if fold.empty else (0, 0)
    if lead or trail:
        lead, trail = _spare(events, lead, trail, usage)
        answer.events = events = events[lead : len(events) - trail]
        least -= 0 if counted else lead + trail
    if usage != ABSENT and (least <= usage or (at_limit and usage == limit_tokens and not counted)):
        answer.output_tokens, answer.output_tokens_source = usage, "usage"
    elif events:
        _count_events(answer, least, counted=counted, at_limit=at_limit, limit_tokens=limit_tokens)
    if events:
        first_ns = events[0][0]
        first = list(takewhile(lambda event: event[0] == first_ns, events))
        believed = counted or answer.output_tokens_source == "usage"
        answer.first_read_events = len(first)
        answer.first_read_tokens = sum(max(tokens, 1) for _, tokens in first) if believed else len(first)
        answer.token_reads = len({at_ns for at_ns, _ in events})


def _count_events(answer: ParsedResponse, least: int, *, counted: bool, at_limit: bool, limit_tokens: int) -> None:
    """O where usage says nothing, or what cannot be."""
    if counted:
        answer.output_tokens, answer.output_tokens_source = least, "token_ids"
    elif at_limit and (answer.usage_tokens == ABSENT or not answer.stream or least > limit_tokens):
        answer.output_tokens, answer.output_tokens_source = limit_tokens, "limit"
    else:
        answer.output_tokens, answer.output_tokens_source = least, "events"


def _edges(total: int, empty: list[int]) -> tuple[int, int]:
    """How many empty events stand before the first text and after the last; one event is always left."""
    lead = 0
    while lead < len(empty) and empty[lead] == lead:
        lead += 1
    if lead == total:
        return total - 1, 0
    trail = 0
    while trail < len(empty) and empty[-1 - trail] == total - 1 - trail:
        trail += 1
    return lead, trail


def _spare(events: list[tuple[int, int]], lead: int, trail: int, usage: int) -> tuple[int, int]:
    """How many of the empty events at the edges are no tokens: all that usage leaves no token for."""
    none_lead = none_trail = 0  # of those that say so themselves
    while none_trail < trail and events[-1 - none_trail][1] == 0:
        none_trail += 1
    while none_lead < lead and events[none_lead][1] == 0:
        none_lead += 1
    spare = len(events) - max(usage, 1) if usage != ABSENT else 0
    if not none_lead + none_trail < spare <= lead + trail:
        return none_lead, none_trail
    none_trail = max(none_trail, min(trail, spare - none_lead))
    return spare - none_trail, none_trail


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _COUNT_LIMIT else ABSENT


def _ns(milliseconds: Any) -> int:
    known = type(milliseconds) in (int, float) and 0 <= milliseconds < _COUNT_LIMIT / 1e6
    return round(milliseconds * 1e6) if known else ABSENT


def _error_text(error: object) -> str:
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return bounded(error if isinstance(error, str) else orjson.dumps(error)) or "an error event"


def _not_an_object(data: bytes, tokens: int) -> str:
    """What is wrong with an event, and where in the stream it stood."""
    why = "is not a JSON object"
    try:
        data.decode()
    except UnicodeDecodeError as error:
        why = f"is not UTF-8 (byte {data[error.start]:#04x} at {error.start})"
    else:
        if found := _NO_NUMBER.search(data):
            why = f"holds {found[1].decode()}, which JSON does not have"
    return bounded(f"an event {why}, after {tokens} tokens: {bounded(data)}")
