from __future__ import annotations

from fractions import Fraction
from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.cohort import cohort_of, describe, event_rate, mask, nearest_rank, realised_rate, sent_rate
from analysis.records import columns, table


def test_the_window_is_half_open_and_on_the_scheduled_instant() -> None:
    rows = [{"scheduled_ns": at, "sent_ns": at + 5} for at in (9, 10, 19, 20)]
    assert mask(table(rows), warmup_ns=10, window_ns=10).tolist() == [False, True, True, False]


@settings(deadline=None)
@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=300), st.integers(1, 1000))
def test_nearest_rank_is_the_smallest_value_that_covers_the_share(values: list[int], thousandths: int) -> None:
    p = Fraction(thousandths, 1000)
    found = nearest_rank(np.sort(np.array(values)), p)
    covering = [v for v in values if sum(w <= v for w in values) >= p * len(values)]
    assert found == min(covering)
    assert nearest_rank(np.sort(np.array(values)), thousandths / 1000) == found


def test_nearest_rank_takes_p_as_written() -> None:
    assert 0.07 * 100 > 7  # what a float product would make the 8th value
    assert nearest_rank(np.arange(1, 101), 0.07) == 7
    assert nearest_rank(np.arange(1, 101), 1) == 100
    assert isnan(nearest_rank(np.array([], dtype=np.int64), 0.5))
    for p in (0, -0.1, 1.01):
        with pytest.raises(ValueError, match="in \\(0, 1\\]"):
            nearest_rank(np.arange(3), p)


def test_a_failure_is_infinite_among_all_and_absent_among_ok() -> None:
    values = np.array([3.0, 1.0, 2.0, np.nan, 0.5])
    ok = np.array([True, True, True, True, False])
    found = describe(values, ok)
    assert (found["p50"], found["max"], found["mean"]) == (2.0, 3.0, 2.0)
    assert (found["p50_all"], found["p95_all"], found["mean_all"]) == (2.0, inf, inf)


def test_nothing_to_describe_says_nothing() -> None:
    assert describe(np.array([]), np.array([], dtype=bool)) == {}
    assert set(describe(np.array([1.0]), np.array([False]))) == {"p50_all", "p95_all", "p99_all", "max_all", "mean_all"}


S = 10**9


def test_a_windows_silence_counts_in_its_rates() -> None:
    rows = [{"scheduled_ns": i * S // 10, "sent_ns": i * S // 10 if i != 1 else -1} for i in range(30)]
    window = {"warmup_ns": 0, "window_ns": 100 * S}
    assert realised_rate(table(rows), **window) == pytest.approx(0.3)
    assert sent_rate(table(rows), **window) == pytest.approx(0.29)


def test_what_is_sent_in_the_window_counts_whenever_it_was_due() -> None:
    late = [{"scheduled_ns": at * S, "sent_ns": (at + 3) * S} for at in range(10)]
    assert sent_rate(table(late), warmup_ns=4 * S, window_ns=4 * S) == 1.0
    assert sent_rate(table(late), warmup_ns=0, window_ns=5 * S) == pytest.approx(2 / 5)


@pytest.mark.parametrize(("first", "behind"), [(1, 1), (0, 3)], ids=["cohort count", "whole trace"])
def test_a_window_cut_to_its_requests_has_the_rate_of_their_gaps(first: int, behind: int) -> None:
    rows = [{"scheduled_ns": i * S, "sent_ns": 2 * i * S if i != 1 else -1} for i in range(first, 4)]
    window = {"warmup_ns": 0, "window_ns": 3 * S + behind}
    assert realised_rate(table(rows), **window) == 1.0
    assert sent_rate(table(rows), **window) == pytest.approx(0.5 if first else 2 / 6)


def test_instants_without_a_span_have_no_rate() -> None:
    assert event_rate(np.array([5])) is None
    assert event_rate(np.array([5, 5])) is None
    assert realised_rate(table([]), warmup_ns=0, window_ns=0) is None


def test_a_metric_that_no_good_request_has_is_left_out_whatever_failed() -> None:
    assert describe(np.array([np.nan, np.nan, np.nan]), np.array([True, True, False])) == {}
    assert describe(np.array([np.nan, np.nan]), np.array([False, False]))["p50_all"] == np.inf


@pytest.mark.parametrize("at_ns", [[0, 5, 9, 10, 20], [20, 5, 0, 9, 10], [], [0, 30]])
def test_the_cohort_is_what_is_scheduled_in_the_window_in_any_order_of_rows(at_ns: list[int]) -> None:
    requests = columns(len(at_ns), {"scheduled_ns": np.array(at_ns, dtype=np.int64)})
    cohort = cohort_of(requests, warmup_ns=5, window_ns=5)
    assert cohort["scheduled_ns"].tolist() == [at for at in at_ns if 5 <= at < 10]
    assert cohort["index"].tolist() == [i for i, at in enumerate(at_ns) if 5 <= at < 10]
