"""What a sweep may cost: time is wall time since the command began, whatever it goes by on."""

from __future__ import annotations

from typing import Any

from result_files import line, request

from analysis.search import RunRequest, exit_code
from analysis.verdict import RunVerdict
from loadgen.common.errors import ClientLimited
from loadgen.experiment.forecast import forecast
from loadgen.experiment.prepare import prepare
from loadgen.experiment.runner import RunResult
from loadgen.experiment.search_loop import Budget, run_search
from loadgen.plan.types import RunPlan
from loadgen.scenario.file import load_scenario
from tests.fakes.plans import plan_at

RUN = plan_at([1000], window_ms=10_000)


def plan() -> RunPlan:
    return RUN


def done(seconds: float) -> RunResult:
    return RunResult(verdict=RunVerdict(status="PASS"), seconds=seconds, requests=1, tokens=2)


def budget(now: list[float], **more: Any) -> Budget:
    return Budget(max_time_s=60.0, max_requests=None, max_tokens=None, clock=lambda: now[0], **more)


def test_time_is_spent_before_the_first_run_and_between_runs() -> None:
    now = [5.0]  # probing and warming took five seconds
    spent = budget(now)
    assert spent.spent_s == 5.0
    assert spent.refusal(plan) == ""
    now[0] = 5.0 + 12.0 + 10.5  # the user's command took 12, the run 10.5
    spent.spend(done(10.5))
    assert spent.refusal(plan) == ""
    now[0] = 40.0  # 27.5 + 12 + 10.5 would still do, but it is later by now
    assert spent.refusal(plan) == "--max-time 1m 00s: 40s are spent and the next run takes 22s"


def test_an_interrupted_part_counts_with_all_that_went_before_each_run() -> None:
    scenario = load_scenario(None, {"max_time": "60s"})
    ledger = [line(request("a"), elapsed_s=25.0), line(request("b"), elapsed_s=10.0)]
    assert Budget.of(scenario, ledger, clock=lambda: 2.0).spent_s == 37.0
    assert Budget.of(scenario, ledger).spent_s == 35.0


def test_without_a_clock_time_is_the_runs_own() -> None:
    spent = Budget(max_time_s=25.0, max_requests=None, max_tokens=None)
    spent.spend(done(12.0))
    assert spent.spent_s == 12.0
    assert spent.refusal(plan) == ""
    spent.spend(done(12.0))
    assert "24s are spent" in spent.refusal(plan)


def test_the_worst_case_has_time_outs_tails_and_waits_in_it() -> None:
    asked = {"rate": "2,3", "runs": 1, "slo": ("ttft<=800ms", "tpot<=50ms"), "window": "120s", "output": "128"}
    plain = forecast(prepare(load_scenario(None, asked)))
    runs = plain.expectation.worst.runs
    # at most three time-outs of warm-up, the window, another time-out, two idle waits of a minute around it
    assert plain.expectation.worst.hours * 3600 >= runs * (3 * 60 + 120 + 60 + 2 * 60)
    assert plain.expectation.worst.hours > plain.expectation.expected.hours
    restarted = asked | {"cache": "restart", "restart_command": "true"}
    longer = forecast(prepare(load_scenario(None, restarted)))
    assert longer.expectation.expected.hours - plain.expectation.expected.hours >= 60 * runs / 3600 * 0.9
    assert "1m 00s assumed for each --restart-command" in " ".join(
        forecast(prepare(load_scenario(None, restarted | {"rate": "2..4"}))).lines()
    )


async def test_a_want_of_ports_between_runs_ends_the_search_for_the_client_and_can_go_on() -> None:
    setup = prepare(load_scenario(None, {"rate": "2..4", "slo": ("ttft<=800ms",)}))
    search = setup.search()

    class Portless:
        def plan(self, request: RunRequest) -> RunPlan:
            return RUN

        async def execute(self, request: RunRequest) -> RunResult:
            raise ClientLimited("no port is left")

    outcome = await run_search(search, Portless(), Budget.of(setup.scenario))
    assert (outcome.name, outcome.reason, exit_code(outcome)) == ("CLIENT_LIMITED", "no port is left", 4)
    assert isinstance(search.ask(), RunRequest)  # which a resumed search asks for again
