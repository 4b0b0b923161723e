"""A clock that jumps from timer to timer: ten hours in a second, with no drift of its own to hide anybody else's."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from loadgen.send.clock import Timer


class FakeClock:
    def __init__(self) -> None:
        self.time_ns = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = 0

    def start(self, t0_ns: int | None = None) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        self._serial += 1
        heappush(self._heap, (at_ns, self._serial, timer))
        return timer

    def close(self) -> None:
        self._heap.clear()

    def run(self, until_ns: int) -> None:
        """Fire all timers up to an instant, in order, and stand at that instant then."""
        while self._heap and self._heap[0][0] <= until_ns:
            at_ns, _, timer = heappop(self._heap)
            if timer.callback is not None:
                self.time_ns = max(self.time_ns, at_ns)
                timer.callback()
        self.time_ns = max(self.time_ns, until_ns)
