"""A transport in the fake clock's time: answers after a given time to the first token and per token."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.send.flight import Flight, Landing
from loadgen.send.openai import HttpEnd
from tests.fakes.clock import FakeClock
from tests.fakes.plans import MS
from tests.fakes.streams import completion_events


class FakeTransport:
    """`service(index)` gives (first token, later tokens) in ms after the send; None: no answer, ever."""

    def __init__(
        self, clock: FakeClock, service: Callable[[int], tuple[float, float] | None] = lambda _: (1.0, 1.0)
    ) -> None:
        self.clock = clock
        self.service = service
        self.started: list[tuple[int, int]] = []
        self.cancelled: list[int] = []
        self.refused: set[int] = set()
        self.opened_peak: int | None = None
        self._gone: set[int] = set()

    async def open(self) -> None: ...

    async def prewarm(self, count: int) -> None: ...

    async def close(self) -> None: ...

    def start(self, flight: Flight, landing: Landing) -> None:
        now = self.clock.now_ns()
        self.started.append((flight.index, now))
        flight.handed_over = True
        if flight.index in self.refused:
            self.clock.call_at(now, lambda: landing.ended(flight, "connect", now, "Connection refused"))
            return
        flight.sent_ns = now
        times = self.service(flight.index)
        if times is None:
            return
        first, later = times
        pieces = completion_events(flight.output_tokens_planned)
        for number, piece in enumerate(pieces):
            at_ns = now + round((first + later * min(number, flight.output_tokens_planned - 1)) * MS)
            self.clock.call_at(at_ns, self._write(flight, landing, piece, last=number == len(pieces) - 1))

    def _write(self, flight: Flight, landing: Landing, piece: bytes, *, last: bool) -> Callable[[], None]:
        def write() -> None:
            if flight.index in self._gone:
                return
            now = self.clock.now_ns()
            if flight.headers_ns < 0:
                flight.opened(now, 200, "text/event-stream")
            flight.received(piece, now)
            if last:
                self.finish(flight, landing, "complete")

        return write

    def finish(self, flight: Flight, landing: Landing, end: HttpEnd) -> None:
        self._gone.add(flight.index)
        landing.ended(flight, end, self.clock.now_ns())

    def cancel(self, flight: Flight) -> None:
        self.cancelled.append(flight.index)
        self._gone.add(flight.index)
