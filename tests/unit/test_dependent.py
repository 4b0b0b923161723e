"""Turns that wait for the previous answer: who waits, for how long, and what is counted of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.slo import Slo
from analysis.stationarity import area_s
from loadgen.experiment.runner import blocked
from loadgen.plan.types import RunPlan
from loadgen.results.types import BlockedTurns
from loadgen.send.api import SendOptions
from loadgen.send.dispatch import Dispatcher
from loadgen.send.pacing import DependentSessions
from loadgen.send.table import Tables
from tests.fakes.clock import FakeClock
from tests.fakes.plans import MS, Bodies, plan_at
from tests.fakes.transport import FakeTransport


def sessions(at_ms: list[float], parent: list[int], **more: Any) -> RunPlan:
    return replace(plan_at(at_ms, output_tokens=1, **more), parent=np.array(parent))


class Run:
    def __init__(self, plan: RunPlan, service: Any, **options: Any) -> None:
        self.clock = FakeClock()
        self.transport = FakeTransport(self.clock, service)
        self.bodies = Bodies()
        self.dispatcher = Dispatcher(
            plan=plan,
            bodies=self.bodies,
            transport=self.transport,
            clock=self.clock,
            options=SendOptions(pacing=DependentSessions(), **options),
            tables=Tables(None),
            targets=1,
            on_stopped=lambda: None,
        )
        self.dispatcher.start()

    def go(self) -> pd.DataFrame:
        self.clock.run(10**12)
        requests = self.dispatcher.tables.requests()
        assert (requests["scheduled_ns"] < self.dispatcher.stop_ns).sum() == self.dispatcher.due
        assert self.dispatcher.due == self.dispatcher.sent == len(requests)
        assert self.dispatcher.area_s == pytest.approx(area_s(requests, until_ns=self.dispatcher.stop_ns), rel=1e-9)
        return requests


def test_a_turn_leaves_at_its_own_instant_or_when_the_previous_answer_ends() -> None:
    plan = sessions([10, 20, 30, 40, 500], [-1, 0, -1, 1, 3])
    run = Run(plan, lambda i: (100.0, 1.0))
    requests = run.go()
    # 1 waits for 0 (10..110), 3 for 1 (110..210); 2 is alone; 4 comes after 3 has ended (210..310)
    assert run.transport.started == [(0, 10 * MS), (2, 30 * MS), (1, 110 * MS), (3, 210 * MS), (4, 500 * MS)]
    assert (requests["released_ns"] == requests["scheduled_ns"]).all()
    assert run.dispatcher.failure is None
    told = blocked(plan, requests)
    assert told.turns == 3
    assert told.blocked == 2
    assert told.total_s == pytest.approx(0.09 + 0.17)
    assert told.p50_s == pytest.approx(0.09)
    assert told.max_s == pytest.approx(0.17)


def test_bodies_are_taken_in_schedule_order_also_of_those_who_wait() -> None:
    run = Run(sessions([10, 20, 30], [-1, 0, -1]), lambda i: (100.0, 1.0))
    run.go()
    assert run.bodies.taken == [0, 1, 2]


@pytest.mark.parametrize("how", ["refused", "timeout"])
def test_a_previous_turn_that_failed_frees_the_next(how: str) -> None:
    run = Run(sessions([10, 20], [-1, 0]), lambda i: None if i == 0 else (1.0, 1.0), timeout_s=0.5)
    if how == "refused":
        run.transport.refused = {0}
    requests = run.go().sort_values("index")
    assert requests["outcome"].tolist() == [{"refused": "connect_error"}.get(how, how), "ok"]
    assert requests["scheduled_ns"].tolist()[1] == (20 if how == "refused" else 510) * MS


def test_who_still_waits_when_the_load_stops_was_never_due() -> None:
    plan = sessions([10, 20, 30], [-1, 0, 1], window_ms=100, tail_ms=50)
    run = Run(plan, lambda i: None, timeout_s=60.0)
    requests = run.go()
    assert requests["index"].tolist() == [0]
    assert requests["outcome"].tolist() == ["censored"]
    assert run.dispatcher.cohort.due == 1
    assert blocked(plan, requests) == BlockedTurns(turns=0, blocked=0, total_s=0.0)


def test_a_freed_turn_is_a_certain_miss_in_time_though_nothing_else_is_due() -> None:
    plan = sessions([10, 20], [-1, 0], window_ms=300, tail_ms=50_000)
    run = Run(plan, lambda i: (100.0, 1.0) if i == 0 else None, slo=Slo(ttft_s=0.25))
    requests = run.go()
    # released at 110 ms, a certain miss 250 ms later: the load stops then and does not wait for the time-out
    assert run.dispatcher.stop_ns == pytest.approx(370 * MS, abs=11 * MS)
    assert requests.sort_values("index")["certain_miss"].tolist() == ["", "ttft"]
