"""A raw HTTP/1.1 server on loopback whose every byte a test decides, and which counts what it was asked."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from anyio.from_thread import start_blocking_portal

from tests.fakes.streams import chunked, completion_events

Script = Callable[["Request"], Awaitable[None]]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Request:
    number: int  # in order of arrival, over all connections
    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keep: bool = True  # the script sets it False to have the connection closed

    @property
    def path(self) -> str:
        return self.head.split(b" ")[1].decode()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        await self.reader.read()

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """RST instead of FIN."""
        self.keep = False
        transport = self.writer.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


@dataclass
class FakeServer:
    script: Script
    port: int = 0
    tls: bool = False
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    handlers: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)
    listener: asyncio.Server | None = None
    over: bool = False

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{'localhost' if self.tls else '127.0.0.1'}:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        handler = cast("asyncio.Task[None]", asyncio.current_task())
        self.handlers[handler] = writer
        try:
            # cancelled only by `end`; asyncio would log a handler that ends so
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            del self.handlers[handler]
            if self.over:
                writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not self.over:
                first = await reader.readexactly(1)
                if first == b"\x16":  # a TLS handshake: what every HTTP server does then
                    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                    break
                head = first + await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
                )
                body = await reader.readexactly(length)
                request = Request(len(self.requests), head, body, reader, writer)
                self.requests.append(request)
                await self.script(request)
                if not request.keep:
                    break
        writer.close()
        await writer.wait_closed()

    def die(self) -> None:
        """Refuse connections and break those there are, as the system does for a process that was killed."""
        self.over = True
        assert self.listener is not None
        self.listener.close()
        for writer in self.handlers.values():
            writer.transport.abort()

    async def end(self) -> None:
        """Cancel every handler and close its connection, so that nothing outlives the test's event loop."""
        self.over = True
        for _ in range(3):  # a connection that was just accepted has no handler yet
            await asyncio.sleep(0)
            ending = dict(self.handlers)
            for handler in ending:
                handler.cancel()
            closed = [writer.wait_closed() for writer in ending.values()]
            await asyncio.gather(*ending, *closed, return_exceptions=True)


@asynccontextmanager
async def serving(
    script: Script,
    *,
    context: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    path: Path | None = None,
) -> AsyncIterator[FakeServer]:
    """On a port of `host`, or on the Unix socket at `path`."""
    server = FakeServer(script, tls=context is not None)
    if path is not None:
        server.listener = await asyncio.start_unix_server(server.handle, path)
    else:
        server.listener = await asyncio.start_server(server.handle, host, port, ssl=context)
        server.port = server.listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.listener.close()
        await server.end()


@contextmanager
def in_thread(script: Script) -> Iterator[str]:
    """`serving` on a loop of its own, for a test that blocks its thread; the server's URL."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(script)) as server:
        yield server.url


def stream(tokens: int = 4, *, first_s: float = 0.0, gap_s: float = 0.0, crlf: bool = False) -> Script:
    """A chunked stream with an event a chunk."""

    async def script(request: Request) -> None:
        await asyncio.sleep(first_s)
        request.writer.write(STREAM_HEAD)
        for piece in completion_events(tokens):
            data = piece.replace(b"\n", b"\r\n") if crlf else piece
            await request.write(chunked(data))
            if gap_s:
                await asyncio.sleep(gap_s)
        await request.write(b"0\r\n\r\n")

    return script


def answering(raw: bytes, *, keep: bool = True, bytewise: bool = False) -> Script:
    """These very bytes."""

    async def script(request: Request) -> None:
        request.keep = keep
        if not bytewise:
            await request.write(raw)
            return
        for byte in raw:
            await request.write(bytes([byte]))
            await asyncio.sleep(0)

    return script
