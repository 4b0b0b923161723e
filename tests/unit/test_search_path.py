"""Where a search goes: climb, bisect, prove, resume below a failed proof; and what a table measures."""

from __future__ import annotations

import pytest
from result_files import again
from searches import CRITERIA, asked, below, book_of, finish, invalid, search_of, spec_of, verdict

from analysis.search import RunRequest, Search, exit_code
from analysis.search.machine import coarse_steps
from analysis.verdict import RunVerdict


def test_found_is_the_exact_grid_point_proved_by_r_fresh_runs():
    spec = spec_of("2..18", runs=5)
    search = search_of(spec)
    outcome = finish(search, below(spec.grid[20]))
    assert outcome.name == "FOUND"
    assert (outcome.capacity, outcome.proved, outcome.upper) == (spec.grid[20], spec.grid[20], spec.grid[21])
    assert (outcome.support, outcome.upper_stands, outcome.undecided) == ("proved", True, None)
    assert (outcome.proof_passes, outcome.proof) == (5, pytest.approx(0.05**0.2))
    assert outcome.inversions == ()
    assert [(r.rate_index, r.block, r.seed) for r in asked(search, "prove")] == [(20, 0, 10_000 + i) for i in range(5)]
    assert [(v.rate, v.status, v.runs) for v in outcome.proofs] == [(spec.grid[20], "PASS", 5)]
    assert "5 of 5 fresh runs passed at" in outcome.reason
    assert "too many misses" in outcome.reason
    assert again(outcome) == outcome


def test_one_run_a_rate_climbs_by_doubling_and_bisects():
    spec = spec_of("2..18", runs=5)
    search = search_of(spec)
    finish(search, below(spec.grid[20]))
    assert coarse_steps(spec.grid)[:3] == (0, 14, 28)
    # 0 and 14 pass, 28 fails; the middles 21 fails, 17, 19 and 20 pass
    assert [r.rate_index for r in asked(search, "explore")] == [0, 14, 28, 21, 17, 19, 20]
    # the failing end is looked at again after the proof, once: with a second FAIL it stands
    assert [r.kind for r, _ in search.history if r.kind != "sentinel"][-6:] == ["prove"] * 5 + ["recheck"]
    assert [(r.rate_index, r.seed) for r in asked(search, "recheck")] == [(21, 101)]


@pytest.mark.parametrize("explore", [2, 5])
def test_as_many_runs_explore_a_rate_as_asked_all_r_included(explore: int):
    spec = spec_of("2..18", runs=5, explore=explore)
    search = search_of(spec)
    outcome = finish(search, below(spec.grid[20]))
    assert outcome.capacity == spec.grid[20]
    for k in (0, 14, 17, 19, 20):
        assert [r.replicate for r in asked(search, "explore") if r.rate_index == k] == list(range(explore))
    for k in (21, 28):  # one failure is enough
        assert len([r for r in asked(search, "explore") if r.rate_index == k]) == 1


def test_a_replicate_that_failed_higher_goes_first():
    spec = spec_of("2..18", runs=5, explore=2)
    search = search_of(spec)
    limits = {101: 9.0, 102: 6.0}
    finish(search, lambda r: verdict(r.rate <= limits.get(r.seed, 99)))
    order = [(r.rate_index, r.replicate) for r in asked(search, "explore")]
    first = next(i for i, (k, r) in enumerate(order) if r == 1 and spec.grid[k] > 6)
    for k in {k for k, _ in order[first + 1 :]}:  # once it has failed, it opens every rate below
        assert next(r for rate, r in order[first + 1 :] if rate == k) == 1


def test_order_changes_the_cost_and_not_the_answer():
    spec = spec_of("2..18", runs=5, explore=5)
    limits = {101: 9.0, 102: 8.0, 103: 7.0, 104: 5.5, 105: 6.5}
    answers = set()
    for turn in range(5):
        seeds = [*limits][turn:] + [*limits][:turn]
        book = book_of(spec)
        search = Search(spec, type(book)(roots=tuple(seeds), blocks=book.blocks, spares=(), sentinel=7), CRITERIA)
        outcome = finish(search, lambda r: verdict(r.rate <= limits.get(r.seed, 99)))
        answers.add((outcome.name, outcome.capacity, outcome.upper))
    assert answers == {("FOUND", max(r for r in spec.grid if r <= 5.5), min(r for r in spec.grid if r > 5.5))}


def test_the_ends_of_the_range():
    spec = spec_of("2..18")
    above = finish(search_of(spec), below(99))
    assert (above.name, above.capacity, above.upper, above.lower) == ("ABOVE_RANGE", 18, None, 18)
    assert (above.proof_passes, above.upper_stands) == (3, False)
    low = finish(search_of(spec), lambda r: verdict(r.kind == "sentinel"))
    assert (low.name, low.capacity, low.upper, low.lower) == ("BELOW_RANGE", None, 2, None)
    assert (low.upper_stands, low.proved) == (True, None)


def test_a_failed_proof_is_upper_and_the_search_resumes_below_with_the_next_block():
    spec = spec_of("2..18", runs=3)
    search = search_of(spec)
    limit = {"explore": spec.grid[30], "prove": spec.grid[27], "sentinel": 99.0, "recheck": 0.0}
    outcome = finish(search, lambda r: verdict(r.rate <= limit[r.kind]))
    assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[27], spec.grid[28])
    fresh = asked(search, "prove")
    assert list(dict.fromkeys((r.block, r.rate_index) for r in fresh)) == [(0, 30), (1, 29), (2, 28), (3, 27)]
    assert len({r.seed for r in fresh}) == len(fresh)
    assert all(r.seed == 10_000 + 100 * r.block + r.replicate for r in fresh)
    assert [v.status for v in outcome.proofs] == ["PASS", "FAIL", "FAIL", "FAIL"]
    assert [v.runs for v in outcome.proofs] == [3, 1, 1, 1]  # a proof ends at its first failure


def test_r_runs_are_needed_all_of_them_and_fresh():
    spec = spec_of("2..18", runs=10)
    search = search_of(spec)
    outcome = finish(search, lambda r: verdict(r.rate_index <= 20 - (r.kind == "prove" and r.replicate == 9)))
    assert outcome.capacity == spec.grid[19]  # nine of ten are no proof
    explored = {r.seed for r in asked(search, "explore")}
    assert not explored & {r.seed for r in asked(search, "prove")}


def test_a_passing_rate_above_a_failing_one_is_an_inversion():
    spec = spec_of("2,4,6,8")
    outcome = finish(search_of(spec), lambda r: verdict(r.rate != 4))
    assert outcome.inversions == ((4, 6), (4, 8))
    assert (outcome.lower, outcome.upper) == (2, 4)


def drifting(request: RunRequest, above: int) -> RunVerdict:
    """Each of the runs above a grid index rises so little that none fails by itself."""
    ratio, z = (0.05, 1.5) if request.kind != "sentinel" and request.rate_index > above else (0.0, 0.0)
    return verdict(request.rate_index <= 30, drift_ratio=ratio, drift_z=z)


@pytest.mark.parametrize("explore", [1, 5])
def test_the_drift_of_r_runs_together_refutes_a_rate_whose_runs_all_passed(explore: int):
    spec = spec_of("2..18", runs=5, explore=explore)
    outcome = finish(search_of(spec), lambda r: drifting(r, 20))
    assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[20], spec.grid[21])
    failed = next(v for v in (outcome.proofs if explore == 1 else outcome.rates) if v.status == "FAIL")
    assert (failed.runs, failed.drift_z) == (5, pytest.approx(1.5 * 5**0.5))  # not before all R slopes were there
    assert "in 5 runs together outstanding work rises" in outcome.reason
    assert outcome.upper_stands  # all runs together failed it: there is no one run to look at again


def test_the_errors_of_r_runs_together_refute_a_rate_whose_runs_all_passed():
    spec = spec_of("2..18", runs=5)
    search = search_of(spec)
    outcome = finish(search, lambda r: verdict(errors=8, unresolved=3 if r.rate_index > 20 else 2))
    assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[20], spec.grid[21])
    assert "55 of 5000 requests failed (1.1 %), limit 1 %" in outcome.reason
    assert asked(search, "recheck") == []


def test_fresh_seeds_name_each_rate_their_own():
    spec = spec_of("2..18", runs=3)
    search = search_of(spec, fresh=True)
    finish(search, below(6))
    runs = asked(search, "explore")
    assert len({r.seed for r in runs}) == len(runs)
    assert all(r.seed == 2_000_000 + 100 * r.rate_index + r.replicate for r in runs)


def test_one_run_is_enough_for_one():
    spec = spec_of("2..18", runs=1)
    assert finish(search_of(spec), below(spec.grid[9])).capacity == spec.grid[9]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_ends_a_rate_at_its_first_failure_and_searches_nothing():
    search = search_of(spec_of("2,4,6,8", runs=3), blocks=0)
    outcome = finish(search, lambda r: verdict(r.rate < 5 or (r.rate == 6 and r.replicate == 0)))
    assert [(r.rate, r.replicate) for r in asked(search, "explore")] == [
        (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (6, 0), (6, 1), (8, 0),
    ]  # fmt: skip
    assert (outcome.name, outcome.capacity) == ("TABULATED", None)
    assert (outcome.lower, outcome.upper, outcome.support) == (4, 6, "explored")
    assert "nothing between them was searched or proved" in outcome.reason
    assert exit_code(outcome) == 0
    assert asked(search, "prove", "recheck") == []


def test_all_runs_go_to_the_end_at_every_rate_where_that_is_asked():
    search = search_of(spec_of("2,4,6,8", runs=3, all_runs=True))
    outcome = finish(search, below(5))
    assert [(r.rate, r.replicate) for r in asked(search, "explore")] == [(x, r) for x in (2, 4, 6, 8) for r in range(3)]
    assert (outcome.lower, outcome.upper) == (4, 6)
    assert [v.runs for v in outcome.rates] == [3, 3, 3, 3]


def test_a_failing_sentinel_or_lowest_rate_does_not_end_a_table():
    outcome = finish(search_of(spec_of("6,8", runs=3)), lambda r: verdict(False))
    assert (outcome.name, outcome.lower, outcome.upper) == ("TABULATED", None, 6)
    assert [v.runs for v in outcome.rates] == [1, 1]


def test_thin_runs_leave_their_rate_undecided_and_the_table_goes_on():
    search = search_of(spec_of("2,4", runs=3))
    outcome = finish(search, lambda r: invalid("evidence") if r.rate == 4 else verdict())
    assert [v.status for v in outcome.rates] == ["PASS", "INCOMPLETE"]
    assert (outcome.name, outcome.lower, outcome.undecided) == ("TABULATED", 2, 4)
    nothing = finish(search_of(spec_of("2,4", runs=3)), lambda r: invalid("evidence"))
    assert (nothing.name, exit_code(nothing)) == ("UNDECIDED", 4)
