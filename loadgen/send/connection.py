"""One HTTP/1.1 connection, which carries one request at a time; also the callbacks of its parser.

Theory of operation. A `Connection` is an `asyncio.BufferedProtocol`: every one reads into the same buffer, which is
consumed before the next read (a plain `Protocol` has asyncio allocate 256 KiB a read). A read is stamped first, then
httptools cuts the body out of it, and the request keeps bytes and stamps (`active`). How much work and memory an answer
may cost is limited: a cap on its bytes as they came, one on its headers, and one on what all answers keep.

    idle ⇄ busy → closed            connecting → busy

`sent_ns`. The write buffer's high-water mark is 0, so both loops hand a write to the kernel at once. What the kernel
does not take (a body larger than the socket buffer) stays in the transport, and the stamp is taken when the last byte
of it was handed over, at `resume_writing`. With TLS it is the encrypted record that is handed over.
"""

# ruff: noqa: D102 - the callbacks are asyncio's and httptools's, and documented there
from __future__ import annotations

import asyncio
import select
import socket
from typing import Protocol, cast

import httptools

from analysis.text import bounded
from loadgen.common import defaults
from loadgen.send.active import HEADERS_TOO_LONG, READ_AT_BYTES, ActiveRequest, CompletionHandler
from loadgen.send.clock import Clock
from loadgen.send.openai import HttpEnd

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


class Connection(asyncio.BufferedProtocol):
    """See the module's theory of operation."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._buffer = pool.read_buffer
        self._now_ns = pool.clock.now_ns
        self._flight: ActiveRequest | None = None
        self._landing: CompletionHandler | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._stamp_ns = 0
        self._response_bytes = 0  # as they came, HTTP's own included
        self._look_at_bytes = 0
        self._header_bytes = 0
        self._poll: select.poll | None = None  # of a plain socket
        self._body: bytes | None = None  # what the read at hand brought of it, and more pieces of that
        self._pieces: list[bytes] = []
        self._delimited = False  # a length or chunks say where the body ends
        self._content_type = ""
        self._encoding = b""
        self._write_paused = False
        self._over: tuple[HttpEnd, str] | None = None  # how the answer ended
        self._reusable = False
        self._abandoned = False
        self.idle_since_ns = 0

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
    def busy(self) -> bool:
        """Whether a request is on it."""
        return self._flight is not None

    @property
    def stale(self) -> bool:
        """Whether something came on this idle connection that was not read yet: its end, or an answer nobody asked for.

        Such an answer must not be taken for that to the next request. With TLS it may be a session ticket, so there
        nobody looks.
        """
        return self._poll is not None and bool(self._poll.poll(0))

    def send(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """Send a request on this connection, which is idle."""
        self._flight, self._landing = active, handler
        self._response_bytes = self._header_bytes = 0
        self._look_at_bytes = defaults.ANSWER_HEADERS_BYTES
        self._over = None
        active.handle = self
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
        self._flight = None
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._flight is not None and self._flight.sent_ns < 0:
            self._flight.sent_ns = self._now_ns()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._stamp_ns = self._now_ns()
        if self._flight is None or self._parser is None:  # an answer nobody asked for
            self.drop()
            return
        self._response_bytes += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._over is None:  # else bytes after the end of the answer: only the connection is spoilt
                self._over = ("bad", f"not HTTP: {bounded(str(error))}")
            self._reusable = False
        body = self._body
        if body is not None:
            self._body = None
            if self._pieces:
                body = b"".join((body, *self._pieces))
                self._pieces.clear()
            self._flight.received(body, self._stamp_ns)
        if self._response_bytes > self._look_at_bytes:
            self._look()
        if self._over is not None:
            self._finish(*self._over)

    def _look(self) -> None:
        """A long answer: is it too long?"""
        active, size = self._flight, self._response_bytes
        assert active is not None
        self._look_at_bytes = size + READ_AT_BYTES
        if refused := HEADERS_TOO_LONG if active.headers_ns < 0 else active.grown(size):
            self._over = ("bad", refused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.connections.discard(self)
        self._pool.idle.pop(self, None)
        self._parser = None  # it holds our methods: a cycle that no collector would find during the run
        if self._flight is None:
            return
        self._stamp_ns = self._now_ns()
        if exc is not None:
            self._finish("lost", bounded(str(exc) or type(exc).__name__))
        elif self._flight.headers_ns < 0:
            self._finish("lost", "the server closed the connection before it answered")
        elif self._delimited:
            self._finish("cut", "the server closed the connection in the middle of its answer")
        else:
            self._finish("eof", "")

    # httptools calls these from within feed_data; they only note things, so that nothing of ours runs inside the parser

    def on_message_begin(self) -> None:
        if self._over is not None:
            self._reusable = False  # an answer nobody asked for
        self._delimited = False
        self._content_type, self._encoding = "", b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > defaults.ANSWER_HEADERS_BYTES:
            self._over = self._over or ("bad", HEADERS_TOO_LONG)
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1").lower()
        elif name == b"content-length" or (name == b"transfer-encoding" and value.strip().lower() != b"identity"):
            self._delimited = True
        elif name == b"content-encoding":
            self._encoding = value.strip().lower()
        elif name == b"retry-after" and self._flight is not None:
            self._flight.retry_after = bounded(value)

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._flight is None or self._over is not None or status < 200:  # 100 Continue, 103 Early Hints: not yet
            return
        self._flight.opened(self._stamp_ns, status, self._content_type)
        if self._encoding not in (b"", b"identity"):
            self._over = ("bad", f"compressed ({bounded(self._encoding)}), though nobody asked for it")

    def on_body(self, body: bytes) -> None:
        if self._flight is not None and self._over is None:
            if self._body is None:
                self._body = body
            else:
                self._pieces.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._over is None and self._flight is not None and self._flight.headers_ns >= 0:
            self._over = ("complete", "")
            self._reusable = self._parser.should_keep_alive() and not self._write_paused

    def _finish(self, end: HttpEnd, error: str) -> None:
        """The answer is over: keep the connection if it may be kept, and tell."""
        active, handler = self._flight, self._landing
        self._flight = self._landing = None
        if self._reusable and end == "complete":
            self.idle_since_ns = self._stamp_ns
            self._pool.idle[self] = None
        else:
            self.drop()
        if active is not None and handler is not None:
            active.handle = None
            handler.ended(active, end, self._stamp_ns, error)
