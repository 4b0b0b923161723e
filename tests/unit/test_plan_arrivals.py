from __future__ import annotations

import math

import numpy as np
import pytest

from loadgen.plan.arrivals import Arrivals, Modulated, schedule_count, schedule_horizon
from loadgen.plan.seeds import stream
from loadgen.plan.types import NS, Schedule


@pytest.mark.parametrize(
    ("arrivals", "kind", "cv"),
    [
        (Arrivals(), "poisson", 1.0),
        (Arrivals(kind="constant"), "constant", 0.0),
        (Arrivals.gamma(shape=0.25), "gamma", 2.0),
        (Arrivals.gamma(cv=2), "gamma", 2),
    ],
)
def test_an_arrival_process_knows_its_cv(arrivals: Arrivals, kind: str, cv: float) -> None:
    assert arrivals.kind == kind
    assert arrivals.cv == pytest.approx(cv)


@pytest.mark.parametrize("given", [{"shape": 0}, {"cv": 0}, {"shape": -1}])
def test_a_gamma_process_that_is_none_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="gamma"):
        Arrivals.gamma(**given)


def test_gamma_takes_shape_or_cv_and_not_both() -> None:
    with pytest.raises(ValueError, match="either burstiness"):
        Arrivals.gamma(shape=1, cv=1)
    with pytest.raises(ValueError, match="either burstiness"):
        Arrivals.gamma()


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        schedule_horizon(Arrivals(), rate, NS, stream(1, "arrivals"))


def test_a_plan_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="above 20,000,000"):
        schedule_horizon(Arrivals(), 1e6, 10**15, stream(1, "arrivals"))
    with pytest.raises(ValueError, match="out of range"):
        schedule_horizon(Arrivals(), 1, -1, stream(1, "arrivals"))
    with pytest.raises(ValueError, match="146 years"):
        schedule_count(Arrivals(), 1e-9, warmup_ns=0, cohort=10_000, tail_ns=0, rng=stream(1, "arrivals"))
    with pytest.raises(ValueError, match="not a run"):
        schedule_count(Arrivals(), 1, warmup_ns=0, cohort=0, tail_ns=0, rng=stream(1, "arrivals"))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no wider float here to compare with")
@pytest.mark.parametrize("arrivals", [Arrivals(), Arrivals.gamma(shape=0.3), Arrivals(kind="constant")])
@pytest.mark.parametrize("rate", [0.7, 1000.0])
def test_rounding_does_not_accumulate(arrivals: Arrivals, rate: float) -> None:
    count = 200_000
    at_ns = schedule_horizon(arrivals, rate, round(count / rate * NS), stream(5, "arrivals")).at_ns
    draws = arrivals.unit_gaps(stream(5, "arrivals"), at_ns.size)
    exact_ns = np.cumsum(draws.astype(np.longdouble)) * (np.longdouble(NS) / np.longdouble(rate))
    error_gaps = np.abs(at_ns.astype(np.longdouble) - exact_ns) * rate / NS
    rounding = 0.51 * rate / NS
    blocks = math.ceil(at_ns.size / 4096)
    assert float(error_gaps.max()) <= rounding + blocks * 2.0**-29
    assert float(error_gaps.max()) <= rounding + 1e-9  # in practice


def test_recorded_instants_stay_as_they_are() -> None:
    offsets = [0, 5, 5, 2**60]
    assert Schedule(at_ns=np.array(offsets)).at_ns.tolist() == offsets
    with pytest.raises(ValueError, match="sorted"):
        Schedule(at_ns=np.array([2, 1]))
    assert len(Schedule(at_ns=np.array([], dtype=np.int64))) == 0


def test_modulated_arrivals_have_the_law_of_their_two_rates() -> None:
    process = Modulated(low=0.5, high=3.0, up=0.02, down=0.08)
    at_ns = schedule_horizon(process, 10.0, 20_000 * NS, stream(1, "arrivals")).at_ns
    assert at_ns.size == pytest.approx(200_000, rel=0.03)
    counts = np.bincount(at_ns // (50 * NS), minlength=400)
    # Fischer and Meier-Hellstern: var/mean = 1 + 2·v·(1 + expm1(-bt)/(bt))/(mean·b), here in mean gaps
    b, variance = 0.1, 0.02 * 0.08 / 0.1**2 * 2.5**2
    x = b * 500
    expected = 1 + 2 * variance / b * (1 + np.expm1(-x) / x)
    assert counts.var() / counts.mean() == pytest.approx(expected, rel=0.25)


def test_modulated_arrivals_are_squeezed_by_the_rate_and_extended_by_the_horizon() -> None:
    process = Modulated(low=0.5, high=3.0, up=0.02, down=0.08)
    slow = schedule_horizon(process, 5.0, 4_000 * NS, stream(3, "arrivals")).at_ns
    fast = schedule_horizon(process, 10.0, 1_000 * NS, stream(3, "arrivals")).at_ns
    assert np.abs(slow[: fast.size] - 2 * fast).max() <= 1


@pytest.mark.parametrize("bad", [{"low": -1.0}, {"high": float("nan")}, {"up": 0.0}, {"low": 0.9}])
def test_modulated_arrivals_refuse_what_has_no_unit_mean(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="modulated arrivals"):
        Modulated(**({"low": 0.5, "high": 3.0, "up": 0.02, "down": 0.08} | bad))
