"""Blocks and laps of a trace small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from traces.blocks import autocorrelation_time_s, block_edges, block_end
from traces.errors import TraceError
from traces.trace import Trace
from traces.transform import lap

S = 10**9


def trace_at(at_s: Iterable[float]) -> Trace:
    at_ns = np.array([round(at * S) for at in at_s])
    ones = np.ones(at_ns.size, dtype=np.int32)
    return Trace(at_ns=at_ns, input_tokens=ones, output_tokens=ones, line=ones, outcome=np.zeros(at_ns.size, np.int8))


TIED = trace_at([0, 10, 10, 20, 40])  # a mean gap of 10 s, so a circle of 50 s


def test_edges_halve_gaps_and_ties_stay_in_the_earlier_block() -> None:
    assert (block_edges(TIED, requests=2) / S).tolist() == [-5, 15, 30]
    assert (block_edges(TIED, requests=1) / S).tolist() == [-5, 5, 15, 15, 30, 45]


@pytest.mark.parametrize(
    ("requests", "limit_s", "end_s", "found"),
    [
        (1, 1000, 5, 1),
        (2, 1000, 5, 1),  # two cannot be parted: one is as near as three, and earlier
        (3, 1000, 15, 3),
        (9, 1000, 45, 5),
        (5, 12, 12, 3),  # the limit comes before the middle of the gap
        (5, -1, -1, 0),
    ],
)
def test_a_block_ends_nearest_to_its_requests_and_at_the_limit(
    requests: int, limit_s: int, end_s: int, found: int
) -> None:
    assert block_end(TIED, -5 * S, requests, limit_ns=limit_s * S) == (end_s * S, found)


def test_a_lap_goes_round_the_circle_and_no_further() -> None:
    across = lap(TIED, 30 * S, 25 * S)
    assert (across.lead_ns, across.window_ns) == (10 * S, 25 * S)
    assert (across.trace.at_ns / S).tolist() == [0, 10]
    whole = lap(TIED, 15 * S, 10**6 * S)
    assert (len(whole.trace), whole.window_ns) == (5, 50 * S)
    with pytest.raises(TraceError, match="no request in 5 s from 21 s on"):
        lap(TIED, 21 * S, 5 * S)


def test_counts_without_correlation_take_a_bin() -> None:
    assert autocorrelation_time_s(trace_at(range(101)), bin_s=2.0) == 2.0
    with pytest.raises(TraceError, match="4 bins of 10 s, at least 20 are needed"):
        autocorrelation_time_s(TIED, bin_s=10.0)


@pytest.mark.parametrize("held", [1, 20])
def test_independent_counts_held_for_k_bins_take_k_bins(held: int) -> None:
    # ρ_j = 1 − j/k, so that 1 + 2·Σρ_j = k; the standard error is τ·√(2(2M + 1)/n) with a window M = 5τ
    n = 40_000
    counts = np.random.default_rng(1).integers(1, 6, n // held).repeat(held)
    at_s = np.concatenate([second + np.arange(count) / count for second, count in enumerate(counts)])
    error = held * np.sqrt(2 * (10 * held + 1) / n)
    assert abs(autocorrelation_time_s(trace_at(at_s), bin_s=1.0) - held) < 3 * error
