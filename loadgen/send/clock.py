"""Time as the sender knows it: monotonic nanoseconds since t0, timers at absolute instants, and the clock's own health.

Timers. One alarm (`loadgen.common.timer`) wakes the loop for the earliest entry of a small heap. A callback never
runs before its instant. Deadlines are absolute: lateness of one never moves the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from analysis.units import NS_PER_S
from loadgen.common.timer import Alarm

__all__ = ["Clock", "ClockHealth", "LoopClock", "Timer"]


class Timer:
    """A callback to come."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call back; harmless after it did."""
        self.callback = None


class Clock(Protocol):
    """What the dispatcher needs of time; `tests/fakes` has one that jumps."""

    def start(self, t0_ns: int | None = None) -> None:
        """t0 is now, or that instant of CLOCK_MONOTONIC, which may be still to come."""
        ...

    def now_ns(self) -> int:
        """Monotonic ns since t0."""
        ...

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call back at an instant, or soon if it has passed; never before it, and never from within this call."""
        ...

    def close(self) -> None:
        """Drop all timers."""
        ...


class LoopClock:
    """The real clock of the running event loop."""

    def __init__(self) -> None:
        self._t0_ns = time.monotonic_ns()
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = 0
        self._alarm = Alarm(asyncio.get_running_loop(), self._fire)

    def start(self, t0_ns: int | None = None) -> None:
        """t0 is now, or `t0_ns`; timers set before it keep their instants on the new scale."""
        self._t0_ns = time.monotonic_ns() if t0_ns is None else t0_ns
        self._arm()

    def now_ns(self) -> int:
        """Monotonic ns since t0."""
        return time.monotonic_ns() - self._t0_ns

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call back at an instant, or soon if it has passed."""
        timer = Timer(callback)
        self._serial += 1
        heappush(self._heap, (at_ns, self._serial, timer))
        if self._heap[0][2] is timer:
            self._arm()
        return timer

    def close(self) -> None:
        """Drop all timers and the alarm."""
        self._heap.clear()
        self._alarm.close()

    def _fire(self) -> None:
        heap, now = self._heap, self.now_ns()
        while heap and (heap[0][0] <= now or heap[0][2].callback is None):
            callback = heappop(heap)[2].callback
            if callback is not None:
                callback()
        self._arm()

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].callback is None:
            heappop(self._heap)
        if self._heap:
            self._alarm.set(self._heap[0][0] + self._t0_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockHealth:
    """One reading of the machine's clocks side by side, ns; two of them show what the monotonic clock went through."""

    monotonic_ns: int
    raw_ns: int
    boot_ns: int
    wall_ns: int

    @classmethod
    def read(cls) -> ClockHealth:
        """All clocks now. Where one is missing the monotonic clock stands in, and nothing is found wrong with it."""
        monotonic = time.monotonic_ns()
        raw, boot = getattr(time, "CLOCK_MONOTONIC_RAW", None), getattr(time, "CLOCK_BOOTTIME", None)
        return cls(
            monotonic_ns=monotonic,
            raw_ns=monotonic if raw is None else time.clock_gettime_ns(raw),
            boot_ns=monotonic if boot is None else time.clock_gettime_ns(boot),
            wall_ns=time.time_ns(),
        )

    def suspended_s(self, later: ClockHealth) -> float:
        """How long the machine slept: by how much BOOTTIME − MONOTONIC moved, seconds."""
        return ((later.boot_ns - later.monotonic_ns) - (self.boot_ns - self.monotonic_ns)) / NS_PER_S

    def ratio_error(self, later: ClockHealth) -> float:
        """|MONOTONIC/MONOTONIC_RAW − 1| over the time between; 0 for less than a second, where it is only noise."""
        monotonic, raw = later.monotonic_ns - self.monotonic_ns, later.raw_ns - self.raw_ns
        return abs(monotonic / raw - 1) if raw >= NS_PER_S else 0.0

    def wall_step_s(self, later: ClockHealth) -> float:
        """By how much the wall clock was set against the monotonic one, seconds."""
        return ((later.wall_ns - later.monotonic_ns) - (self.wall_ns - self.monotonic_ns)) / NS_PER_S
