"""Several servers behind one target: who gets what over real sockets, and what is said of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from anyio.from_thread import start_blocking_portal

from analysis.records import outcome_is
from loadgen import load
from loadgen.send.api import Endpoint, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.routing import Routing, router_of
from loadgen.send.session import send_run
from loadgen.target.emulated import launch
from tests.fakes.plans import Bodies, plan_at
from tests.fakes.server import serving, stream

pytestmark = [pytest.mark.realtime, pytest.mark.usefixtures("unhurried")]

N = 60
PLAN = plan_at([5 * k for k in range(1, N + 1)], window_ms=5 * N + 5)


async def spread(routing: Routing, first_s: tuple[float, ...]) -> tuple[RunOutput, list[int]]:
    """A run over servers whose first token takes so long, and how many requests each of them saw."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(stream(first_s=first))) for first in first_s]
        clock = LoopClock()
        stack.callback(clock.close)
        endpoint = Endpoint(urls=tuple(server.url for server in servers), path="/v1/completions", model="m")
        output = await send_run(PLAN, Bodies(), endpoint, SendOptions(routing=routing), clock=clock)
        return output, [len(server.requests) for server in servers]


async def test_each_policy_over_a_fast_a_middling_and_a_slow_server() -> None:
    targets = {}
    for routing in ("round-robin", "random", "least-in-flight"):
        output, seen = await spread(routing, (0.0, 0.02, 0.25))
        requests = output.requests
        assert outcome_is(requests, "ok").all()
        targets[routing] = requests["target"].tolist()
        assert [Counter(targets[routing])[number] for number in range(3)] == seen
        assert output.facts.routing == routing
        assert len(output.facts.urls) == 3
    assert targets["round-robin"] == [0, 1, 2] * (N // 3)
    router = router_of("random", targets=3, requests=N, root_seed=PLAN.root_seed)
    assert targets["random"] == [router.chosen(index) for index in range(N)]
    counts = Counter(targets["least-in-flight"])
    assert counts[2] < counts[1] < counts[0]
    assert counts[2] <= 6  # it holds each for 250 ms, and never has more than the emptiest other one


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[str, str]]:
    """An emulated server that takes 2 ms on average, and one that takes 52 ms, one request at a time each."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(launch("fcfs-fast")) as fast,
        portal.wrap_async_context_manager(launch("fcfs")) as slow,
    ):
        yield fast.url, slow.url


SHORT = ("--input", "16", "--output", "2", "--slo", "e2e<=10s", "--window", "1500ms", "--warmup", "300ms",
         "--min-requests", "20", "--rate", "60", "--quiet")  # fmt: skip


def test_a_run_tells_what_each_replica_had(loadgen: Callable[..., Any], pair: tuple[str, str]) -> None:
    fast, slow = pair
    ran = loadgen("run", "--target", fast, "--target", slow, "--routing", "least-in-flight", *SHORT,
                  "--out", "r", "--json", code=None)  # fmt: skip
    verdict = json.loads(ran.stdout)["verdict"]
    balance = verdict["balance"]
    assert balance["routing"] == "least-in-flight"
    first, second = balance["replicas"]
    assert (first["url"], second["url"]) == pair
    assert first["requests"] + second["requests"] == verdict["cohort"]
    assert second["requests"] < 0.4 * verdict["cohort"]
    assert balance["request_imbalance"] == pytest.approx(2 * first["requests"] / verdict["cohort"])
    assert first["in_flight_mean"] > 0
    assert first["e2e_s"]["p50"] < second["e2e_s"]["p50"]

    measured = load("r")
    targets: pd.Series = measured.requests(cohort=True, columns=["target"])["target"]
    frame = measured.replicas
    assert list(frame["url"]) == list(pair)
    assert frame["requests"].tolist() == [int((targets == number).sum()) for number in range(2)]
    assert measured.runs["request_imbalance"].tolist() == [balance["request_imbalance"]]
    run = json.loads(next(Path("r").rglob("run.json")).read_text())
    assert run["facts"]["sender"]["urls"] == list(pair)
    shown = loadgen("show", "r").stdout
    assert "Replicas (routing least-in-flight)" in shown
    most = f"requests {balance['request_imbalance']:.2f} ({fast})"
    assert f"replicas, largest over the mean (routing least-in-flight): {most}" in shown
