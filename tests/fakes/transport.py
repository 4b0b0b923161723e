"""A transport in the fake clock's time: answers after a given time to the first token and per token."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.send.active import ActiveRequest, CompletionHandler
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
        self.open_requests: dict[int, ActiveRequest] = {}
        self.cancelled: list[int] = []
        self.refused: set[int] = set()
        self.opened_peak: int | None = None
        self._gone: set[int] = set()

    async def open(self) -> None: ...

    async def prewarm(self, count: int) -> None: ...

    async def close(self) -> None: ...

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        now = self.clock.now_ns()
        self.started.append((active.index, now))
        active.handed_over = True
        self.open_requests[active.index] = active
        if active.index in self.refused:
            self.clock.call_at(now, lambda: handler.ended(active, "connect", now, "Connection refused"))
            return
        active.sent_ns = now
        times = self.service(active.index)
        if times is None:
            return
        first, later = times
        pieces = completion_events(active.output_tokens_planned)
        for number, piece in enumerate(pieces):
            at_ns = now + round((first + later * min(number, active.output_tokens_planned - 1)) * MS)
            self.clock.call_at(at_ns, self.written(active, handler, piece, last=number == len(pieces) - 1))

    def written(
        self, active: ActiveRequest, handler: CompletionHandler, piece: bytes, *, last: bool
    ) -> Callable[[], None]:
        def write() -> None:
            if active.index in self._gone:
                return
            now = self.clock.now_ns()
            if active.headers_ns < 0:
                active.opened(now, 200, "text/event-stream")
            active.received(piece, now)
            if last:
                self.finish(active, handler, "complete")

        return write

    def finish(self, active: ActiveRequest, handler: CompletionHandler, end: HttpEnd) -> None:
        self._gone.add(active.index)
        self.open_requests.pop(active.index, None)
        handler.ended(active, end, self.clock.now_ns())

    def cancel(self, active: ActiveRequest) -> None:
        self.cancelled.append(active.index)
        self._gone.add(active.index)


class LaggingTransport(FakeTransport):
    """What comes after the first token lies unread, each piece with its stamp, until the dispatcher asks for it."""

    def __init__(
        self, clock: FakeClock, service: Callable[[int], tuple[float, float] | None] = lambda _: (1.0, 1.0)
    ) -> None:
        super().__init__(clock, service)
        self.unread: dict[int, list[tuple[bytes, int, bool]]] = {}
        self._handlers: dict[int, CompletionHandler] = {}

    def written(
        self, active: ActiveRequest, handler: CompletionHandler, piece: bytes, *, last: bool
    ) -> Callable[[], None]:
        now_write = super().written(active, handler, piece, last=last)

        def write() -> None:
            if active.first_token_ns < 0:
                now_write()
                active.lagging = active.batched = True
                self._handlers[active.index] = handler
            else:
                self.unread.setdefault(active.index, []).append((piece, self.clock.now_ns(), last))

        return write

    def catch_up(self, active: ActiveRequest) -> None:
        for piece, at_ns, last in self.unread.pop(active.index, []):
            active.received(piece, at_ns)
            if last:
                self._gone.add(active.index)
                self._handlers[active.index].ended(active, "complete", at_ns)
