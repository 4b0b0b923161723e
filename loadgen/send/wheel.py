"""Visits that come round once a period, spread over it, with one timer: a timing wheel.

Theory of operation. The period is cut into slots, and one timer rings once a slot while anything is in the wheel. What
is added is visited first a period later, then once a period, until it is removed. A wheel that was late visits
all slots that it owes, each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from loadgen.send.clock import Clock, Timer

__all__ = ["Wheel"]

T = TypeVar("T")

_SLOTS: Final = 25


class Wheel(Generic[T]):
    """Calls `visit` for each member once a period, ns."""

    def __init__(self, clock: Clock, period_ns: int, visit: Callable[[T], None]) -> None:
        self._clock = clock
        self._visit = visit
        self._tick_ns = max(period_ns // _SLOTS, 1)
        self._slots: list[dict[T, None]] = [{} for _ in range(_SLOTS)]
        self._slot_of: dict[T, int] = {}
        self._at = 0  # the slot that is visited next
        self._next_ns = 0
        self._timer: Timer | None = None

    def add(self, member: T) -> None:
        """Visit it a period from now, and then once a period."""
        place = (self._at - 1) % _SLOTS
        self._slots[place][member] = None
        self._slot_of[member] = place
        if self._timer is None:
            self._next_ns = self._clock.now_ns() + self._tick_ns
            self._timer = self._clock.call_at(self._next_ns, self._ring)

    def remove(self, member: T) -> None:
        """Do not visit it any more; harmless where it is not visited."""
        place = self._slot_of.pop(member, -1)
        if place >= 0:
            del self._slots[place][member]

    def close(self) -> None:
        """Visit nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        now_ns = self._clock.now_ns()
        owed = 0
        while self._next_ns <= now_ns:
            self._next_ns += self._tick_ns
            owed += 1
        for _ in range(min(owed, _SLOTS)):
            slot, self._at = self._slots[self._at], (self._at + 1) % _SLOTS
            for member in list(slot):
                if member in slot:  # a visit may remove others
                    self._visit(member)
        if self._slot_of:
            self._timer = self._clock.call_at(self._next_ns, self._ring)
        else:
            self._timer = None
