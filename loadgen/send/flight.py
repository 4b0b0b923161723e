"""One request on its way: the stamps the sender takes, the bytes it keeps, and the seam to the transports."""

from __future__ import annotations

from typing import Any, Protocol

from analysis.schema import ABSENT
from loadgen.send.openai import FirstTokenWatch, HttpEnd, bounded

__all__ = ["BodySource", "Flight", "Landing", "Transport"]


class Flight:
    """The mutable state of one request. Instants in ns since t0, -1 for what has not happened (method, section 2).

    The transport writes `handed_over`, `connect_ns`, `sent_ns`, `headers_ns`, `status`, `content_type`, `parts`,
    `stamps`, and ends the flight with `Landing.ended`; the dispatcher owns everything else.
    """

    __slots__ = (
        "admitted_ns",
        "body",
        "certain_miss",
        "cohort",
        "connect_ns",
        "content_type",
        "decided",
        "end",
        "ended_ns",
        "error",
        "first_token_ns",
        "handed_over",
        "handle",
        "headers_ns",
        "index",
        "input_tokens_planned",
        "output_tokens_planned",
        "parts",
        "prefix_tokens_planned",
        "released_ns",
        "retry_after",
        "scheduled_ns",
        "sent_ns",
        "stamps",
        "status",
        "target",
        "watch",
    )

    def __init__(self, index: int, scheduled_ns: int, *, target: int = 0, cohort: bool = False) -> None:
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
        self.content_type = ""
        self.retry_after = ""  # what a server that rejects says of when to come back; nobody does
        self.body = b""  # the request's
        self.parts: list[bytes] = []  # of the response body
        self.stamps: list[int] = []  # stamps[i]: the read that brought parts[i]
        self.watch: FirstTokenWatch | None = None  # looks for the first token; None before the headers and after it
        self.end: HttpEnd = ""
        self.error = ""
        self.decided = False  # counted among the decided cohort
        self.certain_miss = ""
        self.handle: Any = None  # the transport's own

    def opened(self, at_ns: int, status: int, content_type: str) -> None:
        """Response headers are complete."""
        self.headers_ns = at_ns
        self.status = status
        self.content_type = content_type
        self.watch = FirstTokenWatch() if status == 200 and "json" not in content_type else None

    def refusal(self) -> str:
        """What an answer other than 200 said, fit for a table."""
        said = bounded(b"".join(self.parts[:8]))
        return bounded(f"Retry-After {self.retry_after}: {said}") if self.retry_after else said

    def received(self, chunk: bytes, at_ns: int) -> None:
        """A piece of the response body, from the read stamped `at_ns`."""
        self.parts.append(chunk)
        self.stamps.append(at_ns)
        if self.watch is not None:
            found = self.watch.feed(chunk)
            if found is not False:
                self.watch = None
                if found:
                    self.first_token_ns = at_ns


class Landing(Protocol):
    """Who is told that a flight is over."""

    def ended(self, flight: Flight, end: HttpEnd, at_ns: int, error: str = "") -> None:
        """Called once a flight, by its transport; never for one that was cancelled."""
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

    def start(self, flight: Flight, landing: Landing) -> None:
        """Send `flight.body` now. `landing` is told later, never from within this call."""
        ...

    def cancel(self, flight: Flight) -> None:
        """Drop the request and its connection; `landing` is not told."""
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
