"""What an OpenAI-compatible server answered, and which outcome that is, without I/O.

Sources of the rules: method, section 2 (what a token event is, where O comes from) and section 3 (outcomes); `reader`
applies the former. Where section 3 leaves room, this module decides:

- *Proper end* of a stream: the HTTP message is complete (terminal chunk or content-length) and `[DONE]` came, or, for
  servers that never send `[DONE]`, a finish_reason came. A body that only the closing of the connection ends cannot be
  distinguished from a death, so there `[DONE]` is required (a blank line behind it is not).
- An error event, or a finish_reason that is none of the good ones, makes a `stream_error` even if `[DONE]` follows or
  the connection breaks afterwards.
- Statuses that section 3 does not name (other 4xx, redirects, 2xx without 200) are `bad_response`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from analysis.schema import ABSENT
from analysis.text import bounded

__all__ = ["GOOD_FINISH", "HttpEnd", "ParsedResponse", "outcome_of"]

HttpEnd = Literal["complete", "eof", "cut", "lost", "bad", "connect", "timeout", "cancelled", ""]
# complete: terminal chunk or content-length reached · eof: closed, in a body that only closing delimits
# cut: closed before the end that was announced · lost: reset, or closed before any answer · bad: not HTTP, or too long
# connect: never connected · timeout, cancelled: by us · "": still open

GOOD_FINISH: Final = frozenset({"stop", "length", "tool_calls", "function_call"})
_REJECTED: Final = frozenset({429, 503})
_WORKLOAD: Final = frozenset({400, 401, 403, 404, 413, 422})


@dataclass(slots=True)
class ParsedResponse:
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
    usage_tokens: int = ABSENT  # completion tokens as its usage says; not `output_tokens` where that is contradicted
    cached_tokens: int = ABSENT
    server_queue_ns: int = ABSENT
    server_prefill_ns: int = ABSENT
    server_decode_ns: int = ABSENT
    first_read_events: int = 0  # token events in the read that brought the first one
    first_read_tokens: int = ABSENT  # k of TPOT: their tokens, where the server says how many, else as many as events
    token_reads: int = 0

    @property
    def events_per_read(self) -> float:
        """Token events in a socket read that brought any, on average; 0 without one."""
        return len(self.events) / self.token_reads if self.token_reads else 0.0

    @property
    def usage_doubted(self) -> bool:
        """Whether usage says another number of output tokens than what came: `output_tokens` is not from it then."""
        return self.usage_tokens != ABSENT and self.output_tokens_source != "usage"

    @property
    def first_token_ns(self) -> int:
        """Stamp of the first token event, -1 if there was none."""
        return self.events[0][0] if self.events else ABSENT

    @property
    def last_token_ns(self) -> int:
        """Stamp of the last token event, -1 if there was none."""
        return self.events[-1][0] if self.events else ABSENT


def outcome_of(
    answer: ParsedResponse | None, *, end: HttpEnd, status: int, error: str, forced_tokens: int | None
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
    if answer.finish_reason and answer.finish_reason not in GOOD_FINISH:
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
        return "rejected", bounded(text)
    if status >= 500:
        return "http_error", bounded(text)
    if status in _WORKLOAD:
        return "workload_error", bounded(text)
    if status == 200:  # headers came, the body is not known: only if the connection broke in between
        return ("connection_lost" if end == "lost" else "truncated"), error
    return "bad_response", bounded(text)
