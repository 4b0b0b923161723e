"""Requests that met no other one, and what they say of a server without load."""

from __future__ import annotations

from fractions import Fraction

import pytest
from run_tables import served

from analysis.compare.lone import LONE_MIN, lone_counts, meets
from analysis.slo import Slo

SLO = Slo(e2e_s=0.5)


def test_only_requests_that_met_no_other_one_are_counted() -> None:
    assert lone_counts(served(10, rate=1.0, residence_s=0.4), SLO) == (10, 10)
    assert lone_counts(served(10, rate=1.0, residence_s=0.6), SLO) == (10, 0)  # alone, and too late
    assert lone_counts(served(10, rate=1.0, residence_s=1.1), SLO) == (0, 0)  # each meets the next
    assert lone_counts(served(0), SLO) == (0, 0)


def test_one_long_answer_leaves_none_that_it_lasts_into_alone() -> None:
    table = served(10, rate=1.0, residence_s=0.4)
    ended = table["ended_ns"].tolist()
    ended[2] = ended[4]  # lasts until the fifth has ended
    assert lone_counts(table.assign(ended_ns=ended), SLO) == (7, 7)
    shuffled = table.assign(ended_ns=ended).iloc[::-1].reset_index(drop=True)
    assert lone_counts(shuffled, SLO) == (7, 7)


def test_a_request_that_never_ended_leaves_none_behind_it_alone() -> None:
    table = served(10, rate=1.0, residence_s=0.4)
    never = table.assign(ended_ns=[-1 if i == 6 else end for i, end in enumerate(table["ended_ns"])])
    assert lone_counts(never, SLO) == (6, 6)


@pytest.mark.parametrize(
    ("requests", "good", "said"),
    [(LONE_MIN - 1, 0, None), (LONE_MIN, LONE_MIN - 1, True), (LONE_MIN, LONE_MIN - 2, False)],
)
def test_few_of_them_decide_nothing_and_the_share_is_exact(requests: int, good: int, said: bool | None) -> None:
    assert meets(requests, good, Fraction(95, 100)) is said
