"""One HTTP/1.1 connection of the event loop, which carries one request at a time, stamped when Python reads it.

Theory of operation. A `Connection` is an `asyncio.BufferedProtocol`: every one reads into the same buffer, which is
consumed before the next read (a plain `Protocol` has asyncio allocate 256 KiB a read). A read is stamped first, then
`ResponseReader` takes it.

    idle ⇄ busy → closed            connecting → busy

`sent_ns`. The write buffer's high-water mark is 0, so both loops hand a write to the kernel at once. What the kernel
does not take (a body larger than the socket buffer) stays in the transport, and the stamp is taken when the last byte
of it was handed over, at `resume_writing`. With TLS it is the encrypted record that is handed over.
"""

# ruff: noqa: D102 - the callbacks are asyncio's, and documented there
from __future__ import annotations

import asyncio
import select
import socket
from typing import Protocol, cast

from analysis.text import bounded
from loadgen.send.active import ActiveRequest, CompletionHandler
from loadgen.send.clock import Clock
from loadgen.send.response import ResponseReader

__all__ = ["Connection", "Pool"]


class Pool(Protocol):
    """What a connection needs of the pool it belongs to."""

    read_buffer: memoryview  # of all connections: consumed before the next read
    clock: Clock
    connections: set[Connection]  # open ones
    idle: dict[Connection, None]  # a stack, most recently used last, that a closed one can leave

    def request(self, body: bytes) -> bytes:
        """The bytes of a request with this body."""
        ...


class Connection(ResponseReader, asyncio.BufferedProtocol):
    """See the module's theory of operation."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._buffer = pool.read_buffer
        self._now_ns = pool.clock.now_ns
        self._poll: select.poll | None = None  # of a plain socket
        self._write_paused = False
        self._abandoned = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._abandoned:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=0)
        raw = self._transport.get_extra_info("socket")
        if raw is not None and raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if raw is not None and self._transport.get_extra_info("sslcontext") is None:
            self._poll = select.poll()
            self._poll.register(raw.fileno(), select.POLLIN)
        self._pool.connections.add(self)

    @property
    def stale(self) -> bool:
        """Whether something came on this idle connection that was not read yet: its end, or an answer nobody asked for.

        Such an answer must not be taken for that to the next request. With TLS it may be a session ticket, so there
        nobody looks.
        """
        return self._poll is not None and bool(self._poll.poll(0))

    def send(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """Send a request on this connection, which is idle."""
        self.begin(active, handler)
        transport = self._transport
        assert transport is not None
        if transport.is_closing():  # the peer was quicker: connection_lost may have come already, or never will
            asyncio.get_running_loop().call_soon(self.connection_lost, None)
            return
        transport.write(self._pool.request(active.body))
        if not self._write_paused:
            active.sent_ns = self._now_ns()

    def abandon(self) -> None:
        """Nobody waits for the connect any more: close, or do so as soon as it is open.

        uvloop goes on with a TLS connect that was cancelled between its TCP connect and its handshake.
        """
        self._abandoned = True
        self.drop()

    def drop(self) -> None:
        """Close without a word to anyone."""
        self.forget()
        if self._transport is not None:
            self._transport.abort()

    def keep(self) -> None:
        """Take another request when it comes."""
        self._pool.idle[self] = None

    def may_be_kept(self) -> bool:
        """Whether the kernel has taken the whole request."""
        return not self._write_paused

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._flight is not None and self._flight.sent_ns < 0:
            self._flight.sent_ns = self._now_ns()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        at_ns = self._now_ns()
        self.feed(self._buffer[:nbytes], at_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.connections.discard(self)
        self._pool.idle.pop(self, None)
        self.finish_lost(self._now_ns(), "" if exc is None else bounded(str(exc) or type(exc).__name__))
