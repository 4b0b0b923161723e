"""One wake-up of an event loop at an absolute instant, to within tens of microseconds.

Event loops round their timers to milliseconds (libuv counts in them, epoll waits in them), and uvloop counts them from
a cached, possibly old "now". A millisecond is half of a 2 ms service, and a measurement error of ours where a request
is to be sent. So on Linux a kernel timer (timerfd, absolute instants on CLOCK_MONOTONIC) wakes the loop as one more
readable descriptor, without spinning; elsewhere the loop's own timer has to do.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Final

from analysis.units import NS_PER_S

__all__ = ["Alarm"]

_RESOLUTION_NS: Final = 1_000_000  # of a loop's own timers
_ABSOLUTE: Final = 1


class Alarm:
    """Calls `ring` once, on the loop, at the latest instant that was set; never from within `set`.

    Without a kernel timer it may ring up to a millisecond late. What is due is for the caller to find out: a ring says
    only that it is worth looking.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._armed_ns: int | None = None
        self._handle: asyncio.Handle | None = None
        self._timer_fd = timerfd()
        if self._timer_fd >= 0:
            loop.add_reader(self._timer_fd, self._readable)

    def set(self, at_ns: int) -> None:
        """Ring at this monotonic instant (soon if it has passed) and forget the instant set before."""
        if at_ns == self._armed_ns:
            return
        self._armed_ns = at_ns
        if self._timer_fd >= 0:
            _settime(self._timer_fd, max(at_ns, 1))  # 0 would disarm it; the past fires at once
            return
        if self._handle is not None:
            self._handle.cancel()
        wait_ns = at_ns - time.monotonic_ns()
        if wait_ns <= 0:
            self._handle = self._loop.call_soon(self._fire)
        else:  # whole milliseconds upwards: rounding to nearest would spin through the last half
            self._handle = self._loop.call_later(-(-wait_ns // _RESOLUTION_NS) / 1000, self._fire)

    def close(self) -> None:
        """Never ring again."""
        if self._handle is not None:
            self._handle.cancel()
        if self._timer_fd >= 0:
            self._loop.remove_reader(self._timer_fd)
            os.close(self._timer_fd)
            self._timer_fd = -1

    def _readable(self) -> None:
        self._armed_ns = None
        try:
            self._ring()
        finally:
            # setting the timer anew also takes back its being readable, which saves the read
            if self._armed_ns is None and self._timer_fd >= 0:
                _settime(self._timer_fd, 0)

    def _fire(self) -> None:
        self._armed_ns = self._handle = None
        self._ring()


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # os.timerfd_create came with Python 3.13
_spec = _Itimerspec()
_spec_pointer = ctypes.byref(_spec)


def timerfd() -> int:
    """A non-blocking timer descriptor on CLOCK_MONOTONIC, or -1 where there is none."""
    if _libc is None or not hasattr(_libc, "timerfd_create"):
        return -1
    return int(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))


def _settime(timer_fd: int, monotonic_ns: int) -> None:
    assert _libc is not None
    _spec.it_value.tv_sec, _spec.it_value.tv_nsec = divmod(monotonic_ns, NS_PER_S)
    _libc.timerfd_settime(timer_fd, _ABSOLUTE, _spec_pointer, None)
