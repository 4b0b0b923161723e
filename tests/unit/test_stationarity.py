"""The drift of outstanding work: an exact slope, a z that is one under a random walk, and the power to see overload."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.queueing import fcfs
from analysis.records import columns
from analysis.stationarity import (
    RATE_Z,
    RUN_Z,
    Drift,
    area_s,
    correlation_time_s,
    gauge_drift,
    outstanding_drift,
    rate_drift,
)

NS = 1_000_000_000
WARMUP_S, WINDOW_S = 20, 120  # the defaults
LONG_WARMUP_S = 120  # of the 10 s service: 6 × its mean age (method, section 6: one with 10 s mean is met at age 20 s)
MEAN_SERVICE_S = 0.052
Serve = Callable[[np.random.Generator, float], pd.DataFrame]
Service = tuple[Serve, float, int]  # how it serves, rate, warm-up in s


def table(scheduled: np.ndarray, ended: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"scheduled_ns": scheduled, "ended_ns": ended})  # all that drift reads of a request table


def poisson(rng: np.random.Generator, rate: float, span_s: float) -> np.ndarray:
    return np.sort((rng.random(rng.poisson(rate * span_s)) * span_s * NS).astype(np.int64))


def mixed(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.8, 20_000_000, 180_000_000)


def exponential(rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.exponential(MEAN_SERVICE_S, n) * NS).astype(np.int64)


def queue(load: float, law: Callable[[np.random.Generator, int], np.ndarray] = mixed) -> Service:
    rate = load / MEAN_SERVICE_S

    def serve(rng: np.random.Generator, span_s: float) -> pd.DataFrame:
        arrivals = poisson(rng, rate, span_s)
        return table(arrivals, fcfs(arrivals, law(rng, len(arrivals)))[1])

    return serve, rate, WARMUP_S


def many_servers(rate: float) -> Service:
    """10 s of exponential service each, nobody waits."""

    def serve(rng: np.random.Generator, span_s: float) -> pd.DataFrame:
        arrivals = poisson(rng, rate, span_s)
        return table(arrivals, arrivals + (rng.exponential(10, len(arrivals)) * NS).astype(np.int64))

    return serve, rate, LONG_WARMUP_S


def drifts(service: Service, rng: np.random.Generator, *, runs: int, window_s: float = WINDOW_S) -> list[Drift]:
    serve, rate, warmup_s = service
    end_s = warmup_s + window_s
    found = [
        outstanding_drift(serve(rng, end_s), start_ns=warmup_s * NS, end_ns=int(end_s * NS), rate=rate)
        for _ in range(runs)
    ]
    return [one for one in found if one is not None]


def alarms(service: Service, *, rates: int, seed: int, runs: int, window_s: float = WINDOW_S) -> float:
    """Share of rates that fail, by a run of their own or by all of them together."""
    rng, raised = np.random.default_rng(seed), 0
    for _ in range(rates):
        of_runs = drifts(service, rng, runs=runs, window_s=window_s)
        together = rate_drift(of_runs)
        assert together is not None
        raised += together.rises(RATE_Z) or (runs > 1 and any(one.rises(RUN_Z) for one in of_runs))
    return raised / rates


intervals = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500) | st.none()), max_size=30)


@settings(deadline=None)
@given(intervals, st.integers(0, 600))
def test_the_area_under_n_is_the_sum_of_residences(spans: list[tuple[int, int | None]], until_ns: int) -> None:
    scheduled = np.array([at for at, _ in spans], dtype=np.int64)
    ended = np.array([-1 if span is None else at + span for at, span in spans], dtype=np.int64)
    instants = np.arange(until_ns)
    outstanding = np.zeros(until_ns, dtype=np.int64)
    for at, end in zip(scheduled, ended, strict=True):
        outstanding += (instants >= at) & ((instants < end) | (end < 0))
    assert area_s(table(scheduled, ended), until_ns=until_ns) == pytest.approx(outstanding.sum() / NS)


def test_the_slope_of_a_known_ramp_is_exact() -> None:
    # ten arrivals a second of which every fifth never ends: N(t) rises by 2/s, d = 20 %
    at = (np.arange(1, 1401) * 100_000_000).astype(np.int64)
    ended = np.where(np.arange(1400) % 5 == 0, -1, at + 50_000_000)
    found = outstanding_drift(table(at, ended), start_ns=20 * NS, end_ns=140 * NS, rate=10)
    assert found is not None
    assert found.ratio == pytest.approx(0.2, rel=1e-3)
    assert found.z == 99  # it does not wander at all
    assert found.rises(RUN_Z)


def test_the_z_of_a_known_walk_is_exact() -> None:
    """N rises by 1 in each of 20 pieces of 6 s, and by 3 in every other one."""
    rises = np.array([1, 3] * 10)
    at = np.repeat(np.arange(20) * 6 * NS + 1, rises)
    found = outstanding_drift(table(at, np.full(len(at), -1)), start_ns=0, end_ns=120 * NS, rate=1)
    assert found is not None
    # means over pairs of pieces: 1 and 4 in the first pair, 4 more in each one after it
    slope = 4 / 12
    assert found.ratio == pytest.approx(slope)
    assert found.z == pytest.approx(slope / math.sqrt(1.2 * np.var(rises, ddof=1) / 6 / 120))


@pytest.mark.parametrize("residence_s", [0.5, 60.0])
def test_a_constant_does_not_rise(residence_s: float) -> None:
    at = (np.arange(1400) * 100_000_000).astype(np.int64)
    found = outstanding_drift(table(at, at + int(residence_s * NS)), start_ns=70 * NS, end_ns=140 * NS, rate=10)
    assert found is not None
    assert found.ratio == pytest.approx(0, abs=1e-6)
    assert not found.rises(0)


def test_nothing_in_it_scales_with_how_long_requests_stay() -> None:
    """An overload that doubles every residence is an alarm still: no batch must outlast a residence."""
    at = (np.arange(1400) * 100_000_000).astype(np.int64)
    waits = np.maximum(0, at - 20 * NS) // 10  # a tenth of all work is left over
    for stay_s in (0.1, 60):
        found = outstanding_drift(table(at, at + waits + int(stay_s * NS)), start_ns=80 * NS, end_ns=140 * NS, rate=10)
        assert found is not None
        assert found.rises(RUN_Z)


def test_a_gauge_is_tested_like_the_records() -> None:
    times = np.arange(0, 160, 0.5)
    waiting = np.maximum(0, times - 20) * 1.5
    found = gauge_drift(times, waiting, start_s=20, end_s=140, rate=10)
    assert found is not None
    assert round(found.ratio, 3) == 0.15
    assert found.rises(RUN_Z)


def test_samples_of_a_walk_give_the_z_of_the_walk() -> None:
    rng, rate, spread = np.random.default_rng(3), 10.0, []
    for _ in range(50):
        at, stay = poisson(rng, rate, 140), rng.exponential(0.5, 10_000)
        ended = at + (stay[: len(at)] * NS).astype(np.int64)
        times = np.arange(20, 140, 0.25)
        held = np.searchsorted(at, times * NS) - np.searchsorted(np.sort(ended), times * NS)
        gauge = gauge_drift(times, held.astype(np.float64), start_s=20, end_s=140, rate=rate)
        exact = outstanding_drift(table(at, ended), start_ns=20 * NS, end_ns=140 * NS, rate=rate)
        assert gauge is not None
        assert exact is not None
        spread.append(gauge.z - exact.z)
    assert np.std(spread) < 0.5


@pytest.mark.parametrize("order", [1, -1])
def test_samples_may_come_in_any_order_and_unevenly(order: int) -> None:
    times = np.concatenate([np.arange(20, 50, 0.1), np.arange(50, 140, 2.0)])[::order]
    found = gauge_drift(times, times * 1.5, start_s=20, end_s=140, rate=10)
    assert found is not None
    assert found.ratio == pytest.approx(0.15, rel=0.05)


def test_a_gap_in_the_scrapes_is_no_evidence() -> None:
    whole = np.arange(20, 140).astype(float)
    assert gauge_drift(whole, whole, start_s=20, end_s=140, rate=10) is not None
    gapped = np.concatenate([np.arange(20, 60), np.arange(80, 140)]).astype(float)
    assert gauge_drift(gapped, gapped, start_s=20, end_s=140, rate=10) is None
    unread = np.where((whole > 60) & (whole < 70), np.nan, whole)
    assert gauge_drift(whole, unread, start_s=20, end_s=140, rate=10) is None
    assert gauge_drift(whole, whole, start_s=20, end_s=20, rate=10) is None
    assert gauge_drift(whole, whole, start_s=20, end_s=140, rate=0) is None


def test_nothing_offered_nothing_found() -> None:
    empty = table(np.array([], dtype=np.int64), np.array([], dtype=np.int64))
    assert outstanding_drift(empty, start_ns=0, end_ns=NS, rate=1) is None
    one = table(np.array([5]), np.array([6]))
    assert outstanding_drift(one, start_ns=0, end_ns=NS, rate=0) is None  # a closed loop


@pytest.mark.parametrize(
    ("runs", "rises"),
    [
        ([(0.05, 1.2)] * 3, True),  # none of them alone
        ([(0.05, 1.2)] * 2, False),
        ([(0.05, 2.0)], True),
        ([(0.05, 1.9)], False),
        ([(0.019, 9.0)] * 3, False),  # certain, but small
        ([(0.5, 3.0), (-0.3, -2.0), (0.01, 0.1)], False),  # large, but uncertain
        ([(-0.1, -9.0)] * 3, False),
    ],
)
def test_a_rate_s_runs_decide_together(runs: list[tuple[float, float]], rises: bool) -> None:
    found = rate_drift([Drift(ratio=ratio, z=z) for ratio, z in runs])
    assert found is not None
    assert found.rises(RATE_Z) is rises
    assert found.z == pytest.approx(sum(z for _, z in runs) / math.sqrt(len(runs)))


def test_no_run_has_no_drift() -> None:
    assert rate_drift([]) is None


def test_the_test_takes_no_time_to_speak_of() -> None:
    serve, rate, _ = queue(0.8)
    requests = serve(np.random.default_rng(1), 50_000 / rate)
    took_s = []
    for _ in range(5):
        began_s = time.perf_counter()
        outstanding_drift(requests, start_ns=100 * NS, end_ns=3000 * NS, rate=rate)
        took_s.append(time.perf_counter() - began_s)
    assert min(took_s) < 0.05  # the best of five: others may be using this machine


# --- laws -------------------------------------------------------------------------------------------------------------


def walked(rng: np.random.Generator, trend: float, *, rate: float = 20.0, window_s: float = 60.0) -> Drift:
    """N(t) as a random walk: up and down by one, as often as each other but for the trend."""
    ups, downs = poisson(rng, rate, window_s), poisson(rng, rate * (1 - trend), window_s)
    at = np.concatenate([np.full(3_000, -1), ups])  # a stock to take from, so that no queue can be empty
    ended = np.full(len(at), -1, dtype=np.int64)
    ended[: len(downs)] = downs
    found = outstanding_drift(table(at, ended), start_ns=0, end_ns=int(window_s * NS), rate=rate)
    assert found is not None
    return found


def test_z_has_unit_variance_and_no_bias_under_a_random_walk_of_one_run_and_of_five() -> None:
    """The law that the thresholds are quantiles of; σ² of 20 pieces makes z a little wider than normal."""
    rng = np.random.default_rng(21)
    runs = [walked(rng, 0.0) for _ in range(1000)]
    z = np.array([run.z for run in runs])
    assert abs(z.mean()) < 3.5 / math.sqrt(len(z))
    assert 0.95 < z.std() < 1.15
    assert np.mean(z > RATE_Z) == pytest.approx(0.03, abs=0.016)
    assert np.mean(z > RUN_Z) < 0.008
    together = [rate_drift(runs[i : i + 5]) for i in range(0, len(runs), 5)]
    assert 0.9 < np.std([one.z for one in together if one is not None]) < 1.2


def test_a_trend_is_seen_the_better_the_more_runs_there_are() -> None:
    rng, seen = np.random.default_rng(23), {}
    for runs in (1, 5):
        of = [rate_drift([walked(rng, 0.08) for _ in range(runs)]) for _ in range(100)]
        seen[runs] = np.mean([one is not None and one.rises(RATE_Z) for one in of])
    # z is about 0.08·20/√(1.2·38.4/60) = 1.8 a run
    assert 0.3 < seen[1] < 0.6
    assert seen[5] > 0.95


def test_a_stable_queue_raises_no_alarm() -> None:
    assert alarms(queue(0.8), rates=10, seed=11, runs=5) == 0


@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("load", [1.2, 1.5])
def test_an_overloaded_queue_raises_it_however_few_runs_there_are(load: float, runs: int) -> None:
    assert alarms(queue(load), rates=3, seed=12, runs=runs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 5, 10])
@pytest.mark.parametrize(
    "service",
    [queue(0.8), queue(0.95), queue(0.95, exponential), many_servers(1), many_servers(8)],
    ids=["fcfs-0.8", "fcfs-0.95", "mm1-0.95", "10s-1", "10s-8"],
)
def test_a_rate_s_false_alarm_is_rare(service: Service, runs: int) -> None:
    assert alarms(service, rates=200, seed=13, runs=runs) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("law", [mixed, exponential], ids=["fcfs", "mm1"])
@pytest.mark.parametrize("runs", [3, 5, 10])
def test_a_slight_overload_is_seen_in_longer_windows(runs: int, law: Callable[..., np.ndarray]) -> None:
    assert alarms(queue(1.05, law), rates=40, seed=14, runs=runs, window_s=300) >= 0.75


# --- correlation ------------------------------------------------------------------------------------------------------


def test_the_correlation_time_of_independent_stays_is_that_of_their_law() -> None:
    # M/M/inf: the autocovariance of N(t) is that of the residual stay, exp(-t/mean), whatever the rate
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(0.05, 200_000))
    ended = arrivals + rng.exponential(2.0, arrivals.size)
    requests = columns(
        arrivals.size, {"scheduled_ns": (arrivals * 1e9).astype(np.int64), "ended_ns": (ended * 1e9).astype(np.int64)}
    )
    spans_s = [
        correlation_time_s(requests, start_ns=at * 10**9, end_ns=(at + 1500) * 10**9) for at in range(100, 8000, 1500)
    ]
    assert np.mean([span for span in spans_s if span is not None]) == pytest.approx(2.0, rel=0.15)


def test_a_constant_has_no_correlation_time() -> None:
    requests = columns(1, {"scheduled_ns": [0], "ended_ns": [10**12]})
    assert correlation_time_s(requests, start_ns=10**9, end_ns=10**11) is None
