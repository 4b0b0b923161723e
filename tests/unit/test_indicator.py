from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_tables import served

from analysis.indicator import attains, joint, miss_reasons, misses_allowed, tpot_undefined
from analysis.records import derive
from analysis.schema import OUTCOMES
from analysis.slo import Slo

FULL = Slo(ttft_s=0.4, tpot_s=0.010, e2e_s=0.5, client_queue_s=0.001)


def judged(slo: Slo = FULL, **spoiled: object) -> tuple[bool, str]:
    requests = derive(served(1, **spoiled))
    (good,), (reason,) = joint(requests, slo), miss_reasons(requests, slo)
    assert good == (reason == "")
    return bool(good), reason


def test_bounds_are_inclusive() -> None:
    assert judged() == (True, "")


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        ({"first_token_ns": 400_000_001}, "ttft"),
        ({"last_token_ns": 500_000_001}, "tpot"),
        ({"first_token_ns": 399_000_000, "last_token_ns": 500_000_001, "output_tokens": 50}, "e2e"),
        ({"sent_ns": 1_000_001}, "client_queue"),
        ({"token_reads": 1}, "buffered_stream"),
        ({"output_tokens": -1}, "tpot"),  # O unknown: the bound cannot be shown to hold
    ],
)
def test_one_nanosecond_too_much_misses(spoiled: dict[str, int], reason: str) -> None:
    assert judged(**spoiled) == (False, reason)


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "ok"])
def test_every_failure_misses_by_its_name(outcome: str) -> None:
    assert judged(outcome=outcome) == (False, outcome)
    assert judged(Slo(), outcome=outcome) == (False, outcome)


def test_a_bound_broken_before_we_cancelled_is_the_reason() -> None:
    assert judged(outcome="censored", first_token_ns=-1, certain_miss="ttft") == (False, "ttft")


def test_the_tpot_term_does_not_apply_to_one_token() -> None:
    single = {"output_tokens": 1, "token_events": 1, "token_reads": 1}
    assert judged(**single) == (True, "")
    assert tpot_undefined(derive(served(3, output_tokens=[1, 2, 1], outcome=["ok", "ok", "timeout"]))) == 1


def test_an_unbounded_tpot_minds_no_buffering() -> None:
    assert judged(Slo(e2e_s=0.5), token_reads=1) == (True, "")


def test_the_send_clock_forgives_the_client_queue_in_ttft_and_e2e_alone() -> None:
    late = {"sent_ns": 200_000_000}
    bounds = {"ttft_s": 0.25, "e2e_s": 0.35}
    assert judged(Slo(**bounds), **late) == (False, "ttft")
    assert judged(Slo(**bounds, clock="sent"), **late) == (True, "")
    assert judged(Slo(**bounds, client_queue_s=0.1, clock="sent"), **late) == (False, "client_queue")


shares = st.fractions(0, 1, max_denominator=10_000)


@given(st.integers(0, 10**12), st.data(), shares)
def test_attainment_is_decided_exactly(total: int, data: st.DataObject, share: Fraction) -> None:
    misses = data.draw(st.integers(0, total))
    assert attains(total, misses, share) == (not Fraction(total - misses) < share * total)


@given(st.integers(0, 10**9), shares)
def test_one_more_miss_than_allowed_fails(total: int, share: Fraction) -> None:
    allowed = misses_allowed(total, share)
    assert attains(total, allowed, share)
    assert not attains(total, allowed + 1, share)


def test_floats_would_allow_one_miss_less() -> None:
    assert misses_allowed(10, Fraction(9, 10)) == 1
    assert int(10 * (1 - 0.9)) == 0
