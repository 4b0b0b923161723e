"""An HTTP server whose every answer a test decides, path by path."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

Reply = tuple[int, str, bytes]  # status, content type, body
Pages = Mapping[str, Reply | bytes | None] | Callable[[str, bytes], Reply | bytes | None]
JSON, HTML, TEXT = "application/json", "text/html", "text/plain"
MODELS: Reply = (200, JSON, b'{"object":"list","data":[{"id":"m","max_model_len":512}]}')
UP: dict[str, Reply | bytes | None] = {"/health": (200, TEXT, b""), "/v1/models": MODELS}


@asynccontextmanager
async def server(pages: Pages, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that answers each path with a reply, raw bytes, or (None) never; unlisted paths are 404."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if (first := await reader.readexactly(1)) == b"\x16":  # a TLS handshake: what every HTTP server does then
                writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                return
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(
                (int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length")), 0
            )
            body = await reader.readexactly(length)
            path = head.split(" ")[1]
            reply = pages(path, head.encode() + body) if callable(pages) else pages.get(path, (404, JSON, b"{}"))
            if reply is None:
                await reader.read()
            elif isinstance(reply, bytes):
                writer.write(reply)
            else:
                status, kind, content = reply
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n".encode())
                writer.write(f"content-length: {len(content)}\r\n\r\n".encode() + content)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        listening.close()
