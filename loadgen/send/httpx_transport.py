"""The same seam over httpx, for what `wire` does not speak: proxies (from the environment), special auth.

Its ceiling is low, and is why it is not the default: on one core, 128-token streams at 10 ms, httpx keeps p99 of the
send lag and of the TTFT error below 5 ms up to some 40 to 80 requests/s (`benchmarks/client_ceiling.py` measures it
beside `wire`), with the CPU at 25–30 %. The heartbeat and send-lag gates make a run beyond that INVALID. Its pool is
opened as far as it goes; where a request still waits in it, `sent_ns` shows the wait.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.request import getproxies

import httpx

from analysis.text import bounded
from loadgen.common import defaults
from loadgen.common.errors import UsageError
from loadgen.send.active import HEADERS_TOO_LONG, READ_AT_BYTES, ActiveRequest, CompletionHandler
from loadgen.send.address import exhausted, resolve, socket_path
from loadgen.send.api import Endpoint
from loadgen.send.clock import Clock
from loadgen.send.openai import HttpEnd

__all__ = ["HttpxTransport"]

_PIECE_BYTES: Final = 64  # what a piece of a body costs beside its own bytes


class HttpxTransport:
    """An `httpx.AsyncClient` a URL, one task a request."""

    def __init__(self, endpoint: Endpoint, clock: Clock, *, keepalive_s: float) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._keepalive_s = keepalive_s
        self._clients: list[
            tuple[httpx.AsyncClient, str]
        ] = []  # with the request's URL, in the order of the endpoint's
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0  # requests that have a connection
        self.opened_peak: int | None = None

    async def open(self) -> None:
        """Check the URLs and make the clients. Raises `TargetUnreachable` or `UsageError`."""
        proxied = getproxies()  # a proxy resolves the name itself, and perhaps only it can
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=self._keepalive_s)
        for url in self._endpoint.urls:
            if not proxied:
                await resolve(url, self._endpoint.path)
            unix, base = socket_path(url), "http://localhost" if socket_path(url) else url.rstrip("/")
            try:
                client = httpx.AsyncClient(
                    transport=httpx.AsyncHTTPTransport(uds=unix, limits=limits) if unix else None,
                    verify=self._endpoint.tls.context(),
                    headers={
                        "content-type": "application/json",
                        "accept-encoding": "identity",
                        **self._endpoint.headers,
                    },
                    timeout=None,  # noqa: S113 - the dispatcher's time-out counts from the scheduled instant
                    limits=limits,
                )
            except (ValueError, TypeError, ImportError) as error:
                raise UsageError(f"--transport httpx cannot be used as asked: {error}") from None
            self._clients.append((client, base + self._endpoint.path))

    async def prewarm(self, count: int) -> None:
        """Not to be had: httpx connects only for a request. Raises `UsageError` if it is asked for."""
        if count:
            raise UsageError("--prewarm needs --transport wire: httpx opens no connection without a request")

    def start(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """Send a request now."""
        task = asyncio.get_running_loop().create_task(self._exchange(active, handler))
        active.handle = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, active: ActiveRequest) -> None:
        """Drop a request."""
        task, active.handle = active.handle, None
        if task is not None:
            task.cancel()

    def catch_up(self, active: ActiveRequest) -> None:
        """No request lags: all are read as soon as something comes."""

    async def close(self) -> None:
        """Close every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client, _ in self._clients:
            await client.aclose()

    async def _exchange(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        end: HttpEnd = "complete"
        error = ""
        began_connect_ns = 0
        connected = False
        client, url = self._clients[active.target]

        async def trace(name: str, _: object) -> None:
            nonlocal began_connect_ns, connected
            if name in ("connection.connect_tcp.started", "connection.connect_unix_socket.started"):
                active.handed_over = True
                began_connect_ns = self._clock.now_ns()
            elif name.startswith("connection.") and name.endswith(".complete"):  # connected, then perhaps TLS
                active.connect_ns = self._clock.now_ns() - began_connect_ns
            elif name.endswith("send_request_headers.started"):
                active.handed_over = True
                self._busy += not connected
                connected = True
            elif name.endswith("send_request_body.complete"):
                active.sent_ns = self._clock.now_ns()

        try:
            async with client.stream("POST", url, content=active.body, extensions={"trace": trace}) as response:
                if error := await self._receive(response, active):
                    end = "bad"
                await _close_if_more_came(response)
                if not ({"content-length", "transfer-encoding"} & response.headers.keys()) and end == "complete":
                    end = "eof" if response.http_version.startswith("HTTP/1") else "complete"
        except (httpx.ConnectError, httpx.ProxyError) as failure:
            if exhausted(failure):
                self.opened_peak = max(self.opened_peak or 0, self._busy)
            end, error = "connect", bounded(str(failure) or type(failure).__name__)
        except httpx.RemoteProtocolError as failure:
            died = "disconnect" in str(failure) or "closed" in str(failure)
            kept = "cut" if active.headers_ns >= 0 else "lost"
            end, error = (kept if died else "bad"), bounded(str(failure))  # type: ignore[assignment]
        except httpx.HTTPError as failure:
            end, error = "lost", bounded(str(failure) or type(failure).__name__)
        finally:
            self._busy -= connected
        active.handle = None
        handler.ended(active, end, self._clock.now_ns(), error)

    async def _receive(self, response: httpx.Response, active: ActiveRequest) -> str:
        """Take the answer; why not all of it was taken, or ""."""
        now_ns, headers = self._clock.now_ns, response.headers
        active.opened(now_ns(), response.status_code, headers.get("content-type", "").lower())
        active.retry_after = bounded(headers.get("retry-after", ""))
        if sum(len(name) + len(value) + 4 for name, value in headers.raw) > defaults.ANSWER_HEADERS_BYTES:
            return HEADERS_TOO_LONG
        received, look_at = 0, READ_AT_BYTES
        assert isinstance(response.stream, httpx.AsyncByteStream)
        async for piece in response.stream:  # unlike aiter_raw it leaves the connection to us at its end
            active.received(piece, now_ns())
            received += len(piece) + _PIECE_BYTES
            if received > look_at:
                look_at = received + READ_AT_BYTES
                if refused := active.grown(received):
                    return refused
        return ""


async def _close_if_more_came(response: httpx.Response) -> None:
    """Close the connection if bytes came behind the answer: httpx would read them as the answer to the next request.

    What it has read and not used is known to its parser alone, which it does not show; what comes later it sees itself.
    """
    layer: Any = response.stream
    while layer is not None and not hasattr(layer, "_connection"):
        layer = getattr(layer, "_stream", None) or getattr(layer, "_httpcore_stream", None)
    state = getattr(getattr(layer, "_connection", None), "_h11_state", None)
    stream = response.extensions.get("network_stream")
    if state is not None and stream is not None and state.trailing_data[0]:
        await stream.aclose()
