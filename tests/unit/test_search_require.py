"""A required rate is decided first: proved by R fresh runs, or refuted by a failure that stands."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from searches import Answer, asked, below, finish, invalid, scripted, search_of, spec_of, verdict

from analysis.search import RunRequest, Search

SPEC = spec_of("2..18", runs=5, require=7.0)
AT = SPEC.grid.index(7.0)


def test_it_is_put_on_the_grid():
    assert len(SPEC.grid) == len(spec_of("2..18").grid) + 1
    assert list(SPEC.grid) == sorted(SPEC.grid)
    assert spec_of("2..18", require=18).grid == spec_of("2..18").grid
    assert spec_of("2,4", require=3).grid == (2, 3, 4)


@pytest.mark.parametrize("require", [1.9, 18.1])
def test_outside_of_the_range_it_is_refused(require: float):
    with pytest.raises(ValueError, match=r"is not among the rates to be tested, 2\.\.18: widen --rate"):
        spec_of("2..18", require=require)


def test_it_is_climbed_to_and_proved_before_anything_else():
    search = search_of(SPEC)
    outcome = finish(search, below(9))
    runs = [(r.kind, r.rate_index) for r in asked(search, "explore", "prove")]
    first = runs.index(("prove", AT))
    climb = [SPEC.grid[k] for _, k in runs[:first]]
    assert climb[0] == 2
    assert climb[-1] == 7  # never above it, and never more than doubled
    assert all(b <= 2 * a for a, b in pairwise(climb))
    assert runs[first : first + 5] == [("prove", AT)] * 5
    assert outcome.name == "FOUND"  # then the search goes on as ever
    assert outcome.capacity == max(rate for rate in SPEC.grid if rate <= 9)


def test_it_is_refuted_by_a_failure_that_was_repeated_at_once():
    search = search_of(SPEC)
    outcome = finish(search, below(6))
    kinds = [r.kind for r in asked(search, "explore", "prove", "recheck")]
    assert kinds.index("recheck") < kinds.index("prove")
    assert (outcome.upper, outcome.upper_stands) == (min(r for r in SPEC.grid if r > 6), True)


@pytest.mark.parametrize("kind", ["explore", "prove"])
def test_one_spoiled_run_does_not_refute_it(kind: str):
    search = search_of(SPEC)
    spoils = scripted({(kind, AT, 0): [verdict(False)]}, below(9))
    until_proved = list(_until_proved(search, spoils))
    assert all(r.rate <= 7 for r in until_proved)
    assert [r.kind for r in until_proved if r.kind != "sentinel"].count("recheck") == 2
    assert finish(search, spoils).capacity == max(rate for rate in SPEC.grid if rate <= 9)


def test_nor_one_on_the_way_to_it():
    search = search_of(SPEC)
    spoils = scripted({("explore", 14, 0): [verdict(False)]}, below(9))
    for request in _until_proved(search, spoils):
        assert request.kind in ("sentinel", "recheck") or request.rate_index in (0, 14, AT)


def test_a_refuted_one_is_looked_at_no_more_than_any_failing_end():
    search = search_of(SPEC)
    finish(search, below(3))
    assert len(asked(search, "recheck")) == 2  # of the rate on the way that refuted it, and of the bracket's upper end


@pytest.mark.parametrize("carries", [3, 4, 5])
def test_in_a_table_it_is_proved_first_and_explored_never(carries: float):
    search = search_of(spec_of("2,4,6", runs=3, require=4))
    outcome = finish(search, below(carries))
    runs = asked(search, "explore", "prove", "recheck")
    assert [r.kind for r in runs if r.rate == 4] == (["prove"] * 3 if carries >= 4 else ["prove", "recheck"])
    assert runs[0].rate == 4
    assert (outcome.name, outcome.proved) == ("TABULATED", 4 if carries >= 4 else None)


def test_a_single_rate_is_proved_where_it_is_required():
    search = search_of(spec_of("4", runs=10, require=4))
    outcome = finish(search, below(9))
    assert [r.kind for r in asked(search, "explore", "prove")] == ["prove"] * 10
    assert (outcome.capacity, outcome.proof_passes, outcome.support) == (4, 10, "proved")
    assert "or proved" not in outcome.reason
    again = search_of(spec_of("4", runs=10, require=4))
    assert finish(again, scripted({("prove", 0, 3): [verdict(False)]}, below(9))).proved == 4
    assert {r.block for r in asked(again, "prove")} == {0, 1}


def test_a_larger_rate_of_the_table_that_only_passed_hides_no_proof():
    outcome = finish(search_of(spec_of("2,4,6", runs=3, require=4)), below(9))
    assert (outcome.lower, outcome.proved, outcome.capacity) == (6, 4, None)
    assert "3 of 3 runs passed at 6/s; 3 of 3 fresh runs passed at 4/s" in outcome.reason


def test_what_was_proved_is_known_however_the_search_ends():
    search = search_of(SPEC)
    outcome = finish(search, lambda r: invalid("client") if r.rate > 7 else verdict())
    assert (outcome.name, outcome.capacity, outcome.proved) == ("CLIENT_LIMITED", None, 7)
    assert "capacity ≥ 7/s, nothing known above" in outcome.reason


def _until_proved(search: Search, answer: Answer) -> Iterator[RunRequest]:
    """The runs asked for until the required rate is proved."""
    while search.stop("ABORTED", "").proved != 7.0:
        request = search.ask()
        assert isinstance(request, RunRequest)
        search.tell(request, answer(request))
        yield request
