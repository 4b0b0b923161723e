"""Which URL gets a request: in turn, by chance, or the one with the fewest requests on the wire."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loadgen.plan.types import RunPlan
from loadgen.send.api import SendOptions
from loadgen.send.dispatch import Dispatcher
from loadgen.send.pacing import DependentSessions, FixedConcurrency
from loadgen.send.routing import Routing, router_of
from loadgen.send.table import Tables
from tests.fakes.clock import FakeClock
from tests.fakes.plans import MS, Bodies, plan_at
from tests.fakes.transport import FakeTransport


def chosen(routing: Routing, n: int, *, targets: int = 3, root_seed: int = 7, requests: int | None = None) -> list[int]:
    router = router_of(routing, targets=targets, requests=requests or n, root_seed=root_seed)
    return [router.chosen(index) for index in range(n)]


def sent(plan: RunPlan, took_ms: list[float | None], **options: Any) -> tuple[pd.DataFrame, Dispatcher]:
    """A run in a fake clock's time against servers that take so long for each request; `None`: for ever."""
    clock = FakeClock()
    refused = options.pop("refused", set())

    def service(index: int) -> tuple[float, float] | None:
        took = took_ms[transport.open_requests[index].target]
        return None if took is None else (took, 0.0)

    transport = FakeTransport(clock, service)
    transport.refused = refused
    dispatcher = Dispatcher(
        plan=plan,
        bodies=Bodies(),
        transport=transport,
        clock=clock,
        options=SendOptions(**options),
        tables=Tables(None),
        targets=len(took_ms),
        on_stopped=lambda: None,
    )
    dispatcher.start()
    clock.run(10**13)
    assert dispatcher.failure is None
    return dispatcher.tables.requests(), dispatcher


def every(gap_ms: float, n: int, **more: Any) -> RunPlan:
    return plan_at([gap_ms * k for k in range(n)], window_ms=gap_ms * n, output_tokens=1, **more)


def test_round_robin_is_exact_by_the_place_in_the_schedule() -> None:
    assert chosen("round-robin", 8) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_random_repeats_with_its_seed_and_not_with_another() -> None:
    assert chosen("random", 200) == chosen("random", 200)
    assert chosen("random", 200) != chosen("random", 200, root_seed=8)


def test_a_longer_schedule_begins_with_the_same_random_choices() -> None:
    assert chosen("random", 100, requests=100) == chosen("random", 100, requests=5_000)


@pytest.mark.parametrize("targets", [2, 3, 7])
def test_random_is_uniform_and_without_memory(targets: int) -> None:
    n = 90_000
    drawn = np.array(chosen("random", n, targets=targets))
    sd = (n / targets * (1 - 1 / targets)) ** 0.5  # of a binomial count
    assert np.abs(np.bincount(drawn, minlength=targets) - n / targets).max() < 4.5 * sd
    pairs = np.bincount(drawn[:-1] * targets + drawn[1:], minlength=targets**2)
    assert np.abs(pairs - n / targets**2).max() < 4.5 * (n / targets**2) ** 0.5


def test_least_in_flight_takes_the_emptiest_and_of_equals_the_next_in_turn() -> None:
    router = router_of("least-in-flight", targets=3, requests=99, root_seed=7)
    assert [router.chosen(index) for index in range(4)] == [0, 1, 2, 0]  # now 2, 1, 1 are on the wire
    router.left(2)
    assert router.chosen(4) == 2
    assert [router.chosen(5), router.chosen(6)] == [1, 2]  # 2, 1, 1, and the turn is at 0, which has more
    router.left(0)
    router.left(0)
    assert [router.chosen(7), router.chosen(8)] == [0, 0]


@pytest.mark.parametrize("routing", ["round-robin", "random", "least-in-flight"])
def test_one_url_gets_all(routing: Routing) -> None:
    assert chosen(routing, 5, targets=1) == [0] * 5


def test_the_slow_server_gets_fewer_requests_by_least_in_flight_and_half_of_them_in_turn() -> None:
    plan = every(10.0, 100)
    requests, _ = sent(plan, [4.0, 94.0], routing="least-in-flight")
    # server 1 takes a request, then holds it for 94 ms, in which server 0 takes the nine that come
    assert list(requests.index[requests["target"] == 1]) == list(range(1, 100, 10))
    in_turn, _ = sent(plan, [4.0, 94.0])
    assert list(in_turn["target"]) == [0, 1] * 50


def test_random_choices_are_those_of_the_run_s_root_whatever_the_servers_do() -> None:
    plan = every(10.0, 60)
    for took in ([1.0, 1.0, 1.0], [1.0, 500.0, None]):
        requests, _ = sent(plan, took, routing="random", timeout_s=2)
        assert list(requests["target"]) == chosen("random", 60, root_seed=plan.root_seed)


def test_refused_connections_and_time_outs_count_for_the_server_and_leave_it() -> None:
    plan = every(10.0, 6)
    requests, _ = sent(plan, [1.0, 1.0], routing="least-in-flight", refused={0, 1, 2, 3, 4, 5})
    assert list(requests["outcome"]) == ["connect_error"] * 6
    assert list(requests["target"]) == [0, 1, 0, 1, 0, 1]
    # both are silent: every request times out 50 ms after its instant, and a new one finds the emptier server
    requests, _ = sent(every(40.0, 10), [None, None], routing="least-in-flight", timeout_s=0.05)
    assert Counter(requests["target"]) == {0: 5, 1: 5}
    # only server 1 is silent: it has one request at a time, and each stays until its time-out
    requests, _ = sent(every(10.0, 40), [1.0, None], routing="least-in-flight", timeout_s=0.1)
    silent = requests[requests["target"] == 1]
    assert set(silent["outcome"]) == {"timeout"}
    assert (silent["released_ns"].to_numpy()[1:] >= silent["ended_ns"].to_numpy()[:-1]).all()
    assert 3 <= len(silent) <= 4


def test_under_a_cap_the_choice_is_made_when_the_slot_is_got() -> None:
    # one slot: each waits for the one before, so both servers are empty whenever a slot is got
    requests, _ = sent(plan_at([0, 1, 2, 3], window_ms=100, output_tokens=1), [30.0, 10.0],
                       routing="least-in-flight", max_concurrency=1)  # fmt: skip
    assert list(requests["target"]) == [0, 1, 0, 1]
    assert [at // MS for at in requests["admitted_ns"]] == [0, 30, 40, 70]


@pytest.mark.parametrize(("servers", "unsent"), [(2, -1), (1, 0)])
def test_what_never_got_a_slot_went_to_no_server_where_there_are_several(servers: int, unsent: int) -> None:
    plan = plan_at([0, 0], window_ms=100, output_tokens=1)
    requests, _ = sent(plan, [None] * servers, max_concurrency=1, timeout_s=0.5, routing="round-robin")
    assert list(requests["target"]) == [0, unsent]
    assert list(requests["admitted_ns"] >= 0) == [True, False]


def test_fixed_concurrency_keeps_as_many_at_each_server_by_least_in_flight() -> None:
    plan = every(1.0, 400)
    requests, dispatcher = sent(plan, [10.0, 30.0], routing="least-in-flight", pacing=FixedConcurrency(4))
    assert dispatcher.peak_in_flight == 4
    counts = Counter(requests["target"])
    assert counts[0] / counts[1] == pytest.approx(3, rel=0.05)  # two at each, and one is three times as fast
    in_turn, _ = sent(plan, [10.0, 30.0], pacing=FixedConcurrency(4))
    counts = Counter(in_turn["target"])
    assert 0 <= counts[0] - counts[1] <= 1  # and the fast one waits for the slow one


def test_a_dependent_turn_goes_where_there_is_room_when_it_leaves() -> None:
    plan = plan_at([0, 5, 10, 15], window_ms=1000, output_tokens=1)
    plan = replace(plan, parent=np.array([-1, -1, 0, 1]))
    requests, _ = sent(plan, [50.0, 200.0], routing="least-in-flight", pacing=DependentSessions())
    # turn 2 leaves when 0 ends, at 50 ms: server 0 is empty; turn 3 when 1 ends, at 205 ms: both are, and 1 is next
    assert [at // MS for at in requests["scheduled_ns"]] == [0, 5, 50, 205]
    assert list(requests["target"]) == [0, 1, 0, 1]
