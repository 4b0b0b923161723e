"""Reads an OpenAI-compatible server's answer: body bytes with read stamps in, tokens out, without I/O.

Theory of operation. One reader a request, and one rule: what the dispatcher wants to know of a request in flight (has a
token come, has it finished) and what is recorded of it in the end come from the same reader. It takes the bytes as
they are given to it, at once or piece by piece, and never looks at one twice. An event is complete when its blank line
or the end of the body came. Where the reader cannot know yet whether a token is there, it says so (`unsure`,
`may_be_finished`), and nobody may take that for a miss.

Method, section 2, says what a token event is. What it leaves open is decided here:

- A body is a stream if its content type says so, or if it begins like one whatever its content type.
- A plain JSON answer is one token event at the read that completed it, whether or not a stream was asked for.
- How many tokens there were where usage, events and the limit disagree: `settle`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import orjson

from analysis.schema import ABSENT
from analysis.text import bounded
from loadgen.send.fold import Fold
from loadgen.send.openai import HttpEnd, ParsedResponse, outcome_of
from loadgen.send.settle import settle
from loadgen.send.sse import Event, Splitter

__all__ = ["AnswerReader", "Exchange", "read_answer", "read_exchange"]

_HEAD_BYTES: Final = 64  # of a body show what it is
_FIELDS: Final = (b"data:", b"event:", b":", b"id:", b"retry:")
AROUND_TEXT: Final = re.compile(rb'(.*?"(?:text|content|reasoning|reasoning_content)": ?")[^"\\]+(".*)', re.DOTALL)
_PLAIN_TEXT: Final = re.compile(rb"[ !#-\[\]-~]*")  # the inside of a JSON string in ASCII without escapes
_NO_NUMBER: Final = re.compile(rb"[:\[,]\s*(-?(?:NaN|Infinity))\b")
_LEARNS_WITHIN: Final = 8  # token events; a stream whose events are not alike by then is read as much as came at once


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
        self._fold = Fold(self.answer)
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
        settle(answer, self._fold, limit_tokens)
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
