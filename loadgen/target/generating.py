"""A request that generates, outside any run: sent by the load's own transport, read and judged by the load's own rules.

What such a request shows of a server (whether it streams, ends its answers and may be read at all) is then what the
load will meet: the same headers, the same reads, the same outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from analysis.units import NS_PER_S
from loadgen.common.errors import ClientLimited
from loadgen.common.members import JsonMembers
from loadgen.common.redact import secrets_of
from loadgen.send.active import ActiveRequest, Transport
from loadgen.send.api import Endpoint, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.httpx_transport import HttpxTransport
from loadgen.send.openai import HttpEnd, ParsedResponse
from loadgen.send.reader import read_exchange
from loadgen.send.wire import WireTransport
from loadgen.target.http import HttpResponse, Unreachable, no_connection_left

__all__ = ["Generated", "Generator", "generator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What came of one request."""

    answer: HttpResponse  # status and body, as of any page
    outcome: str  # as of a request of the load
    fault: str  # why it is not ok, in words
    reading: ParsedResponse | None  # of a 200
    wait_s: float = 0.0  # from the request to its first token

    @property
    def span_s(self) -> float:
        """Seconds from the first token to the last."""
        return 0.0 if self.reading is None else (self.reading.last_token_ns - self.reading.first_token_ns) / NS_PER_S


class _Kept(ActiveRequest):
    """A active that keeps all of its body, for a survey looks at what a run only reads."""

    __slots__ = ("all_parts", "all_stamps", "content_type")

    def __init__(self, index: int, scheduled_ns: int) -> None:
        super().__init__(index, scheduled_ns)
        self.all_parts: list[bytes] = []
        self.all_stamps: list[int] = []
        self.content_type = ""

    def opened(self, at_ns: int, status: int, content_type: str) -> None:
        self.content_type = content_type
        super().opened(at_ns, status, content_type)

    def received(self, chunk: bytes, at_ns: int) -> None:
        self.all_parts.append(chunk)
        self.all_stamps.append(at_ns)
        super().received(chunk, at_ns)


class _Completed:
    """Waits for the end of one request."""

    def __init__(self) -> None:
        self.end: asyncio.Future[tuple[HttpEnd, str]] = asyncio.get_running_loop().create_future()

    def ended(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        """See `CompletionHandler`."""
        if not self.end.done():
            self.end.set_result((end, error))


class Generator:
    """Sends requests to one URL, one at a time; made by `generator`."""

    def __init__(self, endpoint: Endpoint, transport: Transport, clock: LoopClock) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._clock = clock
        self.sent = 0

    async def post(self, body: JsonMembers, *, output_tokens: int, timeout_s: float) -> Generated:
        """Send one. Raises `Unreachable` where it gets no HTTP answer, `ClientLimited` where it got no connection here.

        `output_tokens` is the largest output that it asks for.
        """
        base = self._endpoint.urls[0]
        active, completed = _Kept(self.sent, self._clock.now_ns()), _Completed()
        active.body, active.output_tokens_planned = body.to_json(), output_tokens
        self.sent += 1
        self._transport.start(active, completed)
        try:
            async with asyncio.timeout(timeout_s):
                end, error = await completed.end
        except TimeoutError:
            raise Unreachable(
                f"{base}: {self._endpoint.path}: no whole answer within {timeout_s:g} s", "timeout"
            ) from None
        finally:
            if not completed.end.done() or completed.end.cancelled():
                self._transport.cancel(active)
        if end == "connect" and self._transport.opened_peak is not None:
            raise ClientLimited(no_connection_left(base))
        if active.status < 0:
            why = {"connect": "cannot connect", "bad": "what answers there does not speak HTTP"}.get(end, "it was lost")
            raise Unreachable(
                f"{base}: {self._endpoint.path}: {why} ({error})", "refused" if end == "connect" else "lost"
            )
        return self._judged(active, end, error, output_tokens)

    def _judged(self, active: _Kept, end: HttpEnd, error: str, output_tokens: int) -> Generated:
        read = read_exchange(
            active.all_parts,
            active.all_stamps,
            status=active.status,
            content_type=active.content_type,
            end=end,
            error=error or ("" if active.status == 200 else active.refusal()),
            limit_tokens=output_tokens,
        )
        answer = HttpResponse(
            url=self._endpoint.urls[0] + self._endpoint.path,
            status=active.status,
            content_type=active.content_type,
            body=b"".join(active.all_parts),
            retry_after=active.retry_after,
            secrets=secrets_of(self._endpoint.headers),
        )
        began_ns = active.sent_ns if active.sent_ns >= 0 else active.scheduled_ns
        reading = read.answer
        wait_s = (reading.first_token_ns - began_ns) / NS_PER_S if reading is not None and reading.events else 0.0
        return Generated(answer=answer, outcome=read.outcome, fault=read.error, reading=reading, wait_s=wait_s)


@asynccontextmanager
async def generator(endpoint: Endpoint, *, proxied: bool = False) -> AsyncIterator[Generator]:
    """A sender to the endpoint's first URL; `proxied`: by the transport that takes a proxy from the environment.

    Raises `TargetUnreachable` or `UsageError`.
    """
    clock = LoopClock()
    kind = HttpxTransport if proxied else WireTransport
    transport: Transport = kind(endpoint, clock, keepalive_s=SendOptions().keepalive_s)
    try:
        await transport.open()
        clock.start()
        yield Generator(endpoint, transport, clock)
    finally:
        await transport.close()
        clock.close()
