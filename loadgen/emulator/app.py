"""The HTTP front end: an ASGI application with vLLM's routes, fields and errors in front of a model.

Written by hand, without a framework: a stream's event costs little more than the socket write. A request's arrival is
stamped when its body is complete; headers go out at once, before any token, as vLLM sends them.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TextIO

import orjson

from loadgen.emulator.bodies import Answer, models_body
from loadgen.emulator.driver import Channel, Driver
from loadgen.emulator.info import server_info
from loadgen.emulator.model import Busy, Job
from loadgen.emulator.profiles import Profile
from loadgen.emulator.request import (
    ApiError,
    Endpoint,
    GenerateRequest,
    read_detokenize,
    read_request,
    read_tokenize,
)
from loadgen.emulator.service import STOP_SEED, natural_tokens, prompt_uniform
from loadgen.emulator.telemetry import Telemetry
from loadgen.emulator.vocabulary import decode, piece

__all__ = ["MODEL_NAME", "VERSION", "EmulatorApp"]

MODEL_NAME: Final = "emulator"
VERSION: Final = "0.32.0+loadgen-emulator"  # the vLLM whose surface this is, and whose it is not

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

_JSON: Final = (b"content-type", b"application/json")
_SSE: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_TEXT: Final = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class EmulatorApp:
    """One emulated server. `truth`, if given, gets one JSON line a finished request (all instants monotonic ns)."""

    def __init__(self, profile: Profile, *, truth: TextIO | None = None) -> None:
        self._profile, self._limits = profile, profile.server
        self._model = profile.build()
        self._driver: Driver | None = None
        self._truth = truth
        self._keys = itertools.count(1)
        self._created = int(time.time())
        self._telemetry = Telemetry(MODEL_NAME, self._limits.max_model_len, self._model.gauges)
        self._gets: dict[str, Callable[[Message], tuple[bytes, Header | None]]] = {
            "/health": lambda _: (b"", None),
            "/ping": lambda _: (b"", None),
            "/version": lambda _: (orjson.dumps({"version": VERSION}), _JSON),
            "/v1/models": lambda _: (models_body(MODEL_NAME, self._created, self._limits.max_model_len), _JSON),
            "/metrics": lambda _: (self._telemetry.exposition(), _TEXT),
            "/load": lambda _: (orjson.dumps({"server_load": self._outstanding()}), _JSON),
            "/server_info": lambda scope: (
                server_info(self._profile, as_json=b"config_format=json" in scope["query_string"]), _JSON
            ),
        }  # fmt: skip
        self._posts: dict[str, Callable[[bytes], bytes]] = {
            "/reset_prefix_cache": lambda _: orjson.dumps({"success": self._model.reset_prefix_cache()}),
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/ping": lambda _: b"",
        }
        self._generates: dict[str, Endpoint] = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI 3, http scopes only."""
        if self._driver is None:
            self._driver = Driver(self._model, self._telemetry.gap)
        path, method = scope["path"], scope["method"]
        if path in self._generates and method == "POST":
            await self._generate(self._generates[path], self._driver, scope, receive, send)
        elif path in self._gets and method in ("GET", "HEAD"):
            self._driver.settle()
            body, kind = self._gets[path](scope)
            await _respond(send, 200, body, kind)
        elif path in self._posts and method == "POST":
            await self._post(self._posts[path], self._driver, receive, send)
        elif path in self._generates or path in self._gets or path in self._posts:
            await _respond(send, 405, b'{"detail":"Method Not Allowed"}')
        else:
            await _respond(send, 404, b'{"detail":"Not Found"}')

    def close(self) -> None:
        """Release what the running loop holds, and flush the truth log."""
        if self._driver is not None:
            self._driver.close()
        if self._truth is not None:
            self._truth.flush()

    def _outstanding(self) -> int:
        gauges = self._model.gauges()
        return gauges.running + gauges.waiting

    async def _post(self, answer: Callable[[bytes], bytes], driver: Driver, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        if body is None:
            return
        driver.settle()
        try:
            await _respond(send, 200, answer(body))
        except ApiError as refusal:
            await _respond(send, refusal.status, refusal.body)

    def _tokenize(self, body: bytes) -> bytes:
        ids, strings = read_tokenize(body, MODEL_NAME, self._limits)
        texts = [piece(token_id).decode("utf-8", "replace") for token_id in ids] if strings else None
        limit = self._limits.max_model_len
        return orjson.dumps({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": texts})

    def _detokenize(self, body: bytes) -> bytes:
        return orjson.dumps({"prompt": decode(read_detokenize(body, MODEL_NAME, self._limits))})

    async def _generate(self, endpoint: Endpoint, driver: Driver, scope: Message, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        arrived_ns = time.monotonic_ns()
        if body is None:
            return
        try:
            request = read_request(endpoint, body, MODEL_NAME, self._limits)
            tokens, stops = self._output(request)
            key = next(self._keys)
            job = Job(
                key=key,
                prompt=request.prompt,
                output_tokens=tokens,
                cache_salt=request.cache_salt,
                priority=request.priority,
            )
            channel = driver.submit(job, arrived_ns)
        except ApiError as refusal:
            await _respond(send, refusal.status, refusal.body)
            return
        except Busy:
            self._telemetry.refused()
            await _respond(send, 503, _BUSY.body)
            return
        answer = Answer(
            request,
            key=_request_id(scope) or secrets.token_hex(8),
            created=int(time.time()),
            model=MODEL_NAME,
            tokens=tokens,
            stops=stops,
            limits=self._limits,
        )
        hung_up = asyncio.ensure_future(receive())
        hung_up.add_done_callback(lambda _: channel.hang_up())
        try:
            truth = await self._relay(answer, channel, request, arrived_ns, send)
        finally:
            hung_up.cancel()
            driver.leave(key)
        if truth is None:
            self._telemetry.left()
            return
        assert channel.first is not None
        assert channel.latest is not None
        self._telemetry.finished(
            "stop" if stops else "length", arrived_ns=arrived_ns, written_ns=truth["last_ns"], first=channel.first,
            last=channel.latest, prompt_tokens=len(request.prompt), output_tokens=tokens, max_tokens=request.max_tokens,
        )  # fmt: skip
        if self._truth is not None:
            row = {"id": answer.id, "arrived_ns": arrived_ns, **truth, "tokens": tokens}
            self._truth.write(orjson.dumps(row).decode() + "\n")

    async def _relay(
        self, answer: Answer, channel: Channel, request: GenerateRequest, arrived_ns: int, send: Send
    ) -> dict[str, int] | None:
        """Write tokens as they come out.

        Returns when the first and the last were written (`_ns`) and when the model said they were (`_due_ns`);
        `None` if the client went away.
        """
        stream = request.stream
        if stream:
            await send({"type": "http.response.start", "status": 200, "headers": [_SSE]})
        truth: dict[str, int] = {}
        told = written = 0
        while True:
            batch = await channel.next()
            if batch is None:
                return None
            told += batch.tokens
            if channel.first is not None:
                answer.cached_tokens = channel.first.cached_tokens
            ready = answer.ready(told)
            if stream and ready > written:
                await _write(send, answer, written, ready, last=batch.finished)
            elif batch.finished:
                await _respond(send, 200, answer.whole())
            now_ns = time.monotonic_ns()
            if not truth:
                truth |= {"first_ns": now_ns, "first_due_ns": batch.due_ns}
                self._telemetry.first_token((now_ns - arrived_ns) / 1e9, len(request.prompt), answer.cached_tokens)
            written = ready
            self._telemetry.tokens(batch.tokens)
            if batch.finished:
                return truth | {"last_ns": now_ns, "last_due_ns": batch.due_ns}

    def _output(self, request: GenerateRequest) -> tuple[int, bool]:
        """How many tokens the answer has, and whether it stops by itself before its limit.

        A natural length is geometric with the profile's mean, drawn from the prompt; the token that stops counts.
        """
        if request.ignore_eos:
            return request.max_tokens, False
        natural = int(natural_tokens(prompt_uniform(request.prompt, STOP_SEED), self._limits.eos_mean_tokens))
        natural = max(natural, request.min_tokens)
        return (natural, True) if natural < request.max_tokens else (request.max_tokens, False)


_BUSY: Final = ApiError(
    503,
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
)


async def _write(send: Send, answer: Answer, written: int, ready: int, *, last: bool) -> None:
    """All that is due of one stream, in one write."""
    body = answer.events(written, ready)
    if not written:
        body = answer.opener() + body
    if last:
        body += answer.end()
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _respond(send: Send, status: int, body: bytes, kind: tuple[bytes, bytes] | None = _JSON) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    if kind is not None:
        headers.append(kind)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _read(receive: Receive) -> bytes | None:
    """The whole body; `None` if the client hung up in the middle of it."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)


def _request_id(scope: Message) -> str:
    """The caller's own id for the request, which vLLM takes over, or nothing."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
