"""What an OpenAI-compatible server answered, without I/O: body bytes with read stamps in, tokens and outcome out.

Sources of the rules: method, section 2 (what a token event is, where O comes from) and section 3 (outcomes). Where
those leave room, this module decides:

- *Proper end* of a stream: the HTTP message is complete (terminal chunk or content-length) and `[DONE]` came, or, for
  servers that never send `[DONE]`, a finish_reason came. A body that only the closing of the connection ends cannot be
  told from a death, so there `[DONE]` is required.
- An error event, or a finish_reason that is none of the good ones, makes a `stream_error` even if `[DONE]` follows or
  the connection breaks afterwards.
- A plain JSON answer is read as one token event at the read that completed it, whether or not a stream was asked for.
- Without usage and token ids, finish_reason `length` says that O is the limit that was sent (source `limit`). Else the
  count of events stands in for O (source `events`): events are not tokens, so that is a guess.
- Statuses that section 3 does not name (other 4xx, redirects, 2xx without 200) are `bad_response`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Literal

import orjson

from analysis.schema import ABSENT
from loadgen.send.sse import split_events

__all__ = ["Answer", "FirstTokenWatch", "HttpEnd", "bounded", "outcome_of", "read_answer"]

HttpEnd = Literal["complete", "eof", "cut", "lost", "bad", "connect", "timeout", "cancelled", ""]
# complete: terminal chunk or content-length reached · eof: closed, in a body that only closing delimits
# cut: closed before the end that was announced · lost: reset, or closed before any answer · bad: not HTTP, or too long
# connect: never connected · timeout, cancelled: by us · "": still open

ERROR_CHARS: Final = 200
_GOOD_FINISH: Final = frozenset({"stop", "length", "tool_calls", "function_call"})
_REJECTED: Final = frozenset({429, 503})
_WORKLOAD: Final = frozenset({400, 401, 403, 404, 413, 422})
_WATCH_LIMIT: Final = 1 << 20  # an event still open after this many bytes is left to the parse at the end
_AROUND_TEXT: Final = re.compile(rb'(.*?"(?:text|content|reasoning|reasoning_content)": ?")[^"\\]+(".*)', re.DOTALL)
_PLAIN_TEXT: Final = re.compile(rb"[ !#-\[\]-~]*")  # the inside of a JSON string in ASCII without escapes
_NO_NUMBER: Final = re.compile(rb"[:\[,]\s*(-?(?:NaN|Infinity))\b")
_COUNT_LIMIT: Final = 1 << 53  # a larger "count" is noise, and would not fit the table


def bounded(text: str | bytes) -> str:
    """At most 200 characters, control characters escaped: fit for a table, a terminal and a log."""
    if isinstance(text, bytes):
        text = text[: 4 * ERROR_CHARS].decode("utf-8", "replace")
    text = text[:ERROR_CHARS]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text[:ERROR_CHARS]


@dataclass(slots=True)
class Answer:
    """What a body said. Instants in ns since t0, counts -1 where the server said nothing."""

    events: list[tuple[int, int]] = field(default_factory=list)  # token events: (read stamp, tokens or -1)
    finish_reason: str = ""
    done: bool = False  # [DONE] came
    stream: bool = True  # server-sent events, not one JSON document
    error: str = ""  # text of an error event
    bad: str = ""  # why the body is not an answer at all
    input_tokens: int = ABSENT
    output_tokens: int = ABSENT
    output_tokens_source: str = ""
    cached_tokens: int = ABSENT
    server_queue_ns: int = ABSENT
    server_prefill_ns: int = ABSENT
    server_decode_ns: int = ABSENT
    first_event_tokens: int = ABSENT  # k of TPOT
    token_reads: int = 0

    @property
    def first_token_ns(self) -> int:
        """Stamp of the first token event, -1 if there was none."""
        return self.events[0][0] if self.events else ABSENT

    @property
    def last_token_ns(self) -> int:
        """Stamp of the last token event, -1 if there was none."""
        return self.events[-1][0] if self.events else ABSENT


class FirstTokenWatch:
    """Tells, while a stream arrives, when its first token event is complete: the same rule as the parse at the end."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = b""

    def feed(self, chunk: bytes) -> bool | None:
        """True at the first token event, None when there is no use in asking again, else False."""
        body = self._open + chunk
        events = split_events(body, flush=False)
        for _, _, data in events:
            try:
                document = orjson.loads(data)
            except orjson.JSONDecodeError:
                continue
            if isinstance(document, dict) and _is_token_event(document.get("choices"), first=True):
                return True
        if len(body) > _WATCH_LIMIT:
            return None
        self._open = body[events[-1][0] :] if events else body
        return False


def read_answer(
    parts: list[bytes], stamps: list[int], *, content_type: str, complete: bool, limit_tokens: int = ABSENT
) -> Answer:
    """Parse a body. `stamps[i]` is the stamp of the read that brought `parts[i]`; `complete`: nothing is missing.

    `limit_tokens`: the largest output that was asked for.
    """
    body = b"".join(parts)
    head = body[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if "event-stream" in content_type or head.startswith((b"data:", b"event:", b":", b"id:", b"retry:")):
        answer = _read_stream(body, parts, stamps, complete=complete)
        _count_output(answer, limit_tokens)
        return answer
    answer = Answer(stream=False)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer.bad = "an empty answer" if not body else f"neither a stream nor JSON: {bounded(body)}"
        return answer
    if not isinstance(document, dict):
        answer.bad = f"not an answer object: {bounded(body)}"
        return answer
    _Fold(answer).add(document, stamps[-1], b"")
    _count_output(answer, limit_tokens)
    return answer


def _read_stream(body: bytes, parts: list[bytes], stamps: list[int], *, complete: bool) -> Answer:
    """Nearly all events of a stream differ from the one before in their text alone, and are not worth their JSON.

    Once an event is known that says nothing but its text, those that begin and end with the same bytes and have another
    plain JSON string between them are known too: the same document but for that string, which decides nothing.
    """
    answer = Answer()
    events = split_events(body, flush=complete)
    ends = list(accumulate(map(len, parts)))
    fold, part = _Fold(answer), 0
    add_token = fold.add_token
    before, after = b"", b""  # the bytes around the text, once known
    for end, name, data in events:
        while ends[part] < end:
            part += 1
        if (
            before
            and data.startswith(before)
            and data.endswith(after)
            and _PLAIN_TEXT.fullmatch(data, len(before), len(data) - len(after))
            and not name
        ):
            add_token(stamps[part], ABSENT)
        elif data == b"[DONE]":
            answer.done = True
        else:
            try:
                document = orjson.loads(data)
            except orjson.JSONDecodeError:
                document = None
            if type(document) is not dict:
                answer.bad = answer.bad or _not_an_object(data, len(answer.events))
            elif fold.add(document, stamps[part], name) and (match := _AROUND_TEXT.fullmatch(data)) is not None:
                before, after = match.groups()
    if complete and not events:
        answer.bad = f"a stream without events: {bounded(body)}" if body else "an empty answer"
    return answer


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


class _Fold:
    """Folds a body's JSON documents into an `Answer`, in order."""

    __slots__ = ("answer", "last_stamp", "reported")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.last_stamp = ABSENT
        self.reported = 0  # completion tokens of the last usage

    def add(self, document: dict[str, Any], at_ns: int, name: bytes) -> bool:
        """True for a later token event that said nothing else: one that differs only in its text is alike."""
        answer = self.answer
        choices, usage = document.get("choices"), document.get("usage")
        if document.get("error") or name == b"error" or document.get("object") == "error":
            answer.error = answer.error or _error_text(document)
            return False
        fresh = ABSENT if usage is None else self._add_usage(usage)
        if (metrics := document.get("metrics")) is not None:
            self._add_metrics(metrics)
        if not choices:
            return False
        if type(choices) is not list or type(choices[0]) is not dict:
            answer.bad = answer.bad or "choices is not a list of objects"
            return False
        first = not answer.events
        if not _is_token_event(choices, first=first):
            return False
        alike, ids = not first and usage is None, 0
        for choice in choices:
            if type(choice) is not dict:
                continue
            if reason := choice.get("finish_reason"):
                alike = False
                if not answer.finish_reason or answer.finish_reason in _GOOD_FINISH:
                    answer.finish_reason = bounded(str(reason))
            token_ids = choice.get("token_ids")
            if type(token_ids) is list:
                alike, ids = False, ids + len(token_ids)
                fresh = ids
        if first:
            answer.first_event_tokens = max(fresh, 1)
        self.add_token(at_ns, fresh)
        return alike

    def add_token(self, at_ns: int, tokens: int) -> None:
        answer = self.answer
        answer.events.append((at_ns, tokens))
        if at_ns != self.last_stamp:
            self.last_stamp = at_ns
            answer.token_reads += 1

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
        fresh, self.reported = max(completion - self.reported, 0), completion
        answer.output_tokens, answer.output_tokens_source = completion, "usage"
        return fresh

    def _add_metrics(self, metrics: Any) -> None:
        """vLLM's times of one request (--enable-per-request-metrics); its "time to first token" begins at the start."""
        if type(metrics) is not dict:
            return
        answer = self.answer
        answer.server_queue_ns = _ns(metrics.get("queue_time_ms"))
        answer.server_prefill_ns = _ns(metrics.get("time_to_first_token_ms"))
        answer.server_decode_ns = _ns(metrics.get("generation_time_ms"))


def _is_token_event(choices: Any, *, first: bool) -> bool:
    """Method, section 2: any choice event except a role-only opener; after the first token every one is a token."""
    if type(choices) is not list or not choices:
        return False
    return not first or not all(map(_is_opener, choices))


def _is_opener(choice: Any) -> bool:
    if type(choice) is not dict or choice.get("finish_reason") or choice.get("token_ids"):
        return False
    delta = choice.get("delta")
    return type(delta) is dict and bool(delta.get("role")) and not any(v for k, v in delta.items() if k != "role")


def _count_output(answer: Answer, limit_tokens: int) -> None:
    """O where no usage told it: token ids if all events have them, else the limit where it was reached, else events."""
    if answer.output_tokens_source or not answer.events:
        return
    counts = [tokens for _, tokens in answer.events]
    if min(counts) >= 0:
        answer.output_tokens, answer.output_tokens_source = sum(counts), "token_ids"
    elif answer.finish_reason == "length" and limit_tokens > 0:
        answer.output_tokens, answer.output_tokens_source = limit_tokens, "limit"
    else:
        answer.output_tokens, answer.output_tokens_source = len(counts), "events"


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _COUNT_LIMIT else ABSENT


def _ns(milliseconds: Any) -> int:
    known = type(milliseconds) in (int, float) and 0 <= milliseconds < _COUNT_LIMIT / 1e6
    return round(milliseconds * 1e6) if known else ABSENT


def _error_text(document: dict[str, Any]) -> str:
    error = document.get("error") or document
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return bounded(error if isinstance(error, str) else orjson.dumps(error)) or "an error event"


def outcome_of(
    answer: Answer | None, *, end: HttpEnd, status: int, error: str, forced_tokens: int | None
) -> tuple[str, str]:
    """Outcome and error text of a request (method, section 3).

    `answer` is the parsed body of a 200 (None otherwise), `error` what the transport or the body of another status
    said, `forced_tokens` the output length that was forced, if it was. A cancelled request is `aborted` here; the
    dispatcher, which knows the cohort, makes it `censored`.
    """
    if end in ("connect", "timeout", "cancelled"):
        return {"connect": "connect_error", "timeout": "timeout", "cancelled": "aborted"}[end], error
    if end == "bad":
        return "bad_response", error
    if answer is None:
        return _outcome_of_status(status, end, error)
    if answer.error:
        return "stream_error", answer.error
    if answer.finish_reason and answer.finish_reason not in _GOOD_FINISH:
        return "stream_error", f"finish_reason {answer.finish_reason}"
    if end == "lost":
        return "connection_lost", error
    whole = end == "complete" or (end == "eof" and (answer.done or not answer.stream))
    if answer.bad and (whole or answer.stream):
        return "bad_response", answer.bad
    if not whole:
        return "truncated", error or "the connection closed before the end of the answer"
    if not answer.events:
        return "bad_response", "an answer without tokens"
    if not answer.finish_reason:
        return "truncated", "the answer ended without a finish_reason"
    if forced_tokens is not None and answer.output_tokens < forced_tokens:
        return "short_output", f"{answer.output_tokens} of {forced_tokens} forced tokens ({answer.finish_reason})"
    return "ok", ""


def _outcome_of_status(status: int, end: HttpEnd, error: str) -> tuple[str, str]:
    if status <= 0:  # no answer at all
        return "connection_lost", error or "the connection closed before an answer"
    text = f"HTTP {status}" + (f": {error}" if error else "")
    if status in _REJECTED:
        return "rejected", text[:ERROR_CHARS]
    if status >= 500:
        return "http_error", text[:ERROR_CHARS]
    if status in _WORKLOAD:
        return "workload_error", text[:ERROR_CHARS]
    if status == 200:  # headers came, the body is not known: only if the connection broke in between
        return ("connection_lost" if end == "lost" else "truncated"), error
    return "bad_response", text[:ERROR_CHARS]
