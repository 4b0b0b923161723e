"""HTTP/1.1 over plain TCP sockets of our own, with the kernel's receive stamps (`stamps`): the default where it can be.

Theory of operation. All sockets are in one epoll, whose descriptor is one more readable one of the event loop. A
connection reads with `recvmsg`, whose control message says when the kernel received the newest segment;
`ResponseReader` does the rest. Connects are begun without waiting and end as writable sockets. No task and no future is
made for a request.

    connecting → busy ⇄ idle → closed

Once the first token of a request has been read, nothing hurries: the kernel keeps the bytes and their stamp. So with a
`period_ns` most requests are then read once a period (`wheel`), *batched*: a stream of 128 tokens costs 27 reads
instead of 128. A seeded share of them, and all while the processor has little to do, is read *promptly* to the end;
only these show when each token came. Whoever has to know more of a batched request asks for `catch_up`. An answer that
brings much in a period is read promptly from then on: a full receive buffer would make the server wait.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

from analysis.units import NS_PER_S
from loadgen.send.active import ActiveRequest, CompletionHandler
from loadgen.send.address import resolve
from loadgen.send.api import Endpoint, is_prompt
from loadgen.send.clock import Clock, Timer
from loadgen.send.pool import header_lines
from loadgen.send.spare import Load
from loadgen.send.stamped_connection import StampedConnection, StampedPool
from loadgen.send.stamps import StampedReads
from loadgen.send.wheel import Wheel

__all__ = ["StampedTransport"]

_READ_BYTES: Final = 256 * 1024
_EVENTS_AT_ONCE: Final = 32  # before timers, which send requests, have their turn
_LOOK_NS: Final = 1_000_000  # between two looks at busy sockets: less than two tokens of a stream are apart


class StampedTransport:
    """The transport of `--stamps kernel`: every URL is `http://` over TCP."""

    def __init__(self, endpoint: Endpoint, clock: Clock, *, keepalive_s: float, period_ns: int = 0) -> None:
        """`period_ns` of batched reads; 0: all are prompt. Raises `UsageError` for headers that are not HTTP."""
        self._endpoint = endpoint
        self.clock = clock
        self.keepalive_ns = round(keepalive_s * NS_PER_S)
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.buffers = [self.buffer]
        self.stamps = StampedReads(clock.now_ns)
        self.opened_peak: int | None = None
        self.connections: dict[int, StampedConnection] = {}  # by descriptor
        self.wheel = Wheel[StampedConnection](clock, period_ns, StampedConnection.visit) if period_ns else None
        self._load = Load()
        self._headers = header_lines(endpoint)
        self._pools: list[StampedPool] = []
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked_ns = 0
        self._looks: Timer | None = None  # while the loop does not watch the epoll
        self._connecting = 0
        self._begun = False  # a request was sent: t0 is past, and the clock's scale will not change any more

    async def open(self) -> None:
        """Resolve names. Raises `TargetUnreachable` or `UsageError`."""
        self._loop = asyncio.get_running_loop()
        origins = [await resolve(url, self._endpoint.path) for url in self._endpoint.urls]
        self._pools = [StampedPool(self, origin, self._headers) for origin in origins]
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    async def prewarm(self, count: int) -> None:
        """Open `count` connections to each origin, just before t0. Raises `TargetUnreachable` or `UsageError`."""
        for pool in self._pools:
            await pool.prewarm(count, pool.connect)

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """Send a request now."""
        self._begun = True
        self._pools[active.target].start(active, handler)

    def cancel(self, active: ActiveRequest) -> None:
        """Drop a request together with its connection."""
        handle, active.handle = active.handle, None
        if isinstance(handle, StampedConnection):
            handle.drop()

    def catch_up(self, active: ActiveRequest) -> None:
        """Read what has come for a request that is read once a period; it may end by that."""
        if isinstance(active.handle, StampedConnection):
            active.handle.visit()

    def prompt(self, index: int) -> bool:
        """Whether this request is read promptly to its end."""
        return self.wheel is None or is_prompt(index) or self._load.low(self.clock.now_ns())

    async def close(self) -> None:
        """Close every connection."""
        if self.wheel is not None:
            self.wheel.close()
        for connection in list(self.connections.values()):
            connection.drop()
        if self._epoll is not None and self._loop is not None:
            if self._looks is not None:
                self._looks.cancel()
            else:
                self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def later(self, call: Callable[..., None], *arguments: object) -> None:
        """Call soon, but not from within `start`."""
        assert self._loop is not None
        self._loop.call_soon(call, *arguments)

    def watch(self, descriptor: int, events: int, *, known: bool = True) -> None:
        """Have the epoll report these events of a connection's socket."""
        assert self._epoll is not None
        if known:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """The socket is about to be closed."""
        self.connections.pop(descriptor, None)
        if self._epoll is not None:
            self._epoll.unregister(descriptor)

    def refused_by_machine(self) -> None:
        """The operating system gave no more connections: remember how many carried a request.

        Idle ones do not count: this is held against the requests in flight, and the refused one is one more of these.
        """
        busy = sum(connection.busy for connection in self.connections.values())
        self.opened_peak = max(self.opened_peak or 0, busy)

    def connecting(self, change: int) -> None:
        """So many more connects are under way: what they make ready has to be seen at once, for a request waits."""
        self._connecting += change
        if change > 0 and self._looks is not None:
            self._looks.cancel()
            self._watch_epoll()

    def _ready(self) -> None:
        """The loop says that something is ready. Where it says so too often, look once a millisecond instead."""
        assert self._epoll is not None
        assert self._loop is not None
        now_ns, before_ns = self.clock.now_ns(), self._looked_ns
        self._looked_ns = now_ns
        self._look()
        often = self._begun and not self._connecting and now_ns - before_ns < _LOOK_NS
        if often and self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._looks = self.clock.call_at(now_ns + _LOOK_NS, self._look_again)

    def _look_again(self) -> None:
        now_ns = self.clock.now_ns()
        found = self._look()
        if self._epoll is None or self._looks is None:
            return
        if found:
            next_ns = now_ns + (_LOOK_NS if found < _EVENTS_AT_ONCE else 0)
            self._looks = self.clock.call_at(next_ns, self._look_again)
        else:
            self._watch_epoll()

    def _watch_epoll(self) -> None:
        assert self._epoll is not None
        assert self._loop is not None
        self._looks = None
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    def _look(self) -> int:
        """Handle what is ready; how many sockets that were."""
        assert self._epoll is not None
        connections = self.connections
        found = self._epoll.poll(0, _EVENTS_AT_ONCE)
        for descriptor, events in found:
            if (connection := connections.get(descriptor)) is not None:  # else one before it had this one closed
                connection.ready(events)
            if self._epoll is None:
                break
        return len(found)
