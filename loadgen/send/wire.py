"""HTTP/1.1 on the hot path through the event loop's own transports: TCP, TLS and Unix sockets, stamped as Python reads.

A request without an idle connection (`pool`) waits for the connect, which is logged apart. `prewarm` opens connections
before t0, so that the first requests do not wait for theirs.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from analysis.text import bounded
from analysis.units import NS_PER_S
from loadgen.send.active import ActiveRequest, CompletionHandler
from loadgen.send.address import Origin, exhausted, resolve
from loadgen.send.api import Endpoint
from loadgen.send.clock import Clock
from loadgen.send.connection import Connection
from loadgen.send.pool import IdleConnections, header_lines

__all__ = ["WireTransport"]

_READ_BYTES: Final = 256 * 1024


class WireTransport:
    """The transport of `--stamps user`."""

    def __init__(self, endpoint: Endpoint, clock: Clock, *, keepalive_s: float) -> None:
        """Raises `UsageError` for headers that are not HTTP."""
        self._endpoint = endpoint
        self.clock = clock
        self.keepalive_ns = round(keepalive_s * NS_PER_S)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.opened_peak: int | None = None
        self.connections: set[Connection] = set()
        self._headers = header_lines(endpoint)
        self._pools: list[_Pool] = []

    async def open(self) -> None:
        """Resolve names and read certificates. Raises `TargetUnreachable` or `UsageError`."""
        self._pools = []
        for url in self._endpoint.urls:
            origin = await resolve(url, self._endpoint.path)
            context = self._endpoint.tls.context() if origin.tls else None
            self._pools.append(_Pool(self, origin, context, self._headers))

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
        if isinstance(handle, Connection):
            handle.drop()
        elif isinstance(handle, asyncio.Task):
            handle.cancel()

    def catch_up(self, active: ActiveRequest) -> None:
        """No request lags: all are read as soon as something comes."""

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
        """The operating system gave no more connections: remember how many carried a request.

        Idle ones do not count: this is held against the requests in flight, and the refused one is one more of these.
        """
        busy = sum(connection.busy for connection in self.connections)
        self.opened_peak = max(self.opened_peak or 0, busy)


class _Pool(IdleConnections[Connection]):
    """The connections to one origin."""

    def __init__(
        self, transport: WireTransport, origin: Origin, context: ssl.SSLContext | None, headers: bytes
    ) -> None:
        super().__init__(origin, headers, now_ns=transport.clock.now_ns, keepalive_ns=transport.keepalive_ns)
        self.transport = transport
        self.read_buffer = transport.read_buffer
        self.clock = transport.clock
        self.connections = transport.connections
        self.connects: set[asyncio.Task[None]] = set()
        self._context = context

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        active.handed_over = True
        if (connection := self.take()) is not None:
            connection.send(active, handler)
            return
        task = asyncio.get_running_loop().create_task(self._connect_and_send(active, handler))
        active.handle = task
        self.connects.add(task)
        task.add_done_callback(self.connects.discard)

    async def connect(self) -> Connection:
        loop, origin, connection = asyncio.get_running_loop(), self.origin, Connection(self)
        try:
            if origin.socket_path:
                await loop.create_unix_connection(lambda: connection, origin.socket_path)
            else:
                await loop.create_connection(
                    lambda: connection,
                    origin.address,
                    origin.port,
                    ssl=self._context,
                    server_hostname=origin.host if self._context else None,
                )
        except BaseException:  # cancelled, too
            connection.abandon()
            raise
        return connection

    async def _connect_and_send(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        clock = self.clock
        begun_ns = clock.now_ns()
        try:
            connection = await self.connect()
        except OSError as error:  # an SSLError is one
            if exhausted(error):
                self.transport.refused_by_machine()
            active.connect_ns = clock.now_ns() - begun_ns
            handler.ended(active, "connect", clock.now_ns(), bounded(str(error) or type(error).__name__))
            return
        active.connect_ns = clock.now_ns() - begun_ns
        connection.send(active, handler)
