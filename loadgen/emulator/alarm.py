"""One wake-up at an absolute instant, to within tens of microseconds.

Event loops round their timers to milliseconds (libuv counts in them, epoll waits in them), which is half of a 2 ms
service. Linux's timerfd has no such grain and is just another readable descriptor; elsewhere the loop's own timer has
to do. A timerfd needs no spinning: the process sleeps until the kernel wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Alarm", "make_alarm"]

_CLOCK_MONOTONIC, _ABSTIME = 1, 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class Alarm(Protocol):
    """Calls back once, at the latest instant that was set, on the loop."""

    def set(self, at_ns: int) -> None:
        """Ring at this monotonic instant (at once if it has passed) and forget the instant set before."""
        ...

    def close(self) -> None:
        """Never ring again."""
        ...


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """The best alarm this system has."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return _TimerFd(loop, ring)
    return _LoopTimer(loop, ring)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("it_interval", _TimeSpec), ("it_value", _TimeSpec))


class _TimerFd:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop, self._ring, self._spec = loop, ring, _TimerSpec()
        self._armed_ns: int | None = None
        loop.add_reader(self._fd, self._on_readable)

    def set(self, at_ns: int) -> None:
        if at_ns == self._armed_ns:
            return
        self._armed_ns = at_ns
        self._settime(max(at_ns, 1))  # zero would disarm it

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _on_readable(self) -> None:
        # setting the timer anew also takes back its being readable, which saves the read
        self._armed_ns = None
        self._ring()
        if self._armed_ns is None:
            self._settime(0)

    def _settime(self, at_ns: int) -> None:
        self._spec.it_value.tv_sec, self._spec.it_value.tv_nsec = divmod(at_ns, 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _ABSTIME, ctypes.byref(self._spec), None)


class _LoopTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
