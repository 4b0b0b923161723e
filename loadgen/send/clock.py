"""Time as the sender knows it: monotonic nanoseconds since t0, timers at absolute instants, and the clock's own health.

Timers. `asyncio` and `uvloop` round timers to whole milliseconds, and uvloop counts them from a cached, possibly old
"now". A request a millisecond late is a measurement error of ours, so on Linux one kernel timer (timerfd, absolute
deadlines on CLOCK_MONOTONIC) wakes the loop for the earliest entry of a small heap. Elsewhere the loop's own timer is
used. A callback never runs before its instant. Deadlines are absolute: lateness of one never moves the next.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Protocol

__all__ = ["Clock", "ClockHealth", "LoopClock", "Timer"]

NS: Final = 1_000_000_000
_RESOLUTION_NS: Final = 1_000_000  # of a loop's own timers


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

    def start(self) -> None:
        """t0 is now."""
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
        self._loop = asyncio.get_running_loop()
        self._t0_ns = time.monotonic_ns()
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = 0
        self._armed_ns = -1  # instant the kernel or loop timer stands at, -1: none
        self._handle: asyncio.Handle | None = None
        self._timer_fd = _timerfd()
        if self._timer_fd >= 0:
            self._loop.add_reader(self._timer_fd, self._readable)

    def start(self) -> None:
        """t0 is now; timers set before it keep their instants on the new scale."""
        self._t0_ns = time.monotonic_ns()
        self._armed_ns = -1
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
        """Drop all timers and the kernel's."""
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
        if self._timer_fd >= 0:
            self._loop.remove_reader(self._timer_fd)
            os.close(self._timer_fd)
            self._timer_fd = -1

    def _readable(self) -> None:
        with suppress(BlockingIOError):  # re-armed since it fired
            os.read(self._timer_fd, 8)
        self._fire()

    def _fire(self) -> None:
        self._armed_ns = -1
        self._handle = None
        heap, now = self._heap, self.now_ns()
        while heap and (heap[0][0] <= now or heap[0][2].callback is None):
            callback = heappop(heap)[2].callback
            if callback is not None:
                callback()
        self._arm()

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].callback is None:
            heappop(self._heap)
        if not self._heap or self._heap[0][0] == self._armed_ns:
            return
        at_ns = self._armed_ns = self._heap[0][0]
        if self._timer_fd >= 0:
            _settime(self._timer_fd, max(at_ns + self._t0_ns, 1))  # 0 would disarm it; the past fires at once
            return
        if self._handle is not None:
            self._handle.cancel()
        wait_ns = at_ns - self.now_ns()
        if wait_ns <= 0:
            self._handle = self._loop.call_soon(self._fire)
        else:  # whole milliseconds upwards: rounding to nearest would spin through the last half
            self._handle = self._loop.call_later(-(-wait_ns // _RESOLUTION_NS) / 1000, self._fire)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


_TFD_TIMER_ABSTIME: Final = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # os.timerfd_create came with Python 3.13
_spec = _Itimerspec()
_spec_pointer = ctypes.byref(_spec)


def _timerfd() -> int:
    """A non-blocking timer descriptor on CLOCK_MONOTONIC, or -1 where there is none."""
    if _libc is None or not hasattr(_libc, "timerfd_create"):
        return -1
    return int(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))


def _settime(timer_fd: int, monotonic_ns: int) -> None:
    assert _libc is not None
    _spec.it_value.tv_sec, _spec.it_value.tv_nsec = divmod(monotonic_ns, NS)
    _libc.timerfd_settime(timer_fd, _TFD_TIMER_ABSTIME, _spec_pointer, None)


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
        return ((later.boot_ns - later.monotonic_ns) - (self.boot_ns - self.monotonic_ns)) / NS

    def ratio_error(self, later: ClockHealth) -> float:
        """|MONOTONIC/MONOTONIC_RAW − 1| over the time between; 0 for less than a second, where it is only noise."""
        monotonic, raw = later.monotonic_ns - self.monotonic_ns, later.raw_ns - self.raw_ns
        return abs(monotonic / raw - 1) if raw >= NS else 0.0

    def wall_step_s(self, later: ClockHealth) -> float:
        """By how much the wall clock was set against the monotonic one, seconds."""
        return ((later.wall_ns - later.monotonic_ns) - (self.wall_ns - self.monotonic_ns)) / NS
