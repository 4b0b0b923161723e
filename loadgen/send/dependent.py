"""The dispatcher of dependent sessions: a turn waits for the previous one to be over. Semi-open, not an open loop.

Theory of operation. The first turn of a session, and every request outside one, leaves at its own instant as usual.
A later turn whose previous turn is not over by then is parked, with its body, and leaves in the moment that one ends,
however it ends. That moment is its scheduled instant then (as in a closed loop): the client was not late, the session
was. How long it was parked follows from the plan, which has the recorded instant. A turn that is parked when the load
stops was never due.

So the server's slowness reduces the load it is offered, which is why nothing measured this way is a capacity (method,
section 11).
"""

from __future__ import annotations

from typing import Any

from loadgen.send.active import ActiveRequest, BodySource
from loadgen.send.dispatch import Dispatcher, guarded
from loadgen.send.openai import HttpEnd

__all__ = ["DependentDispatcher"]


class _Shelf:
    """Bodies in schedule order from the source, those of parked turns from the shelf."""

    def __init__(self, source: BodySource) -> None:
        self._source = source
        self._parked: dict[int, bytes] = {}

    @property
    def starved(self) -> int:
        return self._source.starved

    def fill(self, now_ns: int, budget_ns: int) -> int:
        return self._source.fill(now_ns, budget_ns)

    def park(self, index: int) -> None:
        self._parked[index] = self._source.take(index)

    def take(self, index: int) -> bytes:
        return self._parked.pop(index) if index in self._parked else self._source.take(index)


class DependentDispatcher(Dispatcher):
    """A dispatcher in which turns wait for each other; see the module's theory of operation."""

    def __init__(self, *, bodies: BodySource, **dispatcher: Any) -> None:
        self._shelf = _Shelf(bodies)
        super().__init__(bodies=self._shelf, **dispatcher)  # type: ignore[arg-type]  # starved is only read
        parent = dispatcher["plan"].parent
        self._parent = [-1] * len(dispatcher["plan"]) if parent is None else parent.tolist()
        self._children: dict[int, list[int]] = {}  # parked turns by the turn they wait for
        self._parked: set[int] = set()
        self._freed: list[int] = []  # parked turns that wait for nothing any more
        self.cohort_due = 0  # counted as they are released

    @property
    def due(self) -> int:
        """Requests released so far: a parked turn is not due."""
        return self.live.due

    def _release_due(self, now_ns: int) -> None:
        at_ns, total = self._at_ns, len(self._at_ns)
        while self._position < total and at_ns[self._position] <= now_ns:
            index, scheduled_ns = self._index[self._position], at_ns[self._position]
            self._position += 1
            parent = self._parent[index]
            if parent in self._in_flight or parent in self._parked:
                self._shelf.park(index)
                self._parked.add(index)
                self._children.setdefault(parent, []).append(index)
            else:
                self._admit(index, scheduled_ns)

    def _admit(self, index: int, scheduled_ns: int) -> None:
        self.cohort_due += self._window_start_ns <= scheduled_ns < self._window_end_ns
        self._release(index, scheduled_ns)

    def _conclude(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        super()._conclude(active, end, at_ns, error)
        children = self._children.pop(active.index, [])
        if children and self.stop_ns < 0:
            self._freed += children
            self._clock.call_at(self._clock.now_ns(), self._free)  # not from within the end of another request

    @guarded
    def _free(self) -> None:
        if self.stop_ns >= 0:
            return
        freed, self._freed = self._freed, []
        now_ns = self._clock.now_ns()
        for index in freed:
            self._parked.discard(index)
            self._admit(index, now_ns)
        if self._timer is not None:  # what is new may have to be decided before the next arrival
            self._timer.cancel()
            self._arm()
