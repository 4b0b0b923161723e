"""What a real vLLM sent while it was overloaded, stopped or killed, sent again over sockets and judged.

Peers count a stream that ends in an error event as good, try a refused connection again with a fresh clock, and leave
failures out of their statistics. Each test shows that a run here does none of it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from fractions import Fraction

import pytest

from analysis.judge import judge_run
from analysis.slo import Slo
from analysis.verdict import Criteria, RunFacts, RunVerdict
from loadgen.common.loop import run_loop
from loadgen.plan.types import RunPlan
from loadgen.send.api import Endpoint, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from tests.fakes.captures import captured_reads
from tests.fakes.plans import Bodies, plan_at
from tests.fakes.server import FakeServer, Request, Script, serving

pytestmark = [pytest.mark.realtime, pytest.mark.usefixtures("unhurried")]

SLO = Slo(ttft_s=5.0)
# 40 a second, unevenly: in a perfectly even load the least pause of this machine is a significant rise of work
EVERY_25_MS = plan_at(
    [25 * i + 7 * i * i % 23 - 11 for i in range(1, 80)], warmup_ms=1000, window_ms=1000, output_tokens=64
)
COHORT = 40  # of 79


def replaying(choose: Callable[[int], str]) -> Script:
    """Answers request n with the capture `choose(n)`, read by read at the captured instants."""

    async def script(request: Request) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for at_ns, data in captured_reads(choose(request.number)):
            await asyncio.sleep(max(0.0, began_s + at_ns / 1e9 - loop.time()))
            await request.write(data)
        request.keep = False

    return script


def judged(output: RunOutput, slo: Slo = SLO) -> RunVerdict:
    criteria = Criteria(slo=slo, min_requests=20, attain=Fraction(95, 100))
    return judge_run(output.requests, RunFacts(sender=output.facts), criteria)


async def offer(url: str, plan: RunPlan = EVERY_25_MS) -> RunOutput:
    clock = LoopClock()
    try:
        endpoint = Endpoint(urls=(url,), path="/v1/completions", model="m")
        return await send_run(plan, Bodies(), endpoint, SendOptions(slo=SLO), clock=clock)
    finally:
        clock.close()


def run(choose: Callable[[int], str]) -> tuple[RunOutput, FakeServer]:
    for name in {choose(n) for n in range(10)}:
        captured_reads(name)  # skips where there are none

    async def main() -> tuple[RunOutput, FakeServer]:
        async with serving(replaying(choose)) as server:
            return await offer(server.url), server

    return run_loop(main())


def test_good_answers_pass() -> None:
    output, server = run(lambda _: "comp_stream_64")
    assert set(output.requests["outcome"]) == {"ok"}
    assert set(output.requests["output_tokens"]) == {64}
    assert set(output.requests["output_tokens_source"]) == {"usage"}
    verdict = judged(output)
    assert verdict.status == "PASS", verdict.findings
    assert (verdict.cohort, verdict.errors) == (COHORT, 0)
    assert len(server.requests) == 79


@pytest.mark.parametrize(
    ("capture", "outcome", "said"),
    [
        ("engine_sigkill_mid_stream", "stream_error", "EngineCore encountered an issue"),  # its stream ends with [DONE]
        ("server_sigterm_mid_stream", "stream_error", "finish_reason abort"),  # and so does this one
        ("server_sigkill_mid_stream", "truncated", "closed"),
        ("queue_limit_503_raw", "rejected", "HTTP 503: "),
    ],
)
def test_one_bad_answer_in_ten_is_a_failure_and_stays_in_every_statistic(capture: str, outcome: str, said: str) -> None:
    output, server = run(lambda number: capture if number % 10 == 3 else "comp_stream_64")
    requests = output.requests
    failed = requests[requests["outcome"] != "ok"]
    assert set(failed["outcome"]) == {outcome}
    assert failed["error"].str.contains(said, regex=False).all()
    assert len(failed) == 8
    assert len(server.requests) == 79  # sent once each: nothing was tried again
    assert sorted(requests["index"]) == list(range(79))
    verdict = judged(output)
    assert (verdict.cohort, verdict.misses, verdict.errors) == (COHORT, 4, 4)
    assert verdict.attainment == 0.9
    assert verdict.status == "FAIL"
    for metric in ("ttft_s", "e2e_s"):  # one in ten failed, so the 95th percentile of all is beyond any bound
        assert verdict.summary[metric]["p95_all"] == float("inf")
        assert verdict.summary[metric]["p95"] < 5


def test_a_refused_connection_is_not_tried_again_and_starts_no_clock_afresh() -> None:
    captured_reads("comp_stream_64")

    async def main() -> tuple[RunOutput, FakeServer]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        running = asyncio.create_task(offer(f"http://127.0.0.1:{port}"))
        await asyncio.sleep(1.6)  # a restarting server
        async with serving(replaying(lambda _: "comp_stream_64"), port=port) as server:
            return await running, server

    output, server = run_loop(main())
    requests = output.requests
    refused = requests[requests["outcome"] == "connect_error"]
    served = requests[requests["outcome"] == "ok"]
    assert len(refused) + len(served) == 79
    assert 40 < len(refused) < 79  # some of the cohort, and not all
    assert len(server.requests) == len(served)
    assert refused["scheduled_ns"].max() < served["scheduled_ns"].min() + 25e6 * 4
    assert (refused["ended_ns"] - refused["scheduled_ns"] < 0.3e9).all()  # over at once, not when the server was back
    assert (served["first_token_ns"] - served["scheduled_ns"] >= served["first_token_ns"] - served["sent_ns"]).all()
    verdict = judged(output)
    assert verdict.cohort == COHORT
    assert verdict.errors == verdict.misses == (refused["scheduled_ns"] >= EVERY_25_MS.window.warmup_ns).sum() > 0
    assert verdict.status == "FAIL"
