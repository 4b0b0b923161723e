"""When the kernel received what is read: SO_TIMESTAMPNS of a TCP socket, as instants of the run.

Theory of operation. Linux stamps each segment as it comes in, on CLOCK_REALTIME; `recvmsg` returns the stamp of the
newest segment that it hands over, however late it is called. So a stamp does not depend on the load of this process.
What a read hands over of earlier segments is stamped late by as much as they came earlier.

Realtime is mapped to the run's clock by the offset between both, measured as the best of many brackets when the load
begins, ten times a second, and at its end. A wall clock that is set in between moves the offset: by how much at most
is kept (`moved_ns`; what the kernel may slew it by in that time does not count, 0.05 ms while reads come). A stamp that
the mapping puts into the future, or before what was seen already, is taken only after the offset was measured again.
One that still does not fit is replaced by the time of the read, and counted.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import cache
from typing import Final

__all__ = ["ANCILLARY_BYTES", "StampedReads", "ask_for_stamps", "stamps_refused"]

_SO_TIMESTAMPNS: Final = 35  # of Linux, missing in `socket`; the control message has the same number
_TIMESPEC: Final = struct.Struct("@qq")  # s, ns
ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
_BRACKETS: Final = 30
_MEASURE_EVERY_NS: Final = 100_000_000
_SLEW: Final = 500e-6  # the most by which the kernel adjusts the rate of realtime (adjtimex)
_AHEAD_NS: Final = 50_000  # a stamp may seem to lie so far ahead: the two clocks are read one after the other
_PROBE_S: Final = 1.0

Ancillary = list[tuple[int, int, bytes]]


def ask_for_stamps(connection: socket.socket) -> None:
    """Have the kernel stamp what comes. Raises `OSError` where it does not."""
    connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def stamps_refused(urls: Iterable[str]) -> str:
    """Why reads of these base URLs cannot have the kernel's stamps; empty if they can."""
    if other := next((url for url in urls if not url.startswith("http://")), ""):
        return f"{other} is not http:// over TCP"
    return _kernel_refuses()


@cache
def _kernel_refuses() -> str:
    """Why this kernel gives no stamps of TCP reads, by a connection over loopback; empty if it does."""
    if not sys.platform.startswith("linux") or not hasattr(select, "epoll"):
        return f"{sys.platform} has none"
    try:
        with (
            closing(socket.create_server(("127.0.0.1", 0))) as server,
            closing(socket.create_connection(server.getsockname(), timeout=_PROBE_S)) as near,
        ):
            ask_for_stamps(near)
            far, _ = server.accept()
            with closing(far):
                # the first socket that asks switches stamping on, a moment later
                for _ in range(50):
                    far.send(b"x")
                    _, ancillary, _, _ = near.recvmsg(1, ANCILLARY_BYTES)
                    if _stamp_ns(ancillary) >= 0:
                        return ""
                    time.sleep(0.002)
    except OSError as error:
        return f"SO_TIMESTAMPNS: {error.strerror or error}"
    return "SO_TIMESTAMPNS gives no stamps for TCP"


class StampedReads:
    """Turns the kernel's stamps into instants of a run, ns since its t0."""

    def __init__(self, now_ns: Callable[[], int], wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns, self._wall_ns = now_ns, wall_ns
        self._offset_ns = 0  # realtime − run
        self._measured = False
        self._measured_ns = 0
        self.moved_ns = 0  # the most by which the clock was set
        self.reads = 0
        self.by_reading = 0  # reads without a usable stamp: they have the time of the read

    def measure(self) -> None:
        """Measure the offset between both clocks, as the best of many brackets."""
        best: tuple[int, int] | None = None
        for _ in range(_BRACKETS):
            before, wall, after = self._now_ns(), self._wall_ns(), self._now_ns()
            if best is None or after - before < best[0]:
                best = after - before, wall - (before + after) // 2
        assert best is not None
        if self._measured:
            slewed_ns = round(_SLEW * (self._now_ns() - self._measured_ns))
            self.moved_ns = max(self.moved_ns, abs(best[1] - self._offset_ns) - slewed_ns)
        self._offset_ns, self._measured_ns, self._measured = best[1], self._now_ns(), True

    def at(self, ancillary: Ancillary, not_before_ns: int) -> int:
        """The instant at which the kernel received what was just read; `not_before_ns` is known to be earlier."""
        now_ns = self._now_ns()
        if now_ns - self._measured_ns > _MEASURE_EVERY_NS or not self._measured:
            self.measure()
        self.reads += 1
        stamp_ns = _stamp_ns(ancillary)
        for _ in range(2):
            at_ns = stamp_ns - self._offset_ns
            if stamp_ns >= 0 and not_before_ns - _AHEAD_NS <= at_ns <= now_ns + _AHEAD_NS:
                return min(max(at_ns, not_before_ns), now_ns)
            if stamp_ns < 0:
                break
            self.measure()
        self.by_reading += 1
        return now_ns


def _stamp_ns(ancillary: Ancillary) -> int:
    """The stamp in the control messages of a read, realtime ns; -1 if there is none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, ns = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(ns)
    return -1
