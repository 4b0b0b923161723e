"""Kernel stamps and batched reads over real sockets: what they do not depend on, and what batching may not change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from analysis.stationarity import area_s
from loadgen.common.errors import UsageError
from loadgen.common.loop import run_loop
from loadgen.plan.types import RunPlan
from loadgen.send.active import ActiveRequest
from loadgen.send.api import Endpoint, RunOutput, SendOptions, is_prompt
from loadgen.send.clock import LoopClock
from loadgen.send.openai import HttpEnd
from loadgen.send.session import send_run
from loadgen.send.stamped import StampedTransport
from tests.fakes.clock import FakeClock
from tests.fakes.plans import Bodies, plan_at
from tests.fakes.server import STREAM_HEAD, Request, Script, answering, in_thread, stream
from tests.fakes.streams import chunked, completion_events

pytestmark = pytest.mark.realtime

MS = 1_000_000


@dataclass
class Truth:
    """When a server in another thread wrote what, monotonic ns."""

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    def stream(self, tokens: int, *, gap_s: float, first_s: float = 0.0) -> Script:
        async def script(request: Request) -> None:
            await asyncio.sleep(first_s)
            request.writer.write(STREAM_HEAD)
            events = completion_events(tokens)
            for number, piece in enumerate(events[:tokens]):
                if number:
                    await asyncio.sleep(gap_s)
                if number in (0, tokens - 1):
                    (self.last if number else self.first).append(time.monotonic_ns())
                data = piece if number < tokens - 1 else b"".join(events[tokens - 1 :])
                await request.write(chunked(data))
            await request.write(b"0\r\n\r\n")

        return script


def sent(
    url: str,
    plan: RunPlan,
    *,
    events: Literal["prompt", "all"] = "prompt",
    meanwhile: Callable[[LoopClock], object] = lambda _: None,
    **options: Any,
) -> tuple[RunOutput, int]:
    """A run, and its t0 on the monotonic clock."""

    async def run() -> tuple[RunOutput, int]:
        clock = LoopClock()
        meanwhile(clock)
        endpoint = Endpoint(urls=(url,), path="/v1/completions", model="m")
        output = await send_run(plan, Bodies(), endpoint, SendOptions(events=events, **options), clock=clock)
        t0_ns = time.monotonic_ns() - clock.now_ns()
        clock.close()
        return output, t0_ns

    return run_loop(run())


def blocking(at_ms: float, for_s: float) -> Callable[[LoopClock], object]:
    """Block the event loop of the sender, as a busy machine would."""
    return lambda clock: clock.call_at(round(at_ms * MS), lambda: time.sleep(for_s))


@pytest.mark.parametrize("stamps", ["kernel", "user"])
def test_a_kernel_stamp_does_not_depend_on_when_it_is_read(stamps: Literal["kernel", "user"]) -> None:
    """The first token comes at 50 ms and all after it at 100 ms; the sender sleeps from 20 to 320 ms."""
    truth = Truth()
    with in_thread(truth.stream(1, gap_s=0, first_s=0.05)) as url:
        plan = plan_at([5], window_ms=10, output_tokens=1)
        output, t0_ns = sent(url, plan, stamps=stamps, meanwhile=blocking(20, 0.3))
    (row,) = output.requests.itertuples()
    late_ms = (row.first_token_ns + t0_ns - truth.first[0]) / MS
    assert row.outcome == "ok"
    assert output.facts.stamps == stamps
    assert output.facts.heartbeat_max_s > 0.2
    if stamps == "kernel":
        assert -1 < late_ms < 20
        assert output.facts.stamps_by_reading == 0
    else:
        assert late_ms > 150


def test_batched_requests_end_when_they_ended_and_not_when_they_were_read() -> None:
    """40 streams of 20 tokens, one every 10 ms: read once in 50 ms, they end between two reads."""
    truth = Truth()
    with in_thread(truth.stream(20, gap_s=0.01)) as url:
        plan = plan_at([7 * i for i in range(40)], window_ms=300, output_tokens=20)
        output, t0_ns = sent(url, plan)
    table = output.requests
    assert set(table["outcome"]) == {"ok"}
    batched = table[table["read"] == "batched"]
    assert set(batched["index"]) == {i for i in range(40) if not is_prompt(i)}
    assert set(batched["token_reads"]) == {-1}
    assert set(batched["token_events"]) == {20}
    assert set(output.events["index"]) == {i for i in range(40) if is_prompt(i)}
    ended = np.sort(table["last_token_ns"].to_numpy() + t0_ns)
    written = np.sort(np.array(truth.last))
    assert np.median(np.abs(ended - written)) < 2 * MS  # 25 ms on average if they had the time of the read
    assert output.facts.live_area_s == pytest.approx(area_s(table, until_ns=output.facts.stop_ns), rel=1e-6)


def test_sockets_that_are_ready_all_the_time_and_then_for_long_not_are_all_read() -> None:
    """60 streams with a token each 4 ms, 15 a millisecond, all read promptly; then one more when all is quiet."""
    truth = Truth()
    with in_thread(truth.stream(20, gap_s=0.004)) as url:
        plan = plan_at([*(i / 3 for i in range(60)), 500], window_ms=600, output_tokens=20)
        output, t0_ns = sent(url, plan, events="all")
    table = output.requests
    assert set(table["outcome"]) == {"ok"}
    assert set(table["token_events"]) == {20}
    assert len(output.events) == 61 * 20
    first_ns = np.sort(table["first_token_ns"].to_numpy() + t0_ns)
    assert np.median(first_ns - np.sort(np.array(truth.first))) < MS
    assert table["token_reads"].median() > 15  # tokens 4 ms apart are read apart


class Ended(asyncio.Event):
    """A completion handler that can be waited for."""

    def ended(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        self.set()


def test_opening_connections_before_t0_leaves_no_look_at_the_sockets_to_a_clock_that_is_set_back() -> None:
    """40 connects wake the loop twice, within a millisecond of a clock that stands still; then its t0 comes."""

    async def run(url: str) -> None:
        clock, ended = FakeClock(), Ended()
        endpoint = Endpoint(urls=(url,), path="/v1/completions", model="m")
        transport = StampedTransport(endpoint, clock, keepalive_s=4)
        await transport.open()
        try:
            await transport.prewarm(40)
            clock.start()
            active = ActiveRequest(0, 0)
            active.body, active.released_ns = b"{}", 0
            transport.start(active, ended)
            await asyncio.wait_for(ended.wait(), 5)
            assert active.connect_ns == 0
        finally:
            await transport.close()

    with in_thread(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")) as url:
        run_loop(run(url))


def test_nothing_is_batched_where_everybody_s_events_are_wanted_or_an_end_lets_another_go() -> None:
    plan = plan_at([2 * i for i in range(20)], window_ms=50)
    with in_thread(stream(4, gap_s=0.005)) as url:
        for options in ({"events": "all"}, {"max_concurrency": 50}, {"stamps": "user"}):
            output, _ = sent(url, plan, **options)  # type: ignore[arg-type]
            assert set(output.requests["read"]) == {"prompt"}
            assert (output.requests["token_reads"] > 0).all()


@pytest.mark.parametrize("how", ["reset", "cut"])
def test_a_batched_stream_that_breaks_off_is_an_error(how: str) -> None:
    async def script(request: Request) -> None:
        await request.write(STREAM_HEAD + chunked(completion_events(9)[0]))
        await asyncio.sleep(0.05)
        await request.write(chunked(completion_events(9)[1]))
        request.keep = False
        if how == "reset":
            request.reset()

    with in_thread(script) as url:
        output, _ = sent(url, plan_at([2 * i for i in range(16)], window_ms=40, output_tokens=9))
    assert "batched" in set(output.requests["read"])
    assert set(output.requests["outcome"]) == {"connection_lost" if how == "reset" else "truncated"}
    assert "ok" not in set(output.requests["outcome"])
    assert (output.requests["token_events"] >= 1).all()


def test_an_answer_that_brings_much_is_read_promptly_from_then_on() -> None:
    """2 MB in bursts: a receive buffer that fills up would make the server wait."""
    filler = b": " + b"x" * 40_000 + b"\n\n"
    waits: list[float] = []

    async def script(request: Request) -> None:
        await request.write(STREAM_HEAD + chunked(completion_events(3)[0]))
        for _ in range(50):
            await asyncio.sleep(0.004)
            began = time.monotonic()
            await request.write(chunked(filler))
            waits.append(time.monotonic() - began)
        await request.write(b"".join(map(chunked, completion_events(3)[1:])) + b"0\r\n\r\n")

    with in_thread(script) as url:
        output, _ = sent(url, plan_at([1, 2, 3], window_ms=10, output_tokens=2000))
    assert set(output.requests["outcome"]) <= {"ok", "short_output"}
    assert np.median(waits) < 0.01


def test_kernel_stamps_that_cannot_be_had_are_refused_before_anything_is_sent() -> None:
    plan = plan_at([1], window_ms=5)
    with pytest.raises(UsageError, match="--stamps kernel: https://h is not http:// over TCP: use --stamps user"):
        sent("https://h", plan, stamps="kernel")
    with pytest.raises(UsageError, match="httpx reads sockets itself"):
        sent("http://h", plan, stamps="kernel", transport="httpx")
