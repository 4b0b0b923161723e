"""What a search is announced to cost: a bound that the worst target reaches, and a mean over simulated searches."""

from __future__ import annotations

import math

import pytest
from searches import Answer, asked, below, finish, search_of, spec_of, verdict

from analysis.search import CostModel, RunRequest, SearchSpec, expect

COST = CostModel(warmup_s=20, window_s=120, sentinel_window_s=100, drain_s=10, between_s=5, tokens_per_request=1_152)


def contrary(spec: SearchSpec) -> Answer:
    """A target that fails every rate by the last run of its proof, passes the repeats, and fails the proof anew."""
    return lambda r: verdict(r.kind != "prove" or r.replicate < spec.runs - 1)


@pytest.mark.parametrize(("runs", "explore"), [(3, 1), (3, 3), (1, 1)])
def test_the_worst_case_is_no_less_than_what_a_contrary_target_costs(runs: int, explore: int):
    spec = spec_of("2..3", runs=runs, explore=explore)
    worst = expect(spec, COST).worst
    search = search_of(spec)
    outcome = finish(search, contrary(spec))
    assert outcome.name == "BELOW_RANGE"
    assert outcome.runs <= worst.runs
    rates = [r.rate for r, _ in search.history]
    load = [COST.load_s(r.kind) for r, _ in search.history]
    assert math.fsum(load) / 3600 <= worst.hours
    assert math.fsum(x * s for x, s in zip(rates, load, strict=True)) <= worst.requests
    assert worst.tokens == pytest.approx(worst.requests * 1_152)


def test_and_no_more_than_the_costliest_one():
    """Every proof fails by its last run as the search goes down, is reopened and passes as it comes up again."""
    spec = spec_of("2..3", runs=3)
    search = search_of(spec)

    def answer(r: RunRequest):
        first_block = not any(q.kind == "recheck" and q.rate_index == r.rate_index for q, _ in search.history)
        return verdict(r.kind != "prove" or r.replicate < 2 or not first_block)

    outcome = finish(search, answer)
    assert outcome.name == "ABOVE_RANGE"
    assert outcome.runs == expect(spec, COST).worst.runs
    assert len(asked(search, "recheck")) == 2 * len(spec.grid)


def test_a_table_costs_what_it_says():
    spec = spec_of("2,4,6,8", runs=3, all_runs=True)
    search = search_of(spec)
    said, outcome = expect(spec, COST), finish(search, below(5))
    assert said.expected == said.worst
    assert said.worst.runs == outcome.runs == 12 + 3
    assert said.worst.hours == pytest.approx((12 * 150 + 3 * 130 + 15 * 5) / 3600)
    assert said.peak_rate == 8
    early = expect(spec_of("2,4,6,8", runs=3), COST)
    assert early.worst == said.worst
    assert early.expected.runs < said.worst.runs  # a rate ends at its first failure


def test_a_table_with_a_required_rate_is_bounded_too():
    spec = spec_of("2,4", runs=3, require=4)
    search = search_of(spec)
    # proved but for its last run, reopened, and proved anew: (3 + 2 + 3), and 3 runs at 2/s
    finish(search, lambda r: verdict(not (r.kind == "prove" and r.block == 0 and r.replicate == 2)))
    assert len(search.history) == expect(spec, COST).worst.runs == 11 + 3


def test_sentinels_are_short():
    assert COST.load_s("sentinel") == 20 + 100 + 10
    assert CostModel(warmup_s=20, window_s=120).load_s("sentinel") == 140
    assert COST.load_s("explore", 0.5) == 20 + 60  # ended early, with nothing to drain


def test_the_repeat_of_the_failing_end_is_in_the_bill():
    spec = spec_of("2..18", runs=10)
    with_repeat = expect(spec, COST).expected.runs
    search = search_of(spec)
    outcome = finish(search, below(6))
    assert len(asked(search, "recheck")) == 1
    assert 0.5 * outcome.runs < with_repeat < 2 * outcome.runs


def test_it_is_seeded():
    spec = spec_of("2..18")
    assert expect(spec, COST) == expect(spec, COST)
    assert expect(spec, COST) != expect(spec, COST, seed=2)
