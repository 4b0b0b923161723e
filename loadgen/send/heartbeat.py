"""The event loop's pulse: a tick due every 10 ms and how late each one came, the gate that CPU % is blind to.

A loop blocked for 300 ms owes 30 ticks. Each is counted with its own lateness (300, 290, … ms): one long pause must not
count as a single late sample among thousands.
"""

from __future__ import annotations

from array import array
from typing import Final

from loadgen.send.clock import Clock, Timer

__all__ = ["Heartbeat"]

TICK_NS: Final = 10_000_000


class Heartbeat:
    """Measures from `start` to `stop`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late_ns = array("q")
        self._due_ns = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        """First tick one period from now."""
        self._due_ns = self._clock.now_ns() + TICK_NS
        self._timer = self._clock.call_at(self._due_ns, self._tick)

    def stop(self) -> None:
        """No more ticks; those already owed are counted."""
        self._count()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def p99_s(self) -> float:
        """Nearest-rank 99th percentile of the lateness, seconds; 0 without a tick."""
        ranked = sorted(self._late_ns)
        return ranked[-(-99 * len(ranked) // 100) - 1] / 1e9 if ranked else 0.0

    def max_s(self) -> float:
        """Largest lateness, seconds."""
        return max(self._late_ns, default=0) / 1e9

    def _tick(self) -> None:
        self._count()
        self._timer = self._clock.call_at(self._due_ns, self._tick)

    def _count(self) -> None:
        now = self._clock.now_ns()
        while self._due_ns <= now:
            self._late_ns.append(now - self._due_ns)
            self._due_ns += TICK_NS
