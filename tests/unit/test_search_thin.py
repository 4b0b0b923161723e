"""Too little evidence leaves a rate undecided; it excuses no failure, and ends no search that can go on elsewhere."""

from __future__ import annotations

import pytest
from searches import asked, below, finish, invalid, search_of, spec_of, verdict

from analysis.search import RunRequest, exit_code
from analysis.verdict import RunVerdict

SPEC = spec_of("2..18", runs=5)
THIN = invalid("evidence")


def test_one_thin_rate_between_passing_and_failing_ones_is_named_and_the_answer_lies_below():
    search = search_of(SPEC)
    outcome = finish(search, lambda r: THIN if r.rate_index == 21 else verdict(r.rate_index < 24))
    assert (outcome.name, exit_code(outcome)) == ("FOUND", 0)
    assert (outcome.capacity, outcome.undecided, outcome.upper) == (SPEC.grid[20], SPEC.grid[21], SPEC.grid[28])
    assert f"{SPEC.grid[21]:.4g}/s is undecided: evidence gate" in outcome.reason
    tries = [r for r in asked(search, "explore") if r.rate_index == 21]
    assert [r.seed for r in tries] == [101, 101]  # the same seed: another would be picked for its result
    assert exit_code(outcome, SPEC.grid[21]) == 4
    # also the failing end above an undecided rate is looked at twice
    assert [r.rate_index for r in asked(search, "recheck")] == [28]
    assert outcome.upper_stands
    assert exit_code(outcome, SPEC.grid[28]) == 1


def test_above_all_that_passed_it_is_an_upper_end():
    outcome = finish(search_of(SPEC), lambda r: THIN if r.rate_index > 20 else verdict())
    assert (outcome.name, outcome.capacity, outcome.undecided) == ("FOUND", SPEC.grid[20], SPEC.grid[21])
    assert (outcome.upper, outcome.upper_stands) == (None, False)


def test_after_more_than_three_undecided_rates_no_other_is_tried_between_them():
    fine = spec_of("2..18", runs=5, width=0.02)
    search = search_of(fine)
    outcome = finish(search, lambda r: THIN if r.rate_index > 0 else verdict())
    assert (outcome.name, outcome.capacity, exit_code(outcome)) == ("UNDECIDED", None, 4)
    undecided = list(dict.fromkeys(r.rate_index for r in asked(search, "explore")))[1:]
    assert len(undecided) == 4
    assert all(f"{fine.grid[k]:.4g}/s" in outcome.reason for k in undecided)
    # where the largest passing rate is their neighbour, there is none between, and it is proved
    beside = finish(search_of(SPEC), lambda r: THIN if r.rate_index > 0 else verdict())
    assert (beside.name, beside.capacity, beside.undecided) == ("FOUND", SPEC.grid[0], SPEC.grid[1])


def test_at_the_lowest_rate_nothing_can_be_said():
    search = search_of(SPEC)
    outcome = finish(search, lambda r: THIN)
    assert (outcome.name, outcome.undecided, exit_code(outcome)) == ("UNDECIDED", 2, 4)
    assert len(asked(search, "explore")) == 2
    assert "2/s is undecided: evidence gate" in outcome.reason


def test_a_thin_fresh_run_is_repeated_after_the_others_and_then_leaves_the_candidate_undecided():
    search = search_of(SPEC)
    outcome = finish(
        search,
        lambda r: THIN if (r.kind, r.rate_index, r.replicate) == ("prove", 20, 1) else verdict(r.rate_index < 21),
    )
    assert [r.replicate for r in asked(search, "prove") if r.rate_index == 20] == [0, 1, 2, 3, 4, 1]
    assert (outcome.name, outcome.capacity, outcome.undecided) == ("FOUND", SPEC.grid[19], SPEC.grid[20])
    once = search_of(SPEC)

    def thin_once(r: RunRequest) -> RunVerdict:
        thin = (r.kind, r.replicate, r.attempt) == ("prove", 1, 0)
        return THIN if thin else verdict(r.rate_index < 21)

    assert finish(once, thin_once).capacity == SPEC.grid[20]


@pytest.mark.parametrize("explore", [1, 5])
def test_thin_runs_do_not_stop_others_from_failing_the_rate(explore: int):
    spec = spec_of("2..18", runs=5, explore=explore)

    def answer(r: RunRequest) -> RunVerdict:
        if r.rate_index <= 20 or r.kind == "sentinel":
            return verdict()
        return THIN if r.replicate == 0 and r.kind != "recheck" and explore == 5 else verdict(r.replicate == 1)

    outcome = finish(search_of(spec), answer)
    assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[20], spec.grid[21])


def test_thin_runs_that_rise_together_fail_the_rate():
    spec = spec_of("2..18", runs=5, explore=5)
    outcome = finish(
        search_of(spec),
        lambda r: (
            verdict() if r.rate_index <= 20 else invalid("evidence", attainment=0.96, drift_ratio=0.05, drift_z=1.5)
        ),
    )
    assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[20], spec.grid[21])
    assert outcome.upper_stands


def test_a_later_thin_sentinel_serves():
    assert finish(search_of(SPEC), lambda r: THIN if r.kind == "sentinel" else below(6)(r)).name == "FOUND"
