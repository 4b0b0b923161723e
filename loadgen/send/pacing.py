"""When the next request leaves: at its own instant, when another one ends, or when its session lets it.

Theory of operation. A `Pacing` is a value that the sender is given with its other options; `pacer_of` makes of it what
one run needs. A pacer knows the schedule and the request bodies, and nothing of sockets, time-outs or verdicts. The
dispatcher asks it what leaves by now and says which requests ended.

    OnSchedule         the open loop: every request leaves at its own instant, whatever the server does
    FixedConcurrency   the baseline: N requests in flight, the next one leaves when one ends. The instant at which it
                       leaves is its scheduled instant, so its client queue is about 0 by construction: that is the
                       flaw of a closed loop, and why its results are labelled as such and never enter a search
    DependentSessions  semi-open: a turn leaves at its own instant, or when the previous turn of its session ends if
                       that is later, however it ends. That moment is its scheduled instant then: the client was not
                       late, the session was. A turn that still waits when the load stops was never due. A slow server
                       is offered less load, so nothing measured this way is a capacity (method, section 11)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadgen.plan.types import Int64s, RunPlan
from loadgen.send.active import BodySource

__all__ = [
    "NEVER_NS",
    "Departure",
    "DependentSessions",
    "FixedConcurrency",
    "OnSchedule",
    "Pacer",
    "Pacing",
    "pacer_of",
    "plain",
]

NEVER_NS = 1 << 62
Departure = tuple[int, int, bytes]  # index, scheduled instant in ns, body


@dataclass(frozen=True, slots=True)
class OnSchedule:
    """Every request leaves at its planned instant."""


@dataclass(frozen=True, slots=True)
class FixedConcurrency:
    """So many requests are in flight at all times, while the plan has any."""

    requests: int


@dataclass(frozen=True, slots=True)
class DependentSessions:
    """A turn of a session waits for the previous one to end."""


Pacing = OnSchedule | FixedConcurrency | DependentSessions


class Pacer(Protocol):
    """One run's departures, in order."""

    cohort_known: bool  # which requests belong to the measured window follows from the plan alone
    at_planned_instants: bool  # what is due follows from the clock: a stop releases what is due by then

    def next_ns(self) -> int:
        """The next instant at which something leaves by itself; `NEVER_NS` if nothing does."""
        ...

    def due(self, now_ns: int) -> Iterator[Departure]:
        """What leaves by now; each is in flight once it is given."""
        ...

    def ended(self, index: int) -> bool:
        """A request ended; whether that lets another one leave, for which `freed` is to be asked soon."""
        ...

    def freed(self, now_ns: int) -> Iterator[Departure]:
        """What leaves now because another request ended."""
        ...


def pacer_of(pacing: Pacing, plan: RunPlan, indices: Int64s, bodies: BodySource) -> Pacer:
    """The pacer of one run; `indices` are the requests to send, increasing."""
    match pacing:
        case FixedConcurrency(requests=requests):
            return _Closed(indices, bodies, requests)
        case DependentSessions():
            return _Dependent(plan, indices, bodies)
        case OnSchedule():
            return _Scheduled(plan, indices, bodies)


def plain(column: Int64s) -> memoryview:
    """A view whose items are plain ints: a numpy scalar is slower and would leak into rows."""
    return memoryview(np.ascontiguousarray(column, dtype=np.int64))  # type: ignore[arg-type]  # it is a buffer


class _Scheduled:
    cohort_known = at_planned_instants = True

    def __init__(self, plan: RunPlan, indices: Int64s, bodies: BodySource) -> None:
        self._index, self._at_ns = plain(indices), plain(plan.schedule.at_ns[indices])
        self._bodies = bodies
        self._position = 0  # the next one to leave

    def next_ns(self) -> int:
        return self._at_ns[self._position] if self._position < len(self._at_ns) else NEVER_NS

    def due(self, now_ns: int) -> Iterator[Departure]:
        at_ns, total = self._at_ns, len(self._at_ns)
        while self._position < total and at_ns[self._position] <= now_ns:
            index, scheduled_ns = self._index[self._position], at_ns[self._position]
            self._position += 1
            yield index, scheduled_ns, self._bodies.take(index)

    def ended(self, index: int) -> bool:
        return False

    def freed(self, now_ns: int) -> Iterator[Departure]:
        return iter(())


class _Closed:
    cohort_known = at_planned_instants = False

    def __init__(self, indices: Int64s, bodies: BodySource, concurrency: int) -> None:
        self._left = iter(indices.tolist())
        self._bodies = bodies
        self._free = concurrency

    def next_ns(self) -> int:
        return NEVER_NS

    def due(self, now_ns: int) -> Iterator[Departure]:
        while self._free and (index := next(self._left, None)) is not None:
            self._free -= 1
            yield index, now_ns, self._bodies.take(index)

    def ended(self, index: int) -> bool:
        self._free += 1
        return True

    def freed(self, now_ns: int) -> Iterator[Departure]:
        return self.due(now_ns)


class _Dependent:
    cohort_known, at_planned_instants = False, True

    def __init__(self, plan: RunPlan, indices: Int64s, bodies: BodySource) -> None:
        self._schedule = _Scheduled(plan, indices, bodies)
        self._parent = [-1] * len(plan) if plan.parent is None else plan.parent.tolist()
        self._in_flight: set[int] = set()
        self._parked: dict[int, bytes] = {}  # turns that wait, with their bodies: the source gives these in order
        self._children: dict[int, list[int]] = {}  # parked turns by the turn they wait for
        self._freed: list[int] = []  # parked turns that wait for nothing any more

    def next_ns(self) -> int:
        return self._schedule.next_ns()

    def due(self, now_ns: int) -> Iterator[Departure]:
        for index, scheduled_ns, body in self._schedule.due(now_ns):
            parent = self._parent[index]
            if parent in self._in_flight or parent in self._parked:
                self._parked[index] = body
                self._children.setdefault(parent, []).append(index)
            else:
                self._in_flight.add(index)
                yield index, scheduled_ns, body

    def ended(self, index: int) -> bool:
        self._in_flight.discard(index)
        children = self._children.pop(index, [])
        self._freed += children
        return bool(children)

    def freed(self, now_ns: int) -> Iterator[Departure]:
        freed, self._freed = self._freed, []
        for index in freed:
            self._in_flight.add(index)
            yield index, now_ns, self._parked.pop(index)
