"""What fixes the warm-up of every run: the mean age of what is in service, seen on enough requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from analysis.cohort import mean_age_s
from loadgen.experiment.prepare import prepare
from loadgen.experiment.virtual_sut import VirtualSut
from loadgen.experiment.warmup import warm_requests, warm_target, warmup_note
from loadgen.scenario.file import load_scenario


def test_the_mean_age_sees_a_long_tail_that_median_and_mean_miss() -> None:
    # 4 % stay 80 s, the others 1 s: 62 of 80 requests in service at an instant are long ones
    stay = np.concatenate([np.full(96, 1.0), np.full(4, 80.0)])
    assert mean_age_s(stay) == pytest.approx((96 + 4 * 6400) / (96 + 320))
    assert mean_age_s(np.full(7, 2.5)) == pytest.approx(2.5)
    assert np.isnan(mean_age_s(np.empty(0)))
    assert np.isnan(mean_age_s(np.zeros(3)))
    exponential = np.random.default_rng(5).exponential(2.0, 200_000)
    assert mean_age_s(exponential) == pytest.approx(4.0, rel=0.02)  # E[S²]/E[S] of an exponential law: twice its mean


def warmed(profile: str = "llama8b-80gb", **asked: Any) -> tuple[float, int]:
    """The warm-up, and how many requests fixed it."""
    setup = prepare(load_scenario(None, {"target": (f"virtual:{profile}",), "rate": "2..18"} | asked))
    low = setup.spec.grid[0]

    async def warm() -> float:
        sut = VirtualSut(profile_name=profile)
        fixed = await warm_target(
            setup.scenario, setup.workload, sut, lowest_rate=low, experiment="x", stop=anyio.Event()
        )
        return fixed.warmup_s

    return anyio.run(warm), warm_requests(setup.scenario, low)


def test_a_few_long_outputs_lengthen_the_warm_up(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("256,128\n" * 24 + "256,8000\n")
    long_s, seen = warmed(lengths=str(tmp_path / "l.csv"), slo=("ttft<=2s",))
    assert seen == 200
    short_s, _ = warmed(slo=("ttft<=2s",))
    assert short_s == 20.0
    # an output of 8,000 tokens takes over 60 s here, and such outputs are most of what is in service
    assert 120 < long_s < 300


@pytest.mark.parametrize(
    ("asked", "seen", "says"),
    [
        ({}, 200, ""),
        ({"rate": "0.1..1", "window": "50m"}, 60, "at 0.1 requests/s"),
        ({"min_requests": 50}, 50, "(--min-requests 50)"),
        ({"min_requests": 5}, 32, "(--min-requests 5)"),
    ],
)
def test_fewer_requests_than_200_are_named(asked: dict[str, Any], seen: int, says: str) -> None:
    scenario = load_scenario(None, {"rate": "2..18"} | asked)
    low = prepare(scenario).spec.grid[0]
    assert warm_requests(scenario, low) == seen
    note = warmup_note(scenario, scenario.warmup, low)
    assert (f"fixed on {seen} requests instead of 200" in note) == bool(says)
    assert says in note
    assert "3 × the mean age" in warmup_note(scenario, 45.0, low)
