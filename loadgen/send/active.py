"""One request on its way: the stamps the sender takes, the bytes it keeps, and the seam to the transports."""

from __future__ import annotations

from typing import Any, Final, Protocol

from analysis.schema import ABSENT
from analysis.text import bounded
from loadgen.common import defaults
from loadgen.send.openai import HttpEnd, ParsedResponse
from loadgen.send.reader import AnswerReader

__all__ = ["HEADERS_TOO_LONG", "READ_AT_BYTES", "ActiveRequest", "BodySource", "CompletionHandler", "Held", "Transport"]

HEADERS_TOO_LONG: Final = f"headers of more than {defaults.ANSWER_HEADERS_BYTES >> 10} KiB"
READ_AT_BYTES: Final = 16 * 1024  # of a long answer are read at once: it keeps little, and its end blocks nobody
_REFUSAL_PARTS: Final = 8  # of an answer that is not read are kept to be shown


class Held:
    """Bytes of all long answers together that are kept: of documents and of events that are not over."""

    __slots__ = ("bytes", "limit")

    def __init__(self, limit: int = defaults.ANSWERS_TOGETHER_BYTES) -> None:
        self.bytes = 0
        self.limit = limit


class ActiveRequest:
    """The mutable state of one request. Instants in ns since t0, -1 for what has not happened (method, section 2).

    The transport writes `handed_over`, `connect_ns`, `sent_ns` and `retry_after`, calls `opened` and `received`, and
    every `READ_AT_BYTES` of a long answer `grown`; it ends the request with `CompletionHandler.ended`, `bad`
    where `grown` says why. The dispatcher owns everything else.

    Of a body, `parts` and `stamps` are what the reader has not taken. It takes them eagerly up to the first token, then
    when the dispatcher asks, when much has come, and at the end.
    """

    __slots__ = (
        "admitted_ns",
        "batched",
        "body",
        "certain_miss",
        "cohort",
        "connect_ns",
        "decided",
        "end",
        "ended_ns",
        "error",
        "first_token_ns",
        "handed_over",
        "handle",
        "headers_ns",
        "held",
        "index",
        "input_tokens_planned",
        "lagging",
        "output_tokens_planned",
        "parts",
        "prefix_tokens_planned",
        "reader",
        "released_ns",
        "retry_after",
        "scheduled_ns",
        "sent_ns",
        "stamps",
        "status",
        "target",
        "together",
        "watching",
    )

    def __init__(
        self,
        index: int,
        scheduled_ns: int,
        *,
        target: int = 0,
        cohort: bool = False,
        together: Held | None = None,
    ) -> None:
        self.index = index
        self.scheduled_ns = scheduled_ns
        self.target = target
        self.cohort = cohort
        self.input_tokens_planned = self.output_tokens_planned = self.prefix_tokens_planned = ABSENT
        self.released_ns = self.admitted_ns = self.sent_ns = self.headers_ns = ABSENT
        self.first_token_ns = self.ended_ns = ABSENT
        self.connect_ns = 0
        self.handed_over = False  # the network was asked to take it: bytes written, or a connect begun for it
        self.status = ABSENT
        self.retry_after = ""  # what a server that rejects says of when to come back; nobody does
        self.body = b""  # the request's
        self.parts: list[bytes] = []  # of the response body
        self.stamps: list[int] = []  # stamps[i]: the read that brought parts[i]
        self.reader: AnswerReader | None = None  # of a 200
        self.watching = False  # for the first token
        self.held = 0  # bytes that `together` counts
        self.together = together or Held()
        self.end: HttpEnd = ""
        self.error = ""
        self.batched = False  # after its first token it was read once a period
        self.lagging = False  # it is now: the transport may have more of it
        self.decided = False  # counted among the decided cohort
        self.certain_miss = ""
        self.handle: Any = None  # the transport's own

    @property
    def answer_limit_bytes(self) -> int:
        """How long the answer may be, all that HTTP needs included."""
        return defaults.ANSWER_BASE_BYTES + defaults.ANSWER_TOKEN_BYTES * max(self.output_tokens_planned, 0)

    def opened(self, at_ns: int, status: int, content_type: str) -> None:
        """Response headers are complete."""
        self.headers_ns = at_ns
        self.status = status
        if status == 200:
            self.reader = AnswerReader(content_type)
            self.watching = True

    def received(self, chunk: bytes, at_ns: int) -> None:
        """What a read, stamped `at_ns`, brought of the response body."""
        self.parts.append(chunk)
        self.stamps.append(at_ns)
        if self.watching:
            self.read()

    def read(self) -> None:
        """Have the reader take what it can, and see whether a token is in it."""
        reader = self.reader
        if reader is None:
            return
        reader.read(self.parts, self.stamps)
        if self.watching:
            self.first_token_ns = reader.answer.first_token_ns
            self.watching = self.first_token_ns < 0 and not reader.one_document

    def grown(self, size: int) -> str:
        """A long answer has come to `size` bytes; why no more of it can be taken, or ""."""
        if size > self.answer_limit_bytes:
            limit = self.answer_limit_bytes / (1 << 20)
            return f"an answer of more than {limit:.3g} MiB for {self.output_tokens_planned} tokens"
        if self.reader is None:
            del self.parts[_REFUSAL_PARTS:], self.stamps[_REFUSAL_PARTS:]
            return ""
        self.read()
        self._hold(size if self.parts else self.reader.open_bytes)
        if self.together.bytes > self.together.limit:
            return f"all answers together hold more than {self.together.limit >> 20} MiB"
        return ""

    def finish(self, end: HttpEnd) -> ParsedResponse | None:
        """The answer of a 200, read to its end; what it was read from is let go."""
        answer = None
        if self.reader is not None:
            answer = self.reader.finish(
                self.parts, self.stamps, end=end, end_ns=self.ended_ns, limit_tokens=self.output_tokens_planned
            )
        self.reader = None
        self.parts, self.stamps, self.body = [], [], b""
        self._hold(0)
        return answer

    def refusal(self) -> str:
        """What an answer other than 200 said, fit for a table."""
        said = bounded(b"".join(self.parts))
        return bounded(f"Retry-After {self.retry_after}: {said}") if self.retry_after else said

    def _hold(self, size: int) -> None:
        self.together.bytes -= self.held - size
        self.held = size


class CompletionHandler(Protocol):
    """Receives the end of an active request."""

    def ended(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        """Called once per request, by its transport; never for a cancelled one."""
        ...


class Transport(Protocol):
    """The seam to the network; `start` and `cancel` are called on the loop and never wait."""

    @property
    def opened_peak(self) -> int | None:
        """Connections that carried a request when the operating system refused another one; None if it never did."""
        ...

    async def open(self) -> None:
        """Resolve names and read certificates, before t0. Raises `TargetUnreachable` or `UsageError`."""
        ...

    async def prewarm(self, count: int) -> None:
        """Open `count` connections to each URL, just before t0. Raises `TargetUnreachable` or `UsageError`."""
        ...

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """Send `active.body` now. `handler` is called later, never from within this call."""
        ...

    def cancel(self, active: ActiveRequest) -> None:
        """Drop the request and its connection; `handler` is not called."""
        ...

    def catch_up(self, active: ActiveRequest) -> None:
        """Read what has come for a `lagging` request; `handler` is called here if it ends by that."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class BodySource(Protocol):
    """Request bodies in schedule order, encoded ahead of the sender (`loadgen.plan.bodies.BodyRing`)."""

    starved: int  # bodies that were not ready when they were taken

    def fill(self, now_ns: int, budget_ns: int) -> int:
        """Encode ahead for at most `budget_ns`; how many bodies that were."""
        ...

    def take(self, index: int) -> bytes:
        """The body of request `index`, whole: model and extras are in it."""
        ...
