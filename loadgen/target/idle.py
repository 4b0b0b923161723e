"""How long a server keeps an idle connection, measured on one of our own while other things happen.

One request opens the connection's idle time (a connection without any is often kept longer), then its end is waited
for. A request that goes out on a connection at the moment the server closes it is lost and is not retried, so the load
reuses connections for less than that.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from typing import Final

from loadgen.send.address import resolve
from loadgen.send.api import SendOptions
from loadgen.target.http import Http

__all__ = ["WATCH_S", "IdleWatch"]

WATCH_S: Final = 7.0  # beyond the 5 s of uvicorn and of vLLM
_SHARE: Final = 0.8  # of the server's limit that is used: as 4 s of vLLM's 5 s
_PATH: Final = "/v1/models"
_AT_ONCE_S: Final = 0.1
_ANNOUNCED: Final = re.compile(rb"\r\nkeep-alive:[^\r]*timeout=(\d+)", re.IGNORECASE)


class IdleWatch:
    """Watches one connection to a server; `run` it as a task and read it at any time."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.connect_s: float | None = None
        self.answer_s: float | None = None  # from the request to the first bytes of its answer
        self.announced_s: float | None = None  # Keep-Alive: timeout=N
        self.closed_s: float | None = None  # idle time after which the server closed; None: not so far
        self._idle_from_s: float | None = None

    @property
    def watched_s(self) -> float:
        """How long the connection has been idle and open."""
        if self.closed_s is not None:
            return self.closed_s
        return 0.0 if self._idle_from_s is None else time.monotonic() - self._idle_from_s

    def keepalive_s(self) -> float:
        """How long the load may leave a connection idle and use it again.

        The sender's own default, unless the server is known to close sooner, or has not been watched that long yet.
        """
        default = SendOptions().keepalive_s
        if self.connect_s is None:  # it cannot be watched, as through a proxy
            return default
        limits = [self.watched_s] + ([] if self.announced_s is None else [self.announced_s])
        return min(default, _SHARE * min(limits))

    @property
    def text(self) -> str:
        """What was seen, in words."""
        announced = "" if self.announced_s is None else f" (it announces {self.announced_s:g} s)"
        if self.closed_s is None:
            return f"longer than {self.watched_s:.0f} s{announced}" if self.connect_s is not None else "not seen"
        if self.closed_s < _AT_ONCE_S:
            return f"none: closed after every answer{announced}"
        return f"{self.closed_s:.1f} s{announced}"

    async def run(self) -> None:
        """Until the server closes, or for `WATCH_S`. A server that cannot be watched is left at that."""
        with suppress(OSError, TimeoutError):
            await self._watch()

    async def _watch(self) -> None:
        origin = await resolve(self._http.base, _PATH)
        tls = self._http.tls.context() if origin.tls else None
        began_s = time.monotonic()
        async with asyncio.timeout(self._http.timeout_s):
            if origin.socket_path:
                reader, writer = await asyncio.open_unix_connection(origin.socket_path)
            else:
                name = origin.host if tls else None
                reader, writer = await asyncio.open_connection(
                    origin.address, origin.port, ssl=tls, server_hostname=name
                )
        self.connect_s = time.monotonic() - began_s
        try:
            headers = "".join(f"{name}: {value}\r\n" for name, value in self._http.headers.items())
            request = f"GET {origin.path} HTTP/1.1\r\nhost: {origin.authority}\r\n{headers}\r\n"
            asked_s = time.monotonic()
            writer.write(request.encode("latin-1"))
            async with asyncio.timeout(self._http.timeout_s):
                head = await reader.read(65536)
            self.answer_s = time.monotonic() - asked_s
            if match := _ANNOUNCED.search(head):
                self.announced_s = float(match[1])
            await self._until_closed(reader, still_open=bool(head))
        finally:
            writer.transport.abort()  # a TLS goodbye would wait for the server's, and outlive the event loop

    async def _until_closed(self, reader: asyncio.StreamReader, *, still_open: bool) -> None:
        self._idle_from_s = time.monotonic()
        while still_open:
            try:
                async with asyncio.timeout(WATCH_S - (time.monotonic() - self._idle_from_s)):
                    still_open = bool(await reader.read(65536))
            except TimeoutError:
                return
            except OSError:
                still_open = False
            if still_open:  # the rest of the answer
                self._idle_from_s = time.monotonic()
        self.closed_s = time.monotonic() - self._idle_from_s
