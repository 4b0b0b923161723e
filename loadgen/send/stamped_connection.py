"""One plain TCP connection whose reads have the kernel's stamps, and the pool of those to one origin."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from typing import TYPE_CHECKING, Final

from analysis.text import bounded
from loadgen.send.active import ActiveRequest, CompletionHandler
from loadgen.send.address import Origin, exhausted
from loadgen.send.pool import IdleConnections
from loadgen.send.response import ResponseReader
from loadgen.send.stamps import ANCILLARY_BYTES, ask_for_stamps

if TYPE_CHECKING:
    from loadgen.send.stamped import StampedTransport

__all__ = ["StampedConnection", "StampedPool"]

_MUCH_BYTES: Final = 32 * 1024  # a period: a receive buffer holds 128 KiB by default


class StampedPool(IdleConnections["StampedConnection"]):
    """The connections to one origin."""

    def __init__(self, transport: StampedTransport, origin: Origin, headers: bytes) -> None:
        super().__init__(origin, headers, now_ns=transport.clock.now_ns, keepalive_ns=transport.keepalive_ns)
        self.transport = transport

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """Send a request now, on an idle connection or on a new one."""
        active.handed_over = True
        if (connection := self.take()) is None:
            connection = StampedConnection(self)
            connection.begin(active, handler)
            connection.connect()
        else:
            connection.begin(active, handler)
            connection.send()

    async def connect(self) -> StampedConnection:
        """A connection that is open. Raises `OSError`."""
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
    """One socket; see the theory of operation of `stamped`."""

    def __init__(self, pool: StampedPool) -> None:
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
        self._batched = False  # the wheel reads it, the epoll does not report it
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
        """The connect failed. A request that was dropped meanwhile is not reported."""
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
        """Read once a period; the epoll reports nothing."""
        wheel = self._transport.wheel
        assert wheel is not None
        self._batched = active.lagging = active.batched = True
        wheel.add(self)
        self._transport.watch(self._descriptor, 0)

    def _leave_wheel(self, *, watch: bool = True) -> None:
        """Have the epoll report what comes again."""
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
