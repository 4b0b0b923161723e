"""A failing end is looked at twice: one spoiled run fixes no answer, and no second look excuses a bad rate."""

from __future__ import annotations

import pytest
from searches import CRITERIA, Answer, asked, below, book_of, finish, invalid, scripted, search_of, spec_of, verdict

from analysis.search import RunRequest, Search, exit_code
from analysis.verdict import Blame, RunVerdict

SPEC = spec_of("2..18", runs=5)
TOP = 30  # the largest grid index that the server carries
CARRIES = below(SPEC.grid[TOP])
FAIL, PASS = verdict(False), verdict()


def spoiled(
    k: int, *repeats: RunVerdict, kind: str = "explore", replicate: int = 0, failing: RunVerdict = FAIL
) -> Answer:
    """One run at rate k fails on a server that carries it; its repeats say what is given, then PASS."""
    return scripted({(kind, k, replicate): [FAIL], ("recheck", k, replicate): repeats}, CARRIES)


def found_at(search: Search, answer: Answer) -> int:
    outcome = finish(search, answer)
    assert outcome.name == "FOUND"
    assert outcome.capacity is not None
    return SPEC.grid.index(outcome.capacity)


@pytest.mark.parametrize("n", range(1, 30))
def test_no_one_spoiled_run_changes_the_answer(n: int):
    """A co-tenant spoils the n-th run, whichever that is; the repeats of it are well."""
    search = search_of(SPEC)

    def answer(request: RunRequest) -> RunVerdict:
        spoils = len(search.history) + 1 == n
        return verdict(request.kind == "sentinel" or (request.rate_index <= TOP and not spoils))

    assert found_at(search, answer) == TOP


def test_passed_twice_the_rate_is_reopened_and_the_search_goes_on_upwards_with_a_new_block():
    search = search_of(SPEC)
    outcome = finish(search, spoiled(14))
    assert (outcome.capacity, outcome.upper) == (SPEC.grid[TOP], SPEC.grid[TOP + 1])
    again = [r for r in asked(search, "recheck") if r.rate_index == 14]
    assert [(r.seed, r.block) for r in again] == [(101, -1)] * 2  # the failing run's own seed
    assert next(v for v in outcome.rates if v.rate == SPEC.grid[14]).keys == (again[1].key,)
    told = [f for f in outcome.findings if f.severity == "warning"]
    assert [f.check for f in told] == ["recheck"]
    assert "seed 101 at 3.903/s failed (too many misses) and passed twice when it was repeated" in told[0].text
    blocks = list(dict.fromkeys((r.block, r.rate_index) for r in asked(search, "prove")))
    assert blocks == [(0, 13), (1, TOP)]  # 13 was proved while 14 seemed to fail


def test_a_rate_reopened_after_an_exploring_failure_is_proved_by_one_whole_block():
    spec = spec_of("2..3", runs=5, width=0.6)
    search = search_of(spec)
    finish(search, scripted({("explore", 1, 0): [FAIL]}, below(99)))
    assert [(r.block, r.rate_index, r.replicate) for r in asked(search, "prove")] == [
        *[(0, 0, r) for r in range(5)], *[(1, 1, r) for r in range(5)],
    ]  # fmt: skip


def test_a_second_failure_stands():
    search = search_of(SPEC)
    outcome = finish(search, spoiled(14, FAIL))
    assert (outcome.capacity, outcome.upper, outcome.upper_stands) == (SPEC.grid[13], SPEC.grid[14], True)
    assert len(asked(search, "recheck")) == 1
    assert [(f.severity, "failed again" in f.text) for f in outcome.findings] == [("info", True)]


def test_the_third_run_decides_where_two_disagree():
    search = search_of(SPEC)
    outcome = finish(search, spoiled(14, PASS, FAIL))
    assert (outcome.capacity, outcome.upper) == (SPEC.grid[13], SPEC.grid[14])
    assert len(asked(search, "recheck")) == 2
    assert "failed again when it was repeated after it had passed once" in outcome.findings[0].text


def test_a_spoiled_fresh_run_reopens_the_candidate_and_another_block_proves_it():
    search = search_of(SPEC)
    outcome = finish(search, spoiled(TOP, kind="prove", replicate=3))
    assert outcome.capacity == SPEC.grid[TOP]
    blocks = list(dict.fromkeys((r.block, r.rate_index) for r in asked(search, "prove")))
    assert blocks == [(0, TOP), (1, TOP - 1), (2, TOP)]
    last = [r for r in asked(search, "prove") if r.block == 2]
    assert [(r.replicate, r.seed, r.attempt) for r in last] == [(r, 10_200 + r, 0) for r in range(5)]
    assert [(r.seed, r.block) for r in asked(search, "recheck") if r.rate_index == TOP] == [(10_003, 0)] * 2
    proof = outcome.proofs[-1]
    assert (proof.rate, proof.status, proof.runs) == (SPEC.grid[TOP], "PASS", 5)
    assert proof.keys == tuple(r.key for r in last)  # the first block's runs are not among those it stands on


def test_what_happened_to_the_seeds_of_a_proof_is_not_held_against_those_of_the_next():
    thin = invalid("evidence")
    script = {
        ("prove", TOP, 0): [thin, thin],  # once in each block
        ("prove", TOP, 1): [invalid("client"), invalid("client"), PASS],  # a spare takes it over in the first
        ("prove", TOP, 3): [FAIL],
    }
    search = search_of(SPEC)
    assert found_at(search, scripted(script, CARRIES)) == TOP
    last = [r.seed for r in asked(search, "prove") if r.block == 2]
    assert sorted(last) == [10_200, 10_200, 10_201, 10_202, 10_203, 10_204]


def test_a_rate_is_reopened_once_at_most():
    search = search_of(SPEC)
    script = {("explore", 14, 0): [FAIL], ("prove", 14, 2): [FAIL]}
    outcome = finish(search, scripted(script, below(SPEC.grid[14])))
    assert (outcome.capacity, outcome.upper) == (SPEC.grid[13], SPEC.grid[14])
    assert len([r for r in asked(search, "recheck") if r.rate_index == 14]) == 2  # of the exploring run alone


@pytest.mark.parametrize(("failures", "stands"), [(1, False), (2, True)])
def test_two_failing_runs_stand_and_one_that_nobody_repeated_does_not(failures: int, stands: bool):
    search = search_of(spec_of("2,4,6", runs=3, all_runs=True, require=6))
    outcome = finish(search, lambda r: verdict(r.rate != 4 or r.replicate >= failures))
    assert (outcome.upper, outcome.upper_stands) == (4, stands)
    assert exit_code(outcome, 6) == (1 if stands else 4)


@pytest.mark.parametrize(("attainment", "looked_at"), [(0.949, 1), (0.9, 1), (0.8999, 0), (0.5, 0)])
def test_not_where_the_run_missed_by_more_than_five_points(attainment: float, looked_at: int):
    search = search_of(SPEC)
    outcome = finish(search, lambda r: verdict(r.rate_index <= 20, attainment=attainment))
    assert outcome.upper_stands
    assert len(asked(search, "recheck")) == looked_at


def test_five_points_are_counted_as_they_are_written():
    search = Search(SPEC, book_of(SPEC), type(CRITERIA)(slo=CRITERIA.slo, attain=CRITERIA.attain * 99 / 95))
    finish(search, lambda r: verdict(r.rate_index <= 20, attainment=0.94))  # 0.94 < 94/100 in floats
    assert len(asked(search, "recheck")) == 1


def test_the_lowest_rate_too_is_looked_at_again():
    search = search_of(SPEC)
    outcome = finish(search, spoiled(0))
    assert outcome.capacity == SPEC.grid[TOP]
    stands = finish(search_of(SPEC), spoiled(0, FAIL))
    assert (stands.name, stands.upper, stands.upper_stands) == ("BELOW_RANGE", 2, True)


def test_without_a_block_of_fresh_seeds_left_to_prove_it_with_a_rate_is_not_reopened():
    search = search_of(SPEC, blocks=len(SPEC.grid))
    limit = {"explore": 99.0, "prove": 1.0, "sentinel": 99.0, "recheck": 99.0}
    outcome = finish(search, lambda r: verdict(r.rate <= limit[r.kind]))
    assert (outcome.name, asked(search, "recheck")) == ("BELOW_RANGE", [])


@pytest.mark.parametrize("blame", ["client", "workload", "target"])
def test_what_cannot_be_repeated_stands_and_is_told(blame: Blame):
    search = search_of(SPEC)
    outcome = finish(search, spoiled(14, invalid(blame), invalid(blame)))
    assert (outcome.name, outcome.capacity) == ("FOUND", SPEC.grid[13])
    assert [(f.check, f.blame, f.severity) for f in outcome.findings] == [("recheck", blame, "warning")]
    assert f"could not be repeated, so the failure stands: {blame} gate" in outcome.findings[0].text
    assert {r.seed for r in asked(search, "recheck")} == {101}  # no spare: another seed would repeat nothing
    assert found_at(search_of(SPEC), spoiled(14, invalid(blame))) == TOP  # one such repeat is made again


def test_a_thin_repeat_is_no_failure_and_proves_nothing():
    thin = invalid("evidence")
    outcome = finish(search_of(SPEC), spoiled(14, thin, thin))
    assert (outcome.capacity, outcome.upper, outcome.undecided) == (SPEC.grid[13], None, SPEC.grid[14])


def test_a_repeat_is_counted_on_from_the_run_it_repeats():
    """Where no salt keeps prompts apart, content follows the attempt: a repeat must not find its prompts cached."""
    search = search_of(SPEC)
    finish(search, scripted({("explore", 14, 0): [invalid("client"), FAIL]}, CARRIES))
    at_14 = [r for r in asked(search, "explore", "recheck") if (r.rate_index, r.seed) == (14, 101)]
    assert [r.attempt for r in at_14] == [0, 1, 2, 3]
    assert len({r.key for r in at_14}) == 4
