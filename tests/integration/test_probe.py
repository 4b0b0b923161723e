"""What is found out about servers of many kinds by small requests, and what is made of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.common.errors import TargetUnfit
from loadgen.plan.types import RequestFormat
from loadgen.target.capabilities import Capabilities
from loadgen.target.findings import Adaptable
from loadgen.target.http import Http
from loadgen.target.idle import IdleWatch
from loadgen.target.target import open_target
from tests.fakes.pages import JSON, MODELS, Reply, server
from tests.fakes.server import Request, serving

TEXT_PROMPT = RequestFormat(prompt="text", stop="natural")


def refused(words: str, status: int = 400) -> Reply:
    return (status, JSON, json.dumps({"error": {"message": words}}).encode())


def ended_by(reason: str, end: bytes = b"data: [DONE]\n\n") -> Reply:
    """A stream of one token with that finish_reason."""
    event = b'data: {"choices":[{"index":0,"text":"x","finish_reason":%s}]}\n\n' % reason.encode()
    return (200, "text/event-stream", event + end)


class Server:
    """Takes or refuses members of a request, and does with them what a test wants."""

    def __init__(
        self,
        *,
        refuses: Callable[[dict[str, Any]], str] = lambda _: "",
        status: int = 400,
        tokens: int = 16,
        prompt: int | None = None,
        usage: bool = True,
        stream: bool = True,
        paths: tuple[str, ...] = ("/v1/completions",),
    ) -> None:
        self.refuses, self.status, self.tokens, self.prompt = refuses, status, tokens, prompt
        self.usage, self.stream, self.paths = usage, stream, paths
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, path: str, request: bytes) -> Reply:
        if path == "/v1/models":
            return MODELS
        if path not in self.paths:
            return refused("Not Found", 404)
        body = json.loads(request.split(b"\r\n\r\n", 1)[1])
        self.bodies.append(body)
        if words := self.refuses(body):
            return refused(words, self.status)
        return self.answer(body)

    def answer(self, body: dict[str, Any]) -> Reply:
        prompt = self.prompt or (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 100)
        usage = {"prompt_tokens": prompt, "completion_tokens": self.tokens}
        reason = "stop" if self.tokens < 16 else "length"
        if not self.stream:
            whole: dict[str, Any] = {"choices": [{"index": 0, "text": "x", "finish_reason": reason}], "usage": usage}
            return (200, JSON, json.dumps(whole).encode())
        choices = [{"index": 0, "text": "x", "finish_reason": None}] * (self.tokens - 1)
        choices.append({"index": 0, "text": "x", "finish_reason": reason})
        events: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
        if self.usage and body.get("stream_options", {}).get("include_usage"):
            events.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return (200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())


async def found(pages: Server, form: RequestFormat | None = None, **ask: bool) -> Capabilities:
    async with server(pages) as url, open_target(url) as target:
        result = await target.capabilities(form, ask=Adaptable(**ask))
    assert result.requests == len(pages.bodies) <= 10
    return result


def row(result: Capabilities, feature: str) -> str:
    (finding,) = (finding for finding in result.findings if finding.feature == feature)
    return f"{finding.found} | {finding.instead} | {finding.cost}"


async def test_a_server_that_takes_everything_needs_few_requests_and_no_change() -> None:
    result = await found(Server())
    assert result.format == RequestFormat()
    assert result.needs == ()
    assert result.requests == 1  # its cache cannot be seen, so there is nothing to prove the salt with
    assert result.notes == [
        "cache_salt: accepted, unproved: the server shows no prefix-cache hits; other prompts at every rate and "
        "attempt; content unpaired across rates"
    ]
    assert row(result, "token-id prompts").startswith("yes: 256 ids are 256 prompt tokens")
    assert row(result, "ignore_eos, min_tokens").startswith("accepted: 16 of 16 tokens came")


async def test_token_ids_give_way_to_text_unless_the_user_asked_for_them() -> None:
    def no_ids(body: dict[str, Any]) -> str:
        return "prompt must be a string" if isinstance(body["prompt"], list) else ""

    result = await found(Server(refuses=no_ids, status=422))
    assert result.format == RequestFormat(prompt="text")
    assert result.needs == ()
    assert "token-id prompts: refused (prompt must be a string); text prompts; prompt lengths are approximate" in (
        result.notes
    )
    insisted = await found(Server(refuses=no_ids), prompt=False)
    assert insisted.needs == ("token ids as a prompt are refused (prompt must be a string): set --prompt text",)


async def test_ids_that_are_read_as_something_else_are_not_believed() -> None:
    result = await found(Server(prompt=900))
    assert result.format.prompt == "text"
    assert "refused (900 prompt tokens reported for 256 ids)" in row(result, "token-id prompts")
    special = await found(Server(prompt=257))  # one token of the server's own in front
    assert special.format.prompt == "ids"
    assert "prompts are not exactly as long as planned" in row(special, "token-id prompts")


async def test_the_limit_s_other_name_is_used_where_the_first_is_refused() -> None:
    def hosted(body: dict[str, Any]) -> str:
        if "max_tokens" in body:
            return "use 'max_completion_tokens' instead"
        unknown = {"ignore_eos", "min_tokens", "cache_salt"} & body.keys()
        return f"unrecognized: {sorted(unknown)[0]}" if unknown else ""

    pages = Server(refuses=hosted, paths=("/v1/chat/completions",))
    result = await found(pages, RequestFormat(endpoint="chat", prompt="text", stop="natural"))
    assert result.format.limit_field == "max_completion_tokens"
    assert result.needs == ()
    assert result.salt.proof == "refused"
    assert "max_completion_tokens" in row(result, "max_tokens")
    forced = await found(Server(refuses=hosted, paths=pages.paths), RequestFormat(endpoint="chat", prompt="text"))
    assert len(forced.needs) == 1
    assert "ignore_eos and min_tokens are refused (unrecognized: ignore_eos)" in forced.needs[0]
    assert "--stop natural" in forced.needs[0]


async def test_a_temperature_that_is_refused_is_the_user_s_to_change() -> None:
    result = await found(Server(refuses=lambda body: "only 1 is supported" if body["temperature"] != 1 else ""))
    assert result.needs == ("the temperature is refused (only 1 is supported): set --temperature 1",)


async def test_forced_lengths_that_are_ignored_are_noticed() -> None:
    result = await found(Server(tokens=3))
    assert "ignored: 3 of 16 tokens came (stop)" in result.needs[0]
    assert (await found(Server(tokens=3), TEXT_PROMPT)).needs == ()
    assert "ignored: 40 tokens came for 16" in row(await found(Server(tokens=40)), "max_tokens")


async def test_without_usage_or_a_stream_the_results_say_what_they_are_worth() -> None:
    def no_options(body: dict[str, Any]) -> str:
        return "stream_options is not supported" if "stream_options" in body else ""

    result = await found(Server(refuses=no_options))
    assert not result.format.usage
    assert "refused (stream_options is not supported)" in row(result, "usage")
    silent = await found(Server(usage=False))
    assert "depend on the server's finish_reason" in row(silent, "usage")
    assert "a server that ignores them would go unnoticed" in row(silent, "ignore_eos, min_tokens")
    assert row(await found(Server(usage=False, tokens=40)), "max_tokens").startswith("yes")  # events are not tokens
    assert "TTFT is E2E" in row(await found(Server(stream=False)), "streams")


async def test_all_refusals_together_still_fit_into_ten_requests() -> None:
    allowed = {"model", "prompt", "max_completion_tokens", "temperature", "stream"}

    def strict(body: dict[str, Any]) -> str:
        extra = sorted(body.keys() - allowed)
        if extra:
            return f"unknown {extra[0]}"
        return "not a string" if isinstance(body["prompt"], list) else ""

    result = await found(Server(refuses=strict))
    assert result.format == RequestFormat(
        prompt="text", limit_field="max_completion_tokens", usage=False, stop="natural"
    )
    assert "unknown ignore_eos" in result.needs[0]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            b"HTTP/1.1 429 X\r\nretry-after: 30\r\ncontent-length: 9\r\n\r\nslow down",
            r"rejects a single request \(429, Retry-After 30\): slow down",
        ),
        (refused("queue is full", 503), r"rejects a single request \(503\): queue is full; .* wait"),
        (refused("wrong key", 401), "answers 401: wrong key"),
        (refused("Not Found", 404), r"/v1/completions is not there \(404: Not Found\)"),
        (refused("no such thing", 400), "answers 400: no such thing"),
        ((200, JSON, b'{"hello":1}'), "answers 200, but not as OpenAI's API does: an answer without tokens"),
        (ended_by('"abort"'), r"finish_reason abort \(a run counts it as stream_error\)"),
        (ended_by('"content_filter"'), r"finish_reason content_filter \(a run counts it as stream_error\)"),
        (ended_by("null", end=b""), r"\(a run counts it as truncated\)"),
        (
            b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
            b"content-length: 3\r\n\r\nabc",
            r"compressed \(gzip\).* \(a run counts it as bad_response\)",
        ),
        ((200, JSON, b"\x1b[31mhello"), r"neither a stream nor JSON: \\x1b\[31mhello"),
    ],
)
async def test_what_no_option_helps_with_is_one_line(reply: Reply | bytes, said: str) -> None:
    pages = {"/v1/models": MODELS, "/v1/completions": reply}
    async with server(pages) as url, open_target(url) as target:
        with pytest.raises(TargetUnfit, match=said) as caught:
            await target.capabilities()
    assert str(caught.value).isprintable()


# --- idle connections ------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_gathered_on_the_way_is_unfit_and_a_quick_one_is_not() -> None:
    class Late(Server):
        def __call__(self, path: str, request: bytes) -> Reply:
            if path == "/v1/completions":
                time.sleep(0.05)
            return super().__call__(path, request)

    quick = await found(Server())
    assert quick.unfit == ()
    late = await found(Late())
    assert "buffers the stream: 16 events came in 1 reads" in late.unfit[0]
    assert late.events_per_read == 16
    assert "TTFT and TPOT cannot be measured" in row(late, "streams")


def closing_after(idle_s: float | None, head: bytes = b"") -> Callable[[Request], Any]:
    async def script(request: Request) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n" + head + b"\r\n{}")
        if idle_s is not None:
            await asyncio.sleep(idle_s)
            request.keep = False

    return script


@pytest.mark.parametrize("idle_s", [0.3, 0.0])
async def test_a_server_s_idle_limit_is_seen_and_kept_below(idle_s: float) -> None:
    async with serving(closing_after(idle_s)) as fake, Http(base=fake.url) as http:
        watch = IdleWatch(http)
        await watch.run()
    assert watch.closed_s is not None
    assert idle_s <= watch.closed_s < idle_s + 0.5  # a busy machine may be late
    assert watch.keepalive_s() == 0.8 * watch.closed_s
    assert watch.text == (f"{watch.closed_s:.1f} s" if watch.closed_s >= 0.1 else "none: closed after every answer")


async def test_a_connection_is_not_trusted_for_longer_than_one_was_watched() -> None:
    script = closing_after(None, b"keep-alive: timeout=2\r\n")
    async with serving(script) as fake, Http(base=fake.url) as http:
        watch = IdleWatch(http)
        assert watch.keepalive_s() == 4.0  # nothing known, as behind a proxy
        task = asyncio.create_task(watch.run())
        while watch.announced_s is None or watch.watched_s == 0:  # noqa: ASYNC110 - users of a watch poll it too
            await asyncio.sleep(0.01)
        assert watch.closed_s is None
        assert watch.keepalive_s() < 0.8 * 2
        assert "it announces 2 s" in watch.text
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
