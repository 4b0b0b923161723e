"""Transforms do what their names say, keep what they must keep, and refuse what they cannot do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traces.blocks import autocorrelation_time_s
from traces.describe import arrival_shape, describe, dispersion, nearest_rank
from traces.errors import TraceError
from traces.prefix import cached_tokens
from traces.trace import NS, BlockHashes, Trace
from traces.transform import change_rate, find_tick, jitter_within_tick, scale_time, superpose, thin, window


def make(
    at_s: list[float] | np.ndarray,
    *,
    session: list[int] | None = None,
    parent: list[int] | None = None,
    blocks: list[list[int]] | None = None,
) -> Trace:
    at = np.round(np.asarray(at_s, dtype=float) * NS).astype(np.int64)
    n = at.size
    hashes = None
    if blocks is not None:
        starts = np.cumsum([0, *map(len, blocks)])
        hashes = BlockHashes(
            ids=np.array([x for one in blocks for x in one], dtype=np.int64), starts=starts, block_tokens=16
        )
    return Trace(
        at_ns=at,
        input_tokens=np.arange(1, n + 1, dtype=np.int32) * 10,
        output_tokens=np.arange(1, n + 1, dtype=np.int32),
        line=np.arange(2, n + 2, dtype=np.int32),
        outcome=np.zeros(n, dtype=np.int8),
        hashes=hashes,
        session=None if session is None else np.array(session, dtype=np.int32),
        parent=None if parent is None else np.array(parent, dtype=np.int32),
    )


def poisson(rate: float, horizon_s: float, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, horizon_s, rng.poisson(rate * horizon_s)))
    return make(at - at[0])


def test_window_keeps_the_rows_and_remembers_its_own_start() -> None:
    done = window(make([0, 1, 2.5, 4, 6]), 2, 6)
    assert done.trace.at_ns.tolist() == [0, 1_500_000_000]
    assert done.trace.input_tokens.tolist() == [30, 40]
    assert done.lead_ns == 500_000_000
    assert "window 2..6 s: 2 requests, rate" in str(done)


def test_a_session_cut_by_a_window_starts_anew() -> None:
    trace = make([0, 1, 2, 3, 4], session=[0, 1, 0, 1, 2], parent=[-1, -1, 0, 1, -1])
    cut = window(trace, 1).trace
    assert cut.session is not None
    assert cut.parent is not None
    assert cut.session.tolist() == [0, 1, 0, 2]
    assert cut.parent.tolist() == [-1, -1, 0, -1]


def test_hashes_follow_their_rows() -> None:
    trace = make([0, 1, 2, 3], blocks=[[1, 2], [], [1, 3, 4], [1]])
    cut = window(trace, 1).trace
    assert cut.hashes is not None
    assert [cut.hashes.of(i).tolist() for i in range(3)] == [[], [1, 3, 4], [1]]


def test_time_scaling_multiplies_the_rate_and_leaves_the_cv() -> None:
    trace = poisson(5, 2000, 1)
    done = scale_time(trace, 2.5)
    assert done.arrivals.rate == pytest.approx(2.5 * trace.rate, rel=1e-9)
    assert done.arrivals.gap_cv == pytest.approx(arrival_shape(trace).gap_cv, rel=1e-6)
    assert np.abs(done.trace.at_ns * 2.5 - trace.at_ns).max() <= 1.25 + 1e-3


def test_time_scaling_is_exact_beyond_the_mantissa_of_a_float() -> None:
    trace = make([0.0, 1.0])
    days = 400 * 86_400 * NS + 1  # not a float64
    trace = trace.take(np.arange(2), at_ns=np.array([0, days]))
    assert scale_time(scale_time(trace, 0.5).trace, 2).trace.at_ns.tolist() == [0, days]


def test_thinning_keeps_the_share_and_whole_sessions() -> None:
    trace = poisson(20, 2000, 2)
    done = thin(trace, 0.25, seed=7)
    kept = len(done.trace) / len(trace)
    assert abs(kept - 0.25) < 5 * math.sqrt(0.25 * 0.75 / len(trace))
    assert np.array_equal(done.trace.at_ns, thin(trace, 0.25, seed=7).trace.at_ns)
    sessions = np.repeat(np.arange(500), 4)
    parents = np.where(np.arange(2000) % 4 == 0, -1, np.arange(2000) - 1)
    whole = thin(make(np.arange(2000), session=sessions.tolist(), parent=parents.tolist()), 0.5, seed=1).trace
    assert whole.session is not None
    assert set(np.bincount(whole.session).tolist()) == {4}


def test_thinning_moves_bursts_towards_poisson() -> None:
    bursts = make(np.repeat(np.arange(0, 2000, 10.0), 20))
    assert thin(bursts, 0.05, seed=3).arrivals.dispersion[1.0] < 0.2 * dispersion(bursts.at_ns, 1.0)


def test_superposition_adds_rates_and_copies_do_not_share_prefixes() -> None:
    blocks = [[i % 7, 100 + i] for i in range(300)]
    trace = make(np.arange(300) * 0.5, session=list(range(300)), parent=[-1] * 300, blocks=blocks)
    done = superpose(trace, 3, seed=5)
    assert len(done.trace) == 900
    assert done.arrivals.rate == pytest.approx(3 * trace.rate, rel=0.02)
    one, three = describe(trace), describe(done.trace)
    assert one.prefix is not None
    assert three.prefix is not None
    assert three.sessions is not None
    assert three.sessions.count == 900
    assert three.prefix.distinct_blocks == 3 * one.prefix.distinct_blocks
    shared = describe(superpose(trace, 3, seed=5, share_prefixes=True).trace).prefix
    assert shared is not None
    assert shared.distinct_blocks == one.prefix.distinct_blocks
    assert np.bincount(done.trace.input_tokens).max() == 3


@pytest.mark.parametrize(("method", "rate"), [("time", 13.7), ("time", 1.0), ("thin", 2.0), ("superpose", 13.7)])
def test_rates_are_reached(method: str, rate: float) -> None:
    trace = poisson(5, 4000, 9)
    done = change_rate(trace, rate / trace.rate, method=method, seed=3)  # type: ignore[arg-type]
    assert done.arrivals.rate == pytest.approx(rate, rel=1e-6 if method == "time" else 0.05)


def test_jitter_breaks_ties_inside_ticks_and_keeps_the_order() -> None:
    trace = make(np.repeat(np.arange(0, 400, 2.0), 5))
    done = jitter_within_tick(trace, seed=4)
    assert np.array_equal(done.trace.line, trace.line)
    assert (np.diff(done.trace.at_ns) > 0).all()
    shift = done.trace.at_ns - trace.at_ns
    assert np.ptp(shift) < 2 * NS
    second = jitter_within_tick(trace, seed=4, tick_ns=NS)
    assert np.ptp(second.trace.at_ns - trace.at_ns) < NS


@pytest.mark.parametrize(
    "call",
    [
        lambda t: window(t, 5, 5),
        lambda t: window(t, 100),
        lambda t: window(t, -1, 3),
        lambda t: scale_time(t, 0),
        lambda t: scale_time(t, math.inf),
        lambda t: scale_time(t, math.nan),
        lambda t: scale_time(t, 1e-12),
        lambda t: thin(t, 0, seed=1),
        lambda t: thin(t, 1.5, seed=1),
        lambda t: thin(t, 1e-9, seed=1),
        lambda t: superpose(t, 0, seed=1),
        lambda t: superpose(t, 10**6, seed=1),
        lambda t: change_rate(t, 0, method="time"),
        lambda t: change_rate(t, 100, method="thin"),
        lambda t: change_rate(t, 0.01, method="superpose"),
        lambda t: change_rate(t, 2, method="magic"),
        lambda t: jitter_within_tick(t, seed=1, tick_ns=1),
        lambda t: describe(t, max_model_len=0),
        autocorrelation_time_s,
    ],
)
def test_impossible_transforms_are_refused_with_a_remedy(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TraceError) as caught:
        call(make([0, 1, 2, 3, 4]))
    assert caught.value.remedy


def test_autocorrelation_time_finds_a_slow_modulation() -> None:
    assert autocorrelation_time_s(poisson(4, 5000, 12)) < 3
    rng = np.random.default_rng(13)
    at, now = [], 0.0
    for high in [False, True] * 120:  # rates of 1 and 19 with a mean stay of 30 s: a time constant of 15 s
        stay = rng.exponential(30)
        at.append(now + rng.uniform(0, stay, rng.poisson((19 if high else 1) * stay)))
        now += stay
    slow = np.sort(np.concatenate(at))
    tau = autocorrelation_time_s(make(slow - slow[0]))
    assert 15 < tau < 60  # 2 · 15 s = 30 s, and its estimate from 240 stays


def test_describe_on_a_trace_that_can_be_worked_out_by_hand() -> None:
    trace = make([0, 1, 1, 3], session=[0, 1, 0, 0], parent=[-1, -1, 0, 2], blocks=[[5, 6], [5], [5, 6, 7], [8, 6]])
    seen = describe(trace, max_model_len=30, series_bins=3)
    assert seen.arrivals.rate == 1.0
    assert seen.arrivals.gap_cv == pytest.approx(math.sqrt(2 / 3))
    assert seen.arrivals.dispersion[1.0] == pytest.approx(0.5)  # counts 1, 2, 0, 1
    assert (seen.ties, seen.distinct_instants, seen.resolution_ns) == (1, 3, NS)
    assert seen.over_long == 0.5  # 11, 22, 33, 44
    assert seen.input.total == 100
    assert (seen.input.quantiles[0.5], seen.input.quantiles[0.75], seen.input.quantiles[1.0]) == (20, 30, 40)
    assert seen.joint.pearson == pytest.approx(1)
    assert seen.joint.shares.sum() == pytest.approx(1)
    assert seen.series.tolist() == [3, 0, 1]  # the last arrival lies inside the last bin
    assert seen.prefix is not None
    assert (
        seen.prefix.blocks == 3 / 8
    )  # the second row's 5, the third row's 5 and 6; the last row's 6 has another prefix
    assert cached_tokens(trace).tolist() == [0, 16, 30, 0]  # never more than the prompt has
    assert seen.sessions is not None
    assert (seen.sessions.count, seen.sessions.turns_max, seen.sessions.follow_ups) == (2, 3, 0.5)


def test_one_wrong_instant_does_not_fill_the_memory() -> None:
    trace = make([0, 1, 1.5]).take(np.arange(3), at_ns=np.array([0, 1, 2**61]))
    assert arrival_shape(trace).dispersion[1.0] == pytest.approx(5 / 3, rel=1e-6)
    with pytest.raises(TraceError):
        autocorrelation_time_s(trace)


def test_nearest_rank_never_interpolates() -> None:
    values = np.array([5, 1, 4, 2, 3])
    assert [nearest_rank(values, q) for q in (0.0, 0.2, 0.21, 0.5, 0.99, 1.0)] == [1, 1, 2, 3, 5, 5]


def test_a_trace_is_immutable_and_says_what_contradicts_it() -> None:
    trace = make([0, 1])
    with pytest.raises(ValueError, match="read-only"):
        trace.at_ns[0] = 1
    with pytest.raises(TraceError, match="sorted"):
        make([0, 2, 1])
    with pytest.raises(TraceError, match="previous turn comes later"):
        make([0, 1], session=[0, 0], parent=[1, -1])
    with pytest.raises(TraceError, match="sessions without parents"):
        make([0, 1], session=[0, 0])


def test_a_window_counts_its_silence_in_rate_cv_and_dispersion() -> None:
    burst = [60 + i / 10 for i in range(30)]
    part = window(make([0, 29, *burst, 130, 199]), 30, 130)
    assert (len(part.trace), part.lead_ns, part.window_ns) == (30, 30 * NS, 100 * NS)
    assert part.arrivals.rate == pytest.approx(0.3)
    # 29 gaps of 0.1 s and one of 97.1 s: mean 100/30
    gaps = np.array([0.1] * 29 + [97.1])
    assert part.arrivals.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    counts = np.array([10] * 3 + [0] * 97)
    assert part.arrivals.dispersion[1.0] == pytest.approx(counts.var() / counts.mean())
    counts = np.array([0] * 3 + [30] + [0] * 6)
    assert part.arrivals.dispersion[10.0] == pytest.approx(counts.var() / counts.mean())
    found = describe(part.trace, lead_ns=part.lead_ns, window_ns=part.window_ns, series_bins=10)
    assert found.arrivals == part.arrivals
    assert (found.series_bin_s, found.series.tolist()) == (10.0, [0, 0, 0, 30, 0, 0, 0, 0, 0, 0])


def test_a_window_that_is_the_whole_trace_is_measured_as_one() -> None:
    trace = make([0, 1, 2, 3])
    assert window(trace, 0).arrivals == window(trace, 0, 1e6).arrivals == describe(trace).arrivals
    assert describe(trace).arrivals.rate == 1.0
    # an open end is that of the recording: what came later is not known, what came before is silence
    assert window(make([0, 97, 98, 99, 100]), 50).arrivals.rate == pytest.approx(4 / 50)


def test_the_tick_of_batches_is_the_time_between_them() -> None:
    rng = np.random.default_rng(1)
    batches = np.cumsum(rng.integers(2999, 3002, 200)) / 1000
    trace = make(np.repeat(batches - batches[0], rng.integers(1, 9, 200)))
    assert int(np.gcd.reduce(trace.at_ns)) == 1_000_000
    assert find_tick(trace) == 3 * NS
    spread = jitter_within_tick(trace, seed=1)
    moved = spread.trace.at_ns + spread.lead_ns
    assert spread.arrivals.gap_cv < 1.2 < describe(trace).arrivals.gap_cv
    assert (np.diff(moved) >= 0).all()
    assert spread.trace.input_tokens.tolist() == trace.input_tokens.tolist()


@pytest.mark.parametrize("rate", [0.02, 0.5, 5.0])
def test_the_tick_of_whole_seconds_is_one_however_busy_they_are(rate: float) -> None:
    at = np.floor(np.cumsum(np.random.default_rng(2).exponential(1 / rate, 2000)))
    assert find_tick(make(at - at[0])) == NS
