"""HTTP/1.1 on the hot path: one request a connection at a time, stamps before parsing, nothing copied that can wait.

Theory of operation. A `_Connection` is an `asyncio.BufferedProtocol`: every one reads into the same buffer, which is
consumed before the next read (a plain `Protocol` has asyncio allocate 256 KiB a read). A read is stamped first, then
httptools cuts the body out of it, and the flight keeps bytes and stamps; SSE and JSON wait for the end of the response,
but for the few bytes up to the first token, which the dispatcher has to know of.

    idle ⇄ busy → closed            connecting → busy

The pool has no cap: a request takes the connection that was used last, if it has been idle for less than `keepalive_s`
(a server closes idle ones, and a request caught by that would be lost: there is no retry), else a new one is opened for
it and the request waits for the connect, which is logged apart.

`sent_ns`. The write buffer's high-water mark is 0, so both loops hand a write to the kernel at once. What the kernel
does not take (a body larger than the socket buffer) stays in the transport, and the stamp is taken when the last byte
of it was handed over, at `resume_writing`. With TLS it is the encrypted record that is handed over.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Final, cast

import httptools

from loadgen.errors import UsageError
from loadgen.send.address import Origin, resolve, tls_context
from loadgen.send.api import Endpoint
from loadgen.send.clock import NS, Clock
from loadgen.send.flight import Flight, Landing
from loadgen.send.openai import HttpEnd, bounded

__all__ = ["WireTransport"]

_READ_BYTES: Final = 256 * 1024
RESPONSE_LIMIT_BYTES: Final = 64 * 1024 * 1024
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})  # our machine refused, not the server


class WireTransport:
    """The default transport."""

    def __init__(self, endpoint: Endpoint, clock: Clock, *, keepalive_s: float) -> None:
        """Raises `UsageError` for headers that are not HTTP."""
        self._endpoint = endpoint
        self.clock = clock
        self.keepalive_ns = round(keepalive_s * NS)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.opened_peak: int | None = None
        self.connections: set[_Connection] = set()
        self._headers = _header_lines(endpoint)
        self._pools: list[_Pool] = []

    async def open(self) -> None:
        """Resolve names and read certificates. Raises `TargetUnreachable` or `UsageError`."""
        self._pools = []
        for url in self._endpoint.urls:
            origin = await resolve(url, self._endpoint.path)
            context = tls_context(self._endpoint) if origin.tls else None
            self._pools.append(_Pool(self, origin, context, self._headers))

    def start(self, flight: Flight, landing: Landing) -> None:
        """Send a request now."""
        self._pools[flight.target].start(flight, landing)

    def cancel(self, flight: Flight) -> None:
        """Drop a request together with its connection."""
        handle, flight.handle = flight.handle, None
        if isinstance(handle, _Connection):
            handle.drop()
        elif isinstance(handle, asyncio.Task):
            handle.cancel()

    async def close(self) -> None:
        """Close every connection and wait until they are."""
        tasks = [task for pool in self._pools for task in pool.connects]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.drop()
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.001)

    def refused_by_machine(self) -> None:
        """The operating system gave no more connections: remember how many there were."""
        self.opened_peak = max(self.opened_peak or 0, len(self.connections))


def _header_lines(endpoint: Endpoint) -> bytes:
    headers = {"accept": "text/event-stream, application/json", "accept-encoding": "identity", "user-agent": "loadgen"}
    headers |= {"content-type": "application/json"}
    for name, value in endpoint.headers.items():
        if not name or not name.isascii() or any(c in name + value for c in "\r\n\0") or ":" in name:
            raise UsageError(f"header {name!r} cannot be sent: control characters, or a name that is not one")
        if name.lower() in ("content-length", "transfer-encoding", "host", "connection"):
            raise UsageError(f"header {name!r} is set by loadgen itself")
        headers[name.lower()] = value
    try:
        return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")
    except UnicodeEncodeError:
        raise UsageError("a header's value is not Latin-1 text") from None


class _Pool:
    """The connections to one origin."""

    def __init__(
        self, transport: WireTransport, origin: Origin, context: ssl.SSLContext | None, headers: bytes
    ) -> None:
        self.transport = transport
        self.idle: dict[_Connection, None] = {}  # a stack, most recently used last, that a closed one can leave
        self.connects: set[asyncio.Task[None]] = set()
        self._origin = origin
        self._context = context
        self._head = (
            f"POST {origin.path} HTTP/1.1\r\nhost: {origin.authority}\r\n".encode("latin-1")
            + headers
            + b"content-length: %d\r\n\r\n"
        )

    def start(self, flight: Flight, landing: Landing) -> None:
        flight.handed_over = True
        oldest_ns = self.transport.clock.now_ns() - self.transport.keepalive_ns
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.idle_since_ns > oldest_ns:
                connection.send(flight, landing)
                return
            connection.drop()
        task = asyncio.get_running_loop().create_task(self._connect_and_send(flight, landing))
        flight.handle = task
        self.connects.add(task)
        task.add_done_callback(self.connects.discard)

    def request(self, body: bytes) -> bytes:
        return self._head % len(body) + body

    async def _connect_and_send(self, flight: Flight, landing: Landing) -> None:
        clock, origin = self.transport.clock, self._origin
        begun_ns = clock.now_ns()
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self),
                origin.address,
                origin.port,
                ssl=self._context,
                server_hostname=origin.host if self._context else None,
            )
        except (OSError, ssl.SSLError) as error:
            if getattr(error, "errno", None) in _EXHAUSTED:
                self.transport.refused_by_machine()
            flight.connect_ns = clock.now_ns() - begun_ns
            landing.ended(flight, "connect", clock.now_ns(), bounded(str(error) or type(error).__name__))
            return
        flight.connect_ns = clock.now_ns() - begun_ns
        connection.send(flight, landing)


class _Connection(asyncio.BufferedProtocol):
    """One connection; also the callbacks of its HTTP parser."""

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._buffer = pool.transport.read_buffer
        self._now_ns = pool.transport.clock.now_ns
        self._flight: Flight | None = None
        self._landing: Landing | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._stamp_ns = 0
        self._response_bytes = 0
        self._delimited = False  # a length or chunks say where the body ends
        self._content_type = ""
        self._encoding = b""
        self._write_paused = False
        self._over: tuple[HttpEnd, str] | None = None  # how the answer ended
        self._reusable = False
        self.idle_since_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pool.transport.connections.add(self)

    def send(self, flight: Flight, landing: Landing) -> None:
        """Send a request on this connection, which is idle."""
        self._flight, self._landing = flight, landing
        self._response_bytes = 0
        self._over = None
        flight.handle = self
        transport = self._transport
        assert transport is not None
        if transport.is_closing():  # the peer was quicker: connection_lost may have come already, or never will
            asyncio.get_running_loop().call_soon(self.connection_lost, None)
            return
        transport.write(self._pool.request(flight.body))
        if not self._write_paused:
            flight.sent_ns = self._now_ns()

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
        if self._response_bytes > RESPONSE_LIMIT_BYTES:
            self._reusable = False
            self._finish("bad", f"an answer of more than {RESPONSE_LIMIT_BYTES >> 20} MiB")
            return
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._over is None:  # else bytes after the end of the answer: only the connection is spoilt
                self._over = ("bad", f"not HTTP: {bounded(str(error))}")
            self._reusable = False
        if self._over is not None:
            self._finish(*self._over)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.transport.connections.discard(self)
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
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1").lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        elif name == b"content-encoding":
            self._encoding = value.strip().lower()

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
            self._flight.received(body, self._stamp_ns)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._over is None and self._flight is not None and self._flight.headers_ns >= 0:
            self._over = ("complete", "")
            self._reusable = self._parser.should_keep_alive() and not self._write_paused

    def _finish(self, end: HttpEnd, error: str) -> None:
        """The answer is over: keep the connection if it may be kept, and tell."""
        flight, landing = self._flight, self._landing
        self._flight = self._landing = None
        if self._reusable and end == "complete":
            self.idle_since_ns = self._stamp_ns
            self._pool.idle[self] = None
        else:
            self.drop()
        if flight is not None and landing is not None:
            flight.handle = None
            landing.ended(flight, end, self._stamp_ns, error)
