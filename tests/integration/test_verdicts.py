"""From sockets to verdict: whose fault it was decides between FAIL and INVALID, never the other way round."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from analysis.judge import judge_run
from analysis.slo import Slo
from analysis.verdict import Criteria, RunFacts, RunVerdict
from loadgen.common.loop import run_loop
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.plan.types import PlanRequest, RunPlan
from loadgen.scenario.file import load_scenario
from loadgen.send.api import Endpoint, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from loadgen.workload.workload import Workload
from tests.fakes.plans import Bodies, plan_at
from tests.fakes.server import Script, serving, stream

pytestmark = pytest.mark.realtime

EVERY_10_MS = plan_at([10 * i for i in range(1, 151)], window_ms=1500)


def sent(script: Script, *, plan: RunPlan = EVERY_10_MS, slo: Slo, block_s: float = 0.0, **options: Any) -> RunOutput:
    async def main() -> RunOutput:
        clock = LoopClock()
        async with serving(script) as server:
            if block_s:
                for at in (0.3, 0.9):
                    asyncio.get_running_loop().call_later(at, time.sleep, block_s)
            endpoint = Endpoint(urls=(server.url,), path="/v1/completions", model="m")
            try:
                return await send_run(plan, Bodies(), endpoint, SendOptions(slo=slo, **options), clock=clock)
            finally:
                clock.close()

    return run_loop(main())


def judged(output: RunOutput, slo: Slo, **criteria: Any) -> RunVerdict:
    facts = RunFacts(sender=replace(output.facts, rate=100.0))
    return judge_run(output.requests, facts, Criteria(slo=slo, min_requests=100, **criteria))


def test_an_overloaded_client_is_invalid_and_never_a_fail() -> None:
    slo = Slo(ttft_s=0.1)
    verdict = judged(sent(stream(first_s=0.005), slo=slo, block_s=0.4), slo)
    assert verdict.status == "INVALID"
    assert verdict.blame == "client"
    # the users' SLO was broken as well, in more than 5 % of requests: still not the server's failure
    assert verdict.misses > 0.05 * verdict.cohort


@pytest.mark.usefixtures("unhurried")
def test_a_slow_server_is_a_fail_on_the_same_client() -> None:
    slo = Slo(ttft_s=0.1)
    verdict = judged(sent(stream(first_s=0.3), slo=slo), slo)
    assert verdict.status == "FAIL"
    assert verdict.misses > 0.9 * verdict.cohort


@pytest.mark.parametrize("rho", [1.2, 1.5])
@pytest.mark.parametrize("bounds", [{"slo": ("e2e<=250ms",)}, {"slo": ("ttft<=800ms",)}])
def test_an_overloaded_server_fails_whatever_the_seed(rho: float, bounds: dict[str, Any]) -> None:
    scenario = load_scenario(None, {"input": "16", "output": "1", **bounds})
    workload, profile = Workload.of(scenario), load_profile("fcfs")
    rate = rho / 0.052  # of the queue's mean service time
    criteria = Criteria(slo=scenario.objective, attain=Fraction(95, 100), timeout_s=workload.timeout_s)
    for seed in range(5):
        plan = workload.plan(PlanRequest(rate=rate, root_seed=seed, window=workload.window(20.0)))
        output = simulate_run(plan, profile, SendOptions(slo=scenario.objective, timeout_s=workload.timeout_s))
        assert judge_run(output.requests, RunFacts(sender=output.facts), criteria).status == "FAIL"
