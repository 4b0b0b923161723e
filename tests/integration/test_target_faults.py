"""A target that dies, is used by others, is another one than before, or cannot be reached for want of our own ports."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from analysis.verdict import RunVerdict
from loadgen.common.errors import ClientLimited, ResultsError, TargetUnreachable
from loadgen.common.members import JsonMembers
from loadgen.experiment.execute import single_run, sweep
from loadgen.experiment.prepare import Setup, prepare
from loadgen.experiment.progress import Progress
from loadgen.plan.types import RequestFormat
from loadgen.scenario.file import load_scenario
from loadgen.target.between import Between
from loadgen.target.generating import generator
from loadgen.target.http import Http
from loadgen.target.identity import identify
from loadgen.target.target import open_target
from tests.fakes.pages import JSON, MODELS, TEXT, UP, Reply, server
from tests.fakes.server import Request, serving

pytestmark = pytest.mark.realtime

DUE = 29  # of a run of forty a second for 0.125 + 0.6125 s


@dataclass
class Mortal:
    """The script of a server of short streams that dies at the last request of a run."""

    dies: str = ""  # "before" or "after" the answer to that request
    version: str = "1"
    url: str = ""
    dead: bool = False
    by_salt: Counter[str] = field(default_factory=Counter)
    kill: Callable[[], None] = lambda: None

    async def __call__(self, request: Request) -> None:
        if request.head.startswith(b"POST"):
            await self.generate(json.loads(request.body), request)
            return
        page = json.dumps({"version": self.version, "data": [{"id": "m"}]})
        known = request.path in ("/v1/models", "/version")
        await request.write(kept_open(200 if known else 404, JSON, page))

    async def generate(self, body: dict[str, Any], request: Request) -> None:
        salt = body.get("cache_salt", "")
        self.by_salt[salt] += 1
        measured = sum(count > 20 for count in self.by_salt.values()) == 2  # the first were the warm-up's
        last = measured and self.by_salt[salt] == DUE
        if last and self.dies == "before":
            self.die()
            return
        choice = {"index": 0, "text": "a ", "finish_reason": None}
        ends = {**choice, "finish_reason": "length"}
        tokens = body["max_tokens"]
        events = [{"choices": [choice]}] * (tokens - 1) + [{"choices": [ends]}]
        events.append({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}})
        if body.get("stream"):
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            await request.write(kept_open(200, "text/event-stream", text))
        else:
            answer = {"choices": [ends], "usage": events[-1]["usage"]}
            await request.write(kept_open(200, JSON, json.dumps(answer)))
        if last and self.dies == "after":
            await asyncio.sleep(0.01)
            self.die()

    def die(self) -> None:
        self.dead = True
        self.kill()


def kept_open(status: int, kind: str, body: str) -> bytes:
    """An answer after which the connection stays open."""
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


@asynccontextmanager
async def mortal(**how: Any) -> AsyncIterator[Mortal]:
    one = Mortal(**how)
    async with serving(one) as server:
        one.url, one.kill = server.url, server.die
        yield one


def setup(url: str, **more: Any) -> Setup:
    asked: dict[str, Any] = {
        "target": url, "rate": "40", "arrivals": "constant", "window": "612.5ms", "warmup": "125ms", "input": "16",
        "output": "4", "slo": ("e2e<=5s",), "min_requests": 20, "runs": 1, "scrape_interval": "off",
    }  # fmt: skip
    return prepare(load_scenario(None, asked | more))


async def measured(url: str, directory: Path) -> RunVerdict:
    return await single_run(setup(url), directory, kind="run", progress=Progress(), stop=anyio.Event())


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("dies", "status", "check"), [("before", "FAIL", "target_died"), ("after", "INVALID", "target_changed")]
)
async def test_a_server_that_dies_with_the_last_request_is_seen_to(
    dies: str, status: str, check: str, tmp_path: Path
) -> None:
    async with mortal(dies=dies) as dying:
        verdict = await measured(dying.url, tmp_path / "r")
    assert dying.dead
    assert verdict.status == status
    decided = next(finding for finding in verdict.findings if finding.severity == "block")
    assert decided.check == check
    if status == "INVALID":
        assert verdict.blame == "target"
        assert "no longer answers after the run" in decided.text


async def test_resume_refuses_another_server_and_takes_the_same(tmp_path: Path) -> None:
    async def carried_on(*, resume: bool, requests: int) -> None:
        asked = setup(one.url, rate="40,48", max_requests=requests)
        await sweep(asked, tmp_path / "r", resume=resume, progress=Progress(), stop=anyio.Event())

    async with mortal() as one:
        await carried_on(resume=False, requests=1)
        await carried_on(resume=True, requests=1)
        one.version = "2"
        with pytest.raises(ResultsError, match=r"not the target that was measured \(.*version was 1, is 2\)"):
            await carried_on(resume=True, requests=1)


async def test_a_page_that_gets_no_answer_is_absent_only_while_the_server_answers_others() -> None:
    pages: dict[str, Reply | bytes | None] = {**UP, "/version": b"", "/metrics": b""}  # closed without a word
    async with server(pages) as url, Http(base=url) as http:
        assert await identify(http, "m") == {"url": url, "model": "m", "max_model_len": "512"}
    async with Http(base=url) as http:
        with pytest.raises(TargetUnreachable):
            await identify(http, "m")


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 1 - len(os.listdir("/proc/self/fd")))]  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    with suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in held:
            os.close(one)


async def test_a_want_of_descriptors_is_the_client_s_whatever_is_asked() -> None:
    async with server(UP) as url, open_target(url) as target:
        endpoint = target.endpoint(RequestFormat())
        async with generator(endpoint) as generating:
            with no_descriptors_left(), pytest.raises(ClientLimited, match="no port or file descriptor left"):
                await generating.post(JsonMembers.of(prompt="x"), output_tokens=1, timeout_s=5)
        with no_descriptors_left():
            for ask in (target.identity, target.wait_idle, target.reset_cache):
                with pytest.raises(ClientLimited, match="this machine has no port or file descriptor left"):
                    await ask()


def busy_then_idle(readings: list[int], status: Callable[[], int] = lambda: 200) -> Callable[[str, bytes], Reply]:
    def pages(path: str, _: bytes) -> Reply:
        if path == "/metrics":
            running = readings.pop(0) if len(readings) > 1 else readings[0]
            return (200, TEXT, f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\n".encode())
        if path == "/v1/completions":
            return (status(), JSON, b'{"choices":[{"text":"x","finish_reason":"length"}]}')
        return MODELS

    return pages


async def test_others_work_makes_a_run_disturbed_and_our_own_remains_do_not() -> None:
    readings = [0]
    async with server(busy_then_idle(readings)) as url, open_target(url) as target:
        between = Between(target=target, policy="salt", form=RequestFormat())
        assert [await between.settle(), await between.settle()] == ["", ""]
        readings[:] = [2] * 8 + [0]
        between.load_ended(cancelled=True)
        assert await between.settled() == ""  # requests that we gave up
        assert await between.settle() == ""
        readings[:] = [2] * 8 + [0]
        odd = await between.settle()
        assert odd.startswith("2 requests were at work before the run, none of them this client's")
        looks = between.take_looks()
        assert [look.when for look in looks] == ["before", "before", "after", "before", "before"]
        assert [bool(look.odd) for look in looks] == [False, False, False, False, True]
        assert looks[2].busy == 2
        assert looks[2].idle_wait_s > 0.4
        assert between.take_looks() == []


async def test_a_failed_probe_makes_a_run_disturbed() -> None:
    statuses = [200]
    async with server(busy_then_idle([0], lambda: statuses[0])) as url, open_target(url) as target:
        between = Between(target=target, policy="salt", form=RequestFormat(), health_wait_s=0.0)
        assert [await between.settle(), await between.settle()] == ["", ""]
        statuses[0] = 500
        assert "a small request to the idle target after the run failed" in await between.settled()
        statuses[0] = 200
        assert await between.settle() == ""


async def test_where_idleness_cannot_be_seen_a_slow_answer_behind_cancelled_requests_is_not_odd() -> None:
    delay_s = 0.0

    async def script(request: Request) -> None:
        if request.head.startswith(b"POST"):
            nonlocal delay_s
            await asyncio.sleep(delay_s)
            if len(later):
                delay_s = later.pop(0)
        body = '{"data":[{"id":"m"}],"choices":[{"text":"x","finish_reason":"length"}]}'
        await request.write(kept_open(200 if "/v1/" in request.path else 404, JSON, body))

    later: list[float] = []
    async with serving(script) as slow, open_target(slow.url) as target:
        between = Between(target=target, policy="salt", form=RequestFormat())
        await between.settle()
        await between.settle()
        for cancelled, odd in ((True, False), (False, True)):
            delay_s, later = 0.15, [0.15] * 5 + [0.0]
            between.load_ended(cancelled=cancelled)
            assert bool(await between.settled()) is odd
            assert between.take_looks()[-1].probe_wait_s > 0.4
