"""The fixed-concurrency baseline: N requests in flight, the next one begins when one ends. Not an open loop.

The instant at which a request is released is its scheduled instant here, so its client queue is about 0 by
construction: that is the very flaw of a closed loop, and why its results are labelled as such and never enter a search.
"""

from __future__ import annotations

from typing import Any

from loadgen.send.active import ActiveRequest
from loadgen.send.dispatch import Dispatcher, guarded
from loadgen.send.openai import HttpEnd

__all__ = ["ClosedDispatcher"]


class ClosedDispatcher(Dispatcher):
    """A dispatcher that ignores the schedule's instants and takes only its requests, in order, while there are any."""

    def __init__(self, *, concurrency: int, **dispatcher: Any) -> None:
        super().__init__(**dispatcher)
        self._concurrency = concurrency
        self.cohort_due = 0  # counted as they are released

    def stop(self) -> None:
        """Stop the load now; nothing is begun to be cancelled at once."""
        self._concurrency = 0
        super().stop()

    def ended(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        """A request ended: the next one begins, in a call of its own."""
        super().ended(active, end, at_ns, error)
        if self.stop_ns < 0:
            self._clock.call_at(self._clock.now_ns(), self._refill)

    @guarded
    def _refill(self) -> None:
        # the wake-up that is armed already is soon enough for the new one: deadlines come in order of release
        if self.stop_ns < 0:
            self._release_due(self._clock.now_ns())

    def _next_arrival_ns(self) -> int:
        return 1 << 62

    def _release_due(self, now_ns: int) -> None:
        while len(self._in_flight) < self._concurrency and self._position < len(self._index):
            index = self._index[self._position]
            self._position += 1
            self._release(index, now_ns)
            self.cohort_due += self._window_start_ns <= now_ns < self._window_end_ns
