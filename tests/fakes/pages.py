"""A table of pages as the script of a server: what each path answers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from tests.fakes.server import Request, Script, serving

Reply = tuple[int, str, bytes]  # status, content type, body
Pages = Mapping[str, Reply | bytes | None] | Callable[[str, bytes], Reply | bytes | None]
JSON, HTML, TEXT = "application/json", "text/html", "text/plain"
MODELS: Reply = (200, JSON, b'{"object":"list","data":[{"id":"m","max_model_len":512}]}')
UP: dict[str, Reply | bytes | None] = {"/health": (200, TEXT, b""), "/v1/models": MODELS}


def paged(pages: Pages) -> Script:
    """Each path is answered with a reply, raw bytes, or (None) never; unlisted paths are 404."""

    async def script(request: Request) -> None:
        request.keep = False
        whole = request.head + request.body
        reply = pages(request.path, whole) if callable(pages) else pages.get(request.path, (404, JSON, b"{}"))
        if reply is None:
            await request.gone()
        else:
            await request.write(reply if isinstance(reply, bytes) else raw(reply))

    return script


def raw(reply: Reply, *headers: str) -> bytes:
    """The bytes of an answer after which the connection is closed."""
    status, kind, content = reply
    lines = (f"HTTP/1.1 {status} X", f"content-type: {kind}", "connection: close", f"content-length: {len(content)}")
    return "".join(f"{line}\r\n" for line in (*lines, *headers, "")).encode() + content


@asynccontextmanager
async def server(pages: Pages, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server of these pages, its host as an address, under TLS too."""
    async with serving(paged(pages), context=tls) as fake:
        yield f"http{'s' if tls else ''}://127.0.0.1:{fake.port}"
