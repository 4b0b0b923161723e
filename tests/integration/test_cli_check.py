"""`loadgen check`: what a server can do, found out without changing it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest

from loadgen.plan.types import RequestFormat
from loadgen.target.survey import Survey, survey
from loadgen.target.target import open_target
from tests.fakes.pages import JSON, MODELS, Reply, paged, raw, server
from tests.fakes.server import in_thread

pytestmark = pytest.mark.realtime

DONE = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}]}
USAGE = {"usage": {"prompt_tokens": 256, "completion_tokens": 16}}


def rows(found: Survey) -> dict[str, str]:
    return {row.feature: f"{row.found} | {row.instead} | {row.cost}" for row in found.findings}


def test_the_emulator_from_the_command_line(loadgen: Callable[..., Any]) -> None:
    answer = json.loads(loadgen("check", "--target", "emulator:fcfs-fast", "--json", "--quiet").stdout)
    assert answer["usable"]
    assert answer["options"] == []
    assert answer["requests"]["generating"] <= 10
    found = {row["feature"]: row["found"] for row in answer["features"]}
    assert found["model"] == "emulator, context length 32768"
    assert found["version"] == "0.32.0+loadgen-emulator"
    assert found["continuous usage"].startswith("yes")
    assert found["token-id prompts"] == "yes: 256 ids are 256 prompt tokens"
    assert found["cache reset"] == "there, not tried (--allow-reset)"
    assert found["clocks"].startswith("in step")
    assert "idle limit 5." in found["connection"] or "idle limit 4.9" in found["connection"]
    assert {row["cost"] for row in answer["features"]} == {""}


def test_what_is_no_server_of_this_kind_ends_with_3(loadgen: Callable[..., Any]) -> None:
    assert (
        "connection refused"
        in loadgen("check", "--target", "http://127.0.0.1:9", "--ready-timeout", "0s", code=3).stderr
    )
    assert "virtual" in loadgen("check", "--target", "virtual", code=2).stderr


@pytest.fixture
def rejecting() -> Iterator[str]:
    """A hosted API that is at its limit."""
    full = raw((429, JSON, b'{"error":{"message":"\\u001b[31mquota"}}'), "retry-after: 20")
    with in_thread(paged(lambda _, request: full if request.startswith(b"POST") else MODELS)) as url:
        yield url


def test_a_server_at_its_limit_is_said_to_be_so_by_check_and_by_run(
    loadgen: Callable[..., Any], rejecting: str
) -> None:
    for command in (["check"], ["run", "--rate", "5", "--slo", "e2e<=1s"]):
        done = loadgen(*command, "--target", rejecting, "--quiet", code=3)
        assert "rejects a single request (429, Retry-After 20)" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "\x1b" not in done.stderr


async def test_a_server_with_chat_alone_and_nothing_else_is_usable_and_says_what_is_missing() -> None:
    asked: list[str] = []

    def pages(path: str, request: bytes) -> Reply:
        asked.append(request.split(b" ", 2)[0].decode() + " " + path)
        if path == "/v1/models":
            return (200, JSON, b'{"data":[{"id":"m"}]}')
        if path == "/v1/chat/completions":
            chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}], **USAGE}
            return (200, "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
        return (404, JSON, b"{}")

    async with server(pages) as url, open_target(url) as target:
        found = await survey(target, RequestFormat())
    assert len(found.options) == 1
    assert "/v1/completions is not there (404: {}): set --endpoint chat" in found.options[0]
    assert (found.format.endpoint, found.format.prompt) == ("chat", "text")
    assert found.generating == len([path for path in asked if "completions" in path]) <= 10
    table = rows(found)
    assert "unknown | " in table["model"] or "context length unknown" in table["model"]
    assert "no /metrics" in table["metrics"]
    assert "no /tokenize (404)" in table["tokenization"]
    assert "no /reset_prefix_cache" in table["cache reset"]
    assert "no Date header" in table["clocks"]


async def test_text_prompts_are_exact_where_the_server_counts_tokens() -> None:
    def pages(path: str, request: bytes) -> Reply:
        if path == "/tokenize":
            return (200, JSON, b'{"count":11}')
        if path == "/v1/completions" and b'"prompt":[' in request:
            return (422, JSON, b'{"detail":"prompt: a string"}')
        return (200, JSON, json.dumps({**DONE, **USAGE}).encode()) if path == "/v1/completions" else MODELS

    async with server(pages) as url, open_target(url) as target:
        table = rows(await survey(target, RequestFormat()))
    assert table["token-id prompts"] == "refused (prompt: a string) | text prompts, counted by /tokenize | "
    assert "11 tokens for 9 words" in table["tokenization"]


@pytest.mark.parametrize(
    ("allow", "body", "said"),
    [
        (False, b"", "there, not tried (--allow-reset)"),
        (True, b'{"success":true}', "yes: success"),
        (True, b'{"success":false}', "answers without success"),
    ],
)
async def test_the_cache_is_reset_only_if_that_is_allowed(allow: bool, body: bytes, said: str) -> None:
    asked: list[str] = []

    def pages(path: str, request: bytes) -> Reply | bytes:
        method = request.split(b" ", 2)[0].decode()
        asked.append(f"{method} {path}")
        if path == "/reset_prefix_cache":
            if method == "POST":
                return (200, JSON, body)
            return b"HTTP/1.1 405 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        return (200, JSON, json.dumps({**DONE, **USAGE}).encode()) if path == "/v1/completions" else MODELS

    async with server(pages) as url, open_target(url) as target:
        found = await survey(target, RequestFormat(), allow_reset=allow)
    assert said in rows(found)["cache reset"]
    assert ("POST /reset_prefix_cache" in asked) is allow


async def test_a_clock_that_is_off_is_noticed() -> None:
    async def clocks(shift_s: float) -> str:
        date = formatdate(time.time() + shift_s, usegmt=True)

        def pages(path: str, _: bytes) -> Reply | bytes:
            if path == "/version":
                return f"HTTP/1.1 200 OK\r\ndate: {date}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}".encode()
            return (200, JSON, json.dumps({**DONE, **USAGE}).encode()) if path == "/v1/completions" else MODELS

        async with server(pages) as url, open_target(url) as target:
            return rows(await survey(target, RequestFormat()))["clocks"]

    assert "in step" in await clocks(0)
    assert "ahead" in await clocks(100)
    assert "behind" in await clocks(-100)
