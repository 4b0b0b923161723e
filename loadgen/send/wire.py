"""HTTP/1.1 on the hot path: connections pooled by origin, each with one request at a time (`connection`).

Theory of operation. The pool has no cap: a request takes the connection that was used last, if it has been idle for
less than `keepalive_s` (a server closes idle ones, and a request caught by that would be lost: there is no retry), else
a new one is opened for it and the request waits for the connect, which is logged apart. One on which something came
while it was idle is not used: an answer nobody asked for, or its end. `prewarm` opens connections
before t0, so that the first requests do not wait for theirs.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from analysis.text import bounded
from analysis.units import NS_PER_S
from loadgen.common.errors import TargetUnreachable, UsageError
from loadgen.common.headers import fault_of_header
from loadgen.send.active import ActiveRequest, CompletionHandler
from loadgen.send.address import Origin, exhausted, resolve
from loadgen.send.api import Endpoint
from loadgen.send.clock import Clock
from loadgen.send.connection import Connection

__all__ = ["WireTransport"]

_READ_BYTES: Final = 256 * 1024
_PREWARM_AT_ONCE: Final = 64
_PREWARM_S: Final = 10.0


class WireTransport:
    """The default transport."""

    def __init__(self, endpoint: Endpoint, clock: Clock, *, keepalive_s: float) -> None:
        """Raises `UsageError` for headers that are not HTTP."""
        self._endpoint = endpoint
        self.clock = clock
        self.keepalive_ns = round(keepalive_s * NS_PER_S)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.opened_peak: int | None = None
        self.connections: set[Connection] = set()
        self._headers = _header_lines(endpoint)
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
            await pool.prewarm(count)

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


def _header_lines(endpoint: Endpoint) -> bytes:
    headers = {"accept": "text/event-stream, application/json", "accept-encoding": "identity", "user-agent": "loadgen"}
    headers |= {"content-type": "application/json"}
    for name, value in endpoint.headers.items():
        if fault := fault_of_header(name, value):
            raise UsageError(f"header {name!r}: {fault}")
        headers[name.lower()] = value
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


class _Pool:
    """The connections to one origin."""

    def __init__(
        self, transport: WireTransport, origin: Origin, context: ssl.SSLContext | None, headers: bytes
    ) -> None:
        self.transport = transport
        self.read_buffer = transport.read_buffer
        self.clock = transport.clock
        self.connections = transport.connections
        self.idle: dict[Connection, None] = {}
        self.connects: set[asyncio.Task[None]] = set()
        self._origin = origin
        self._context = context
        self._head = (
            f"POST {origin.path} HTTP/1.1\r\nhost: {origin.authority}\r\n".encode("latin-1")
            + headers
            + b"content-length: %d\r\n\r\n"
        )

    async def prewarm(self, count: int) -> None:
        made: list[tuple[Connection, int]] = []
        try:
            async with asyncio.timeout(_PREWARM_S):
                while len(made) < count:
                    batch = [self._connect() for _ in range(min(_PREWARM_AT_ONCE, count - len(made)))]
                    made += [(connection, self.clock.now_ns()) for connection in await asyncio.gather(*batch)]
        except TimeoutError:
            so_far = f"only {len(made)} of {count} connections (--prewarm) within {_PREWARM_S:g} s"
            raise TargetUnreachable(f"{self._origin.authority}: {so_far}") from None
        except OSError as error:
            if exhausted(error):
                raise UsageError(
                    f"--prewarm {count}: this machine gives no more than {len(made)} connections"
                ) from None
            failed = f"connection {len(made) + 1} of {count} (--prewarm) failed: {bounded(str(error))}"
            raise TargetUnreachable(f"{self._origin.authority}: {failed}") from None
        t0_ns = self.clock.now_ns()  # t0 is about now, and the run's clock begins at 0 there
        for connection, made_ns in made:
            connection.idle_since_ns = made_ns - t0_ns
            self.idle[connection] = None

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        active.handed_over = True
        oldest_ns = self.clock.now_ns() - self.transport.keepalive_ns
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.idle_since_ns > oldest_ns and not connection.stale:
                connection.send(active, handler)
                return
            connection.drop()
        task = asyncio.get_running_loop().create_task(self._connect_and_send(active, handler))
        active.handle = task
        self.connects.add(task)
        task.add_done_callback(self.connects.discard)

    def request(self, body: bytes) -> bytes:
        return self._head % len(body) + body

    async def _connect(self) -> Connection:
        loop, origin, connection = asyncio.get_running_loop(), self._origin, Connection(self)
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
            connection = await self._connect()
        except OSError as error:  # an SSLError is one
            if exhausted(error):
                self.transport.refused_by_machine()
            active.connect_ns = clock.now_ns() - begun_ns
            handler.ended(active, "connect", clock.now_ns(), bounded(str(error) or type(error).__name__))
            return
        active.connect_ns = clock.now_ns() - begun_ns
        connection.send(active, handler)
