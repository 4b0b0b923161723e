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
import errno
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final

from analysis.text import bounded
from analysis.units import NS_PER_S
from loadgen.send.active import ActiveRequest, CompletionHandler
from loadgen.send.address import Origin, exhausted, resolve
from loadgen.send.api import Endpoint, is_prompt
from loadgen.send.clock import Clock, Timer
from loadgen.send.pool import IdleConnections, header_lines
from loadgen.send.response import ResponseReader
from loadgen.send.stamps import ANCILLARY_BYTES, StampedReads, ask_for_stamps
from loadgen.send.wheel import Wheel

__all__ = ["StampedTransport"]

_READ_BYTES: Final = 256 * 1024
_LOOK_EVERY_NS: Final = 1_000_000_000
_LOW, _STAYS_LOW = 0.1, 0.4  # shares of a core; reading all promptly takes up to four times as much
_MUCH_BYTES: Final = 32 * 1024  # a period: a receive buffer holds 128 KiB by default
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
        self._pools: list[_Pool] = []
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked_ns = 0
        self._looks: Timer | None = None  # while the loop does not watch the epoll
        self._connecting = 0

    async def open(self) -> None:
        """Resolve names. Raises `TargetUnreachable` or `UsageError`."""
        self._loop = asyncio.get_running_loop()
        origins = [await resolve(url, self._endpoint.path) for url in self._endpoint.urls]
        self._pools = [_Pool(self, origin, self._headers) for origin in origins]
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    async def prewarm(self, count: int) -> None:
        """Open `count` connections to each origin, just before t0. Raises `TargetUnreachable` or `UsageError`."""
        for pool in self._pools:
            await pool.prewarm(count, pool.connect)

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """Send a request now."""
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
        """Be told of these events of a connection's socket."""
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
        if now_ns - before_ns < _LOOK_NS and not self._connecting and self._epoll is not None:
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


class Load:
    """Whether this process has little to do, by its share of a core over the last second, with a hysteresis."""

    def __init__(self, cpu_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._cpu_ns = cpu_ns
        self._since: tuple[int, int] | None = None  # instant, CPU
        self._low = False

    def low(self, now_ns: int) -> bool:
        """Looked at once a second; busy until that is known."""
        if self._since is None:
            self._since = now_ns, self._cpu_ns()
        elif now_ns - self._since[0] >= _LOOK_EVERY_NS:
            then_ns, cpu_ns = self._since
            self._since = now_ns, self._cpu_ns()
            share = (self._since[1] - cpu_ns) / (now_ns - then_ns)
            self._low = share < (_STAYS_LOW if self._low else _LOW)
        return self._low


class _Pool(IdleConnections["StampedConnection"]):
    """The connections to one origin."""

    def __init__(self, transport: StampedTransport, origin: Origin, headers: bytes) -> None:
        super().__init__(origin, headers, now_ns=transport.clock.now_ns, keepalive_ns=transport.keepalive_ns)
        self.transport = transport

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        active.handed_over = True
        if (connection := self.take()) is None:
            connection = StampedConnection(self)
            connection.begin(active, handler)
            connection.connect()
        else:
            connection.begin(active, handler)
            connection.send()

    async def connect(self) -> StampedConnection:
        connection = StampedConnection(self)
        connection.opened = asyncio.get_running_loop().create_future()
        connection.connect()
        try:
            await connection.opened
        except BaseException:
            connection.drop()
            raise
        return connection


class StampedConnection(ResponseReader):
    """One socket; see the module's theory of operation."""

    def __init__(self, pool: _Pool) -> None:
        super().__init__()
        self._pool = pool
        self._transport = pool.transport
        self._now_ns = pool.transport.clock.now_ns
        self._socket: socket.socket | None = None
        self._descriptor = -1
        self._poll = select.poll()
        self._connecting_since_ns = -1
        self._unsent = memoryview(b"")
        self._waits_to_write = False
        self._prompt = True
        self._batched = False  # it is in the wheel, and nobody is told when something comes
        self.opened: asyncio.Future[None] | None = None  # of one that is opened before t0

    @property
    def stale(self) -> bool:
        """Whether something came on this idle connection that was not read yet: its end, or an unasked answer."""
        return bool(self._poll.poll(0))

    def connect(self) -> None:
        """Begin to connect; `ready` or `failed` is called later."""
        origin, transport = self._pool.origin, self._transport
        self._connecting_since_ns = self._now_ns()
        family = socket.AF_INET6 if ":" in origin.address else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(self._socket)
            code = self._socket.connect_ex((origin.address, origin.port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError as error:
            if exhausted(error):
                transport.refused_by_machine()
            transport.later(self.failed, error)
            return
        self._descriptor = self._socket.fileno()
        self._poll.register(self._descriptor, select.POLLIN)
        transport.connections[self._descriptor] = self
        transport.watch(self._descriptor, select.EPOLLOUT, known=False)
        transport.connecting(1)

    def failed(self, error: OSError) -> None:
        """The connect came to nothing; nobody is told where the request was dropped meanwhile."""
        now_ns, begun_ns = self._now_ns(), self._connecting_since_ns
        text = bounded(str(error) or type(error).__name__)
        active, handler = self._flight, self._landing
        self.drop()
        if self.opened is not None and not self.opened.done():
            self.opened.set_exception(error)
        if active is not None and handler is not None:
            active.connect_ns = now_ns - begun_ns
            active.handle = None
            handler.ended(active, "connect", now_ns, text)

    def send(self) -> None:
        """Send the request that was begun, on an idle connection."""
        active = self._flight
        assert active is not None
        self._prompt = self._transport.prompt(active.index)
        self._unsent = memoryview(self._pool.request(active.body))
        self._write()

    def ready(self, events: int) -> None:
        """The socket can be written to, or something came on it."""
        if self._connecting_since_ns >= 0:
            self._connected()
            return
        if events & select.EPOLLOUT and self._unsent:
            self._write()
        if events & ~select.EPOLLOUT:
            self._read()

    def visit(self) -> None:
        """Read what has come, if anything."""
        self._read()

    def drop(self) -> None:
        """Close without a word to anyone."""
        self.forget()
        self._leave_wheel(watch=False)
        self._pool.idle.pop(self, None)
        self._parser = None  # it holds our methods: a cycle that no collector would find during the run
        if self._socket is not None:
            if self._descriptor >= 0:
                if self._connecting_since_ns >= 0:
                    self._connecting_since_ns = -1
                    self._transport.connecting(-1)
                self._transport.unwatch(self._descriptor)
            self._socket.close()
            self._socket = None

    def keep(self) -> None:
        """Take another request when it comes."""
        self._leave_wheel()
        self._pool.idle[self] = None

    def may_be_kept(self) -> bool:
        """Whether the kernel has taken the whole request."""
        return not self._unsent

    def _connected(self) -> None:
        assert self._socket is not None
        if code := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            error = OSError(code, os.strerror(code))
            self.failed(error)
            return
        begun_ns, self._connecting_since_ns = self._connecting_since_ns, -1
        self._transport.connecting(-1)
        self._transport.watch(self._descriptor, select.EPOLLIN)
        if self.opened is not None:
            self.opened.set_result(None)
        if self._flight is not None:
            self._flight.connect_ns = self._now_ns() - begun_ns
            self.send()

    def _write(self) -> None:
        assert self._socket is not None
        waited = len(self._unsent)
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._transport.later(self._broken, self._flight, error)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent and self._flight is not None:
            self._flight.sent_ns = self._now_ns()
            if self._waits_to_write:
                self._waits_to_write = False
                self._transport.watch(self._descriptor, select.EPOLLIN)
        elif sent < waited and not self._waits_to_write:
            self._waits_to_write = True
            self._transport.watch(self._descriptor, select.EPOLLIN | select.EPOLLOUT)

    def _read(self) -> None:
        assert self._socket is not None
        transport, active = self._transport, self._flight
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into(transport.buffers, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
            return
        if not count:
            self._lost(None)
            return
        if active is None:
            self.drop()  # an answer nobody asked for
            return
        at_ns = transport.stamps.at(ancillary, max(self._stamp_ns, active.released_ns))
        if active.sent_ns >= at_ns:  # this process was held up after `send` had done its work
            active.sent_ns = at_ns - 1
        self.feed(transport.buffer[:count], at_ns)
        if self._flight is not active:
            return
        if self._batched:
            if count > _MUCH_BYTES:
                self._prompt = True
                self._leave_wheel()
        elif not self._prompt and active.first_token_ns >= 0 and not self._unsent:
            self._enter_wheel(active)

    def _enter_wheel(self, active: ActiveRequest) -> None:
        """Be told of nothing, and look once a period."""
        wheel = self._transport.wheel
        assert wheel is not None
        self._batched = active.lagging = active.batched = True
        wheel.add(self)
        self._transport.watch(self._descriptor, 0)

    def _leave_wheel(self, *, watch: bool = True) -> None:
        """Be told of what comes again."""
        wheel = self._transport.wheel
        if not self._batched or wheel is None:
            return
        self._batched = False
        wheel.remove(self)
        if self._flight is not None:
            self._flight.lagging = False
        if watch:
            self._transport.watch(self._descriptor, select.EPOLLIN)

    def _broken(self, active: ActiveRequest, error: OSError) -> None:
        """The request could not be written."""
        if self._flight is active:
            self._lost(error)

    def _lost(self, error: OSError | None) -> None:
        """The peer has closed, or broken off."""
        text = "" if error is None else bounded(str(error) or type(error).__name__)
        active = self._flight
        if active is None:
            self.drop()
            return
        self.finish_lost(self._now_ns(), text)
