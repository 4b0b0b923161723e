"""A raw HTTP/1.1 server on loopback whose every byte a test decides, and which counts what it was asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.fakes.streams import chunked, completion_events

Script = Callable[["Request"], Awaitable[None]]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Request:
    number: int  # in order of arrival, over all connections
    head: bytes
    body: bytes
    writer: asyncio.StreamWriter
    keep: bool = True  # the script sets it False to have the connection closed

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """RST instead of FIN."""
        self.keep = False
        transport = self.writer.transport
        import socket
        import struct

        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


@dataclass
class FakeServer:
    script: Script
    port: int = 0
    tls: bool = False
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    accept: bool = True

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{'localhost' if self.tls else '127.0.0.1'}:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
                )
                request = Request(len(self.requests), head, await reader.readexactly(length), writer)
                self.requests.append(request)
                await self.script(request)
                if not request.keep:
                    break
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


@asynccontextmanager
async def serving(
    script: Script, *, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[FakeServer]:
    server = FakeServer(script, tls=context is not None)
    listener = await asyncio.start_server(server.handle, host, 0, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for request in server.requests:
            request.writer.close()
        await asyncio.sleep(0)


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
