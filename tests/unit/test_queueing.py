from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.queueing import (
    fcfs,
    md1_wait_share,
    mg1_wait_shares,
    mm1_capacity,
    pollaczek_khinchine_wait_s,
)
from analysis.records import derive
from tests.fakes.queue import fcfs_requests


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**9)), min_size=1, max_size=100))
def test_fcfs_is_the_recursion(gaps: list[tuple[int, int]]) -> None:
    arrivals = np.cumsum([gap for gap, _ in gaps])
    services = np.array([service for _, service in gaps])
    start, finish = fcfs(arrivals, services)
    free = 0
    for i in range(len(gaps)):
        begun = max(int(arrivals[i]), free)
        free = begun + int(services[i])
        assert (start[i], finish[i]) == (begun, free)


def test_its_table_carries_the_sojourn() -> None:
    derived = derive(fcfs_requests(np.array([0, 1_000_000]), np.array([2_000_000, 2_000_000])))
    assert derived["e2e_s"].tolist() == [0.002, 0.003]
    assert derived["headers_ns"].tolist() == [0, 2_000_000]
    assert derived["client_queue_s"].tolist() == [0, 0]


@pytest.mark.parametrize(("second_moment", "services"), [(2.0, "M/M/1"), (1.0, "M/D/1")])
def test_mean_waits_are_pollaczek_khinchine_s(second_moment: float, services: str) -> None:
    rng, means = np.random.default_rng(7), []
    for _ in range(40):
        arrivals = np.cumsum(rng.exponential(1 / 0.7, 50_000))
        drawn = rng.exponential(1.0, 50_000) if services == "M/M/1" else np.ones(50_000)
        start, _ = fcfs(arrivals, drawn)
        means.append((start - arrivals)[5_000:].mean())
    expected = pollaczek_khinchine_wait_s(rate=0.7, mean_s=1.0, second_moment_s2=second_moment)
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    assert error < 0.05 * expected
    assert abs(np.mean(means) - expected) < 4 * error


def test_the_mm1_capacity_is_where_its_quantile_meets_the_bound() -> None:
    rate = mm1_capacity(service_rate=20, bound_s=0.5, share=0.95)
    assert rate == pytest.approx(20 - np.log(20) / 0.5)
    assert -np.log(1 - 0.95) / (20 - rate) == pytest.approx(0.5)  # the quantile of the sojourn, Exp(μ − λ)
    assert mm1_capacity(service_rate=1, bound_s=0.5, share=0.95) < 0  # even an idle server is too slow


def test_no_steady_state_is_said() -> None:
    with pytest.raises(ValueError, match="no steady state"):
        pollaczek_khinchine_wait_s(rate=1, mean_s=1, second_moment_s2=1)


def test_the_wait_of_any_service_is_erlangs_where_it_is_constant_and_exponential_where_it_is_exponential() -> None:
    at_s = np.arange(501) / 1000
    constant = mg1_wait_shares(rate=16, limited_mean_s=lambda t: np.minimum(t, 0.05), until_s=0.5, step_s=1e-3)
    erlang = [md1_wait_share(rate=16, service_s=0.05, within_s=float(t)) for t in at_s]
    assert constant == pytest.approx(erlang, abs=2e-5)
    exponential = mg1_wait_shares(
        rate=16, limited_mean_s=lambda t: (1 - np.exp(-20 * t)) / 20, until_s=0.5, step_s=1e-3
    )
    assert exponential == pytest.approx(1 - 0.8 * np.exp(-4 * at_s), abs=2e-5)


def test_the_mean_of_that_wait_is_pollaczek_and_khinchines() -> None:
    def limited_mean_s(t: np.ndarray) -> np.ndarray:  # 20 ms four times in five, else 180 ms
        return 0.8 * np.minimum(t, 0.02) + 0.2 * np.minimum(t, 0.18)

    share = mg1_wait_shares(rate=10, limited_mean_s=limited_mean_s, until_s=4.0, step_s=2e-3)
    mean_s = float(np.sum(1 - (share[1:] + share[:-1]) / 2) * 2e-3)
    second = 0.8 * 0.02**2 + 0.2 * 0.18**2
    assert mean_s == pytest.approx(pollaczek_khinchine_wait_s(rate=10, mean_s=0.052, second_moment_s2=second), rel=1e-3)


def test_a_wait_without_a_steady_state_is_refused() -> None:
    with pytest.raises(ValueError, match="no steady state"):
        md1_wait_share(rate=20, service_s=0.05, within_s=1)
    with pytest.raises(ValueError, match="no steady state"):
        mg1_wait_shares(rate=21, limited_mean_s=lambda t: np.minimum(t, 0.05), until_s=0.1, step_s=0.01)
