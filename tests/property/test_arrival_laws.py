"""The laws of the counts over thousands of seeds, and a generator that breaks them (method, section 4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.plan.arrivals import Arrivals, schedule_count, schedule_horizon
from loadgen.plan.seeds import stream
from loadgen.plan.types import NS

SEEDS = 6000
RATE = 8.0
WINDOW_S = 100.0
EXPECTED = RATE * WINDOW_S

POISSON = Arrivals()
BURSTY = Arrivals.gamma(shape=0.25)
REGULAR = Arrivals.gamma(shape=4)


def broken_laws(counts: npt.NDArray[np.float64], cv: float) -> set[str]:
    """Which of the two laws the counts miss by more than 4 standard errors.

    A renewal count has mean λT + (CV² - 1)/2 up to terms that vanish exponentially, and for Gamma gaps of shape k
    variance λT·CV² + (1 - 1/k²)/12 (Cox, Renewal Theory, 1962, section 4.5): the constant is below 0.2 % of the
    variances here, whose standard error is 2 %. That error comes from the sample's own fourth moment.
    """
    n = counts.size
    deviation = counts - counts.mean()
    variance = float((deviation**2).sum() / (n - 1))
    fourth = float((deviation**4).mean())
    variance_error = np.sqrt((fourth - variance**2 * (n - 3) / (n - 1)) / n)
    broken = set()
    if abs(counts.mean() - (EXPECTED + (cv**2 - 1) / 2)) > 4 * np.sqrt(EXPECTED * cv**2 / n):
        broken.add("mean")
    if abs(variance - EXPECTED * cv**2) > 4 * variance_error:
        broken.add("variance")
    return broken


def counts_of(count: Callable[[int], int]) -> npt.NDArray[np.float64]:
    return np.array([count(seed) for seed in range(SEEDS)], dtype=np.float64)


def count(arrivals: Arrivals, seed: int) -> int:
    return len(schedule_horizon(arrivals, RATE, round(WINDOW_S * NS), stream(seed, "arrivals")))


@pytest.mark.parametrize("arrivals", [POISSON, BURSTY, REGULAR], ids=["poisson", "gamma 0.25", "gamma 4"])
def test_counts_have_the_mean_and_the_variance_of_the_law(arrivals: Arrivals) -> None:
    assert broken_laws(counts_of(lambda seed: count(arrivals, seed)), arrivals.cv) == set()


def rescaled(arrivals: Arrivals, seed: int) -> int:
    """N gaps stretched so that the last arrival falls on N/λ, counted over the first 90 % of the run."""
    total = round(EXPECTED / 0.9)
    at = np.cumsum(arrivals.unit_gaps(stream(seed, "arrivals"), total)) / RATE
    at *= total / RATE / at[-1]
    return int(np.searchsorted(at, WINDOW_S))


@pytest.mark.parametrize("arrivals", [POISSON, BURSTY, REGULAR], ids=["poisson", "gamma 0.25", "gamma 4"])
def test_a_generator_that_rescales_to_the_nominal_rate_is_caught(arrivals: Arrivals) -> None:
    counts = counts_of(lambda seed: rescaled(arrivals, seed))
    assert "variance" in broken_laws(counts, arrivals.cv)
    assert counts.var() / (EXPECTED * arrivals.cv**2) == pytest.approx(0.10, rel=0.1)


def test_a_generator_whose_first_arrival_is_at_zero_is_caught() -> None:
    def early(seed: int) -> int:
        gaps = REGULAR.unit_gaps(stream(seed, "arrivals"), 2000)
        return int(np.searchsorted((np.cumsum(gaps) - gaps[0]) / RATE, WINDOW_S))

    assert "mean" in broken_laws(counts_of(early), REGULAR.cv)


def test_constant_arrivals_come_one_full_gap_apart_from_the_start() -> None:
    at_ns = schedule_horizon(Arrivals(kind="constant"), 4.0, 2 * NS, stream(1, "arrivals")).at_ns
    assert at_ns.tolist() == [250_000_000 * i for i in range(1, 8)]


processes = st.sampled_from([POISSON, BURSTY, REGULAR, Arrivals(kind="constant")])
seeds = st.integers(0, 2**48 - 1)


@settings(max_examples=60)
@given(processes, seeds, st.floats(0.01, 5000), st.floats(0, 20))
def test_a_longer_horizon_only_adds(arrivals: Arrivals, seed: int, rate: float, horizon_s: float) -> None:
    horizon_ns = round(horizon_s * NS)
    short = schedule_horizon(arrivals, rate, horizon_ns, stream(seed, "arrivals")).at_ns
    long = schedule_horizon(arrivals, rate, 2 * horizon_ns, stream(seed, "arrivals")).at_ns
    assert np.array_equal(short, long[: short.size])
    assert np.all(short < horizon_ns)
    assert np.all(long[short.size :] >= horizon_ns)


@settings(max_examples=60)
@given(processes, seeds, st.floats(1, 2000), st.floats(1, 3))
def test_a_higher_rate_is_the_same_draws_squeezed(arrivals: Arrivals, seed: int, rate: float, factor: float) -> None:
    slow = schedule_horizon(arrivals, rate, 12 * NS, stream(seed, "arrivals")).at_ns
    fast = schedule_horizon(arrivals, rate * factor, 12 * NS, stream(seed, "arrivals")).at_ns
    assert fast.size >= slow.size
    assert np.allclose(fast[: slow.size] * factor, slow, rtol=1e-15, atol=2 * factor)


@settings(max_examples=60)
@given(processes, seeds, st.floats(5, 3000), st.integers(1, 20_000), st.integers(0, 3 * NS), st.integers(0, NS))
def test_a_cohort_count_ends_the_window_and_nothing_else(
    arrivals: Arrivals, seed: int, rate: float, cohort: int, warmup_ns: int, tail_ns: int
) -> None:
    schedule, end_ns = schedule_count(
        arrivals, rate, warmup_ns=warmup_ns, cohort=cohort, tail_ns=tail_ns, rng=stream(seed, "arrivals")
    )
    inside = (schedule.at_ns >= warmup_ns) & (schedule.at_ns < end_ns)
    ties = np.count_nonzero(schedule.at_ns == end_ns - 1)
    assert cohort <= np.count_nonzero(inside) < cohort + ties
    whole = schedule_horizon(arrivals, rate, end_ns + tail_ns, stream(seed, "arrivals"))
    assert whole.sha256 == schedule.sha256
