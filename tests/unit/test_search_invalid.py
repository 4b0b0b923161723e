"""Runs that are INVALID by client, workload or target: repeated, replaced, and then the end; and going on after it."""

from __future__ import annotations

import pytest
from result_files import again
from searches import CRITERIA, asked, below, book_of, finish, invalid, scripted, search_of, spec_of, verdict

from analysis.search import Outcome, RunRequest, Search, exit_code
from analysis.verdict import Blame, RunVerdict

SPEC = spec_of("2..18", runs=5)
R3 = spec_of("2..18", runs=5, explore=3)
CLIENT = invalid("client")


def at_14(*verdicts: RunVerdict):
    """The second exploring run at grid index 14 of a server that carries 6/s."""
    return scripted({("explore", 14, 1): verdicts}, below(6))


def test_once_more_with_the_same_seed():
    search = search_of(R3)
    outcome = finish(search, at_14(CLIENT))
    tries = [r for r in asked(search, "explore") if (r.rate_index, r.replicate) == (14, 1)]
    assert [(r.seed, r.attempt) for r in tries] == [(102, 0), (102, 1)]
    assert len({r.key for r in tries}) == 2
    assert outcome.name == "FOUND"
    assert [f.check for f in outcome.findings] == ["recheck"]


@pytest.mark.parametrize("blame", ["client", "workload"])
def test_then_a_spare_takes_the_replicate_over_at_every_rate(blame: Blame):
    search = search_of(R3)
    outcome = finish(search, at_14(invalid(blame), invalid(blame)))
    history = [r for r in asked(search, "explore") if r.replicate == 1]
    swap = next(i for i, r in enumerate(history) if r.seed == 900)
    assert all(r.seed == 102 for r in history[:swap])
    assert all(r.seed == 900 for r in history[swap:])
    # what the old seed did at the lowest rate no longer counts, and is done again there first
    assert [(r.rate_index, r.seed, r.attempt) for r in history if r.rate_index == 0] == [(0, 102, 0), (0, 900, 1)]
    assert outcome.name == "FOUND"
    lowest = outcome.rates[0]
    assert lowest.keys == tuple(
        next(r.key for r in reversed(asked(search, "explore")) if (r.rate_index, r.replicate) == (0, replicate))
        for replicate in range(3)
    )
    replaced = outcome.findings[0]
    assert (replaced.check, replaced.blame) == ("replaced", blame)
    assert "seed 102" in replaced.text
    assert "at every rate" in replaced.text


def test_a_failure_of_the_old_seed_no_longer_counts_either():
    left = [CLIENT, CLIENT]

    def answer(request: RunRequest) -> RunVerdict:
        if request.seed == 101 and request.rate_index == 20 and left:
            return left.pop()
        return verdict(request.rate_index <= (20 if request.seed == 101 else 33))

    assert finish(search_of(SPEC), answer).capacity == SPEC.grid[33]


def test_with_fresh_seeds_only_its_own_rate_is_replaced():
    search = search_of(R3, fresh=True)
    outcome = finish(search, at_14(CLIENT, CLIENT))
    assert [r.rate_index for r in asked(search, "explore") if r.seed == 900] == [14]
    assert [r.attempt for r in asked(search, "explore") if (r.rate_index, r.replicate) == (0, 1)] == [0]
    assert outcome.name == "FOUND"


def test_client_blame_again_is_client_limited_with_what_is_known_and_no_more():
    search = search_of(SPEC)
    outcome = finish(search, lambda r: verdict() if r.rate_index < 14 else CLIENT)
    tries = [r.seed for r in asked(search, "explore") if r.rate_index == 14]
    assert tries == [101, 101, 900]
    assert (outcome.name, outcome.capacity, outcome.lower, outcome.support) == ("CLIENT_LIMITED", None, 2, "explored")
    assert "no rate is proved; exploring runs passed at up to 2/s" in outcome.reason
    assert "capacity ≥" not in outcome.reason
    assert "was INVALID 3 times in a row: client gate" in outcome.reason
    assert exit_code(outcome) == 4


def test_an_exploring_pass_is_claimed_by_no_end():
    search = search_of(SPEC)
    outcome = finish(search, lambda r: CLIENT if r.kind == "prove" else below(6)(r))
    assert (outcome.name, outcome.support, outcome.proved) == ("CLIENT_LIMITED", "explored", None)
    assert "no rate is proved; exploring runs passed at up to" in outcome.reason
    assert "capacity ≥" not in outcome.reason


def test_more_than_a_fifth_replaced_is_client_limited():
    spec = spec_of("2..18", runs=10, explore=10)
    bad = {101, 102, 103}
    outcome = finish(search_of(spec), lambda r: CLIENT if r.seed in bad else verdict(r.rate < 6))
    assert outcome.name == "CLIENT_LIMITED"
    assert "3 of 10 replicates would be replaced, more than a fifth" in outcome.reason
    assert [f.check for f in outcome.findings] == ["replaced", "replaced"]
    bad.remove(103)
    assert finish(search_of(spec), lambda r: CLIENT if r.seed in bad else verdict(r.rate < 6)).name == "FOUND"


def test_no_spare_left():
    outcome = finish(search_of(R3, spares=0), at_14(CLIENT, CLIENT))
    assert outcome.name == "CLIENT_LIMITED"
    assert "was INVALID twice, and no declared spare seed is left" in outcome.reason


def test_target_blame_twice_is_an_unstable_target_and_spends_no_spare():
    search = search_of(R3)
    outcome = finish(search, at_14(invalid("target"), invalid("target")))
    assert (outcome.name, exit_code(outcome)) == ("UNSTABLE_TARGET", 3)
    assert "was disturbed by the target twice: target gate" in outcome.reason
    assert all(r.seed < 900 for r in asked(search, "explore"))
    assert finish(search_of(R3), at_14(invalid("target"))).name == "FOUND"


def test_workload_blame_to_the_end_is_an_unfit_target():
    outcome = finish(search_of(R3), at_14(*[invalid("workload")] * 9))
    assert (outcome.name, exit_code(outcome)) == ("UNSTABLE_TARGET", 3)
    assert "INVALID 3 times in a row: workload gate" in outcome.reason


def test_a_fresh_run_is_replaced_within_its_block():
    search = search_of(SPEC)
    outcome = finish(search, scripted({("prove", 20, 2): [CLIENT, CLIENT]}, below(SPEC.grid[20])))
    assert (outcome.name, outcome.capacity) == ("FOUND", SPEC.grid[20])
    assert [r.seed for r in asked(search, "prove")] == [10_000, 10_001, 10_002, 10_002, 900, 10_003, 10_004]
    assert {r.seed for r in asked(search, "explore")} == {101}


# --- going on after an end by client blame ----------------------------------------------------------------------------


def limited() -> Search:
    search = search_of(SPEC)
    assert finish(search, lambda r: CLIENT if r.kind == "prove" else below(6)(r)).name == "CLIENT_LIMITED"
    return search


def test_when_the_noise_is_gone_a_resumed_search_goes_on_to_its_answer():
    search = limited()
    before = search.history
    resumed = Search.replay(SPEC, book_of(SPEC), CRITERIA, before)
    assert isinstance(resumed.ask(), Outcome)  # as it ended
    assert resumed.retry()
    outcome = finish(resumed, below(6))
    assert outcome.name == "FOUND"
    assert resumed.history[: len(before)] == before
    assert len({r.key for r, _ in resumed.history}) == len(resumed.history)
    assert not resumed.retry()  # an answer is an answer


def test_a_ledger_with_a_resumption_in_it_is_replayed_as_it_was_lived():
    search = limited()
    while search.retry():  # still noisy for a second time, then well
        if len(search.history) > 20:
            finish(search, below(6))
        else:
            finish(search, lambda r: CLIENT if r.kind == "prove" else below(6)(r))
    ledger = [(again(r), again(v)) for r, v in search.history]
    for length in range(len(ledger) + 1):
        part = Search.replay(SPEC, book_of(SPEC), CRITERIA, ledger[:length])
        part.retry()
        assert length == len(ledger) or part.ask() == ledger[length][0]
    assert Search.replay(SPEC, book_of(SPEC), CRITERIA, ledger).ask() == search.ask()


@pytest.mark.parametrize("answer", [invalid("target"), invalid("workload")])
def test_an_unfit_target_is_not_tried_again(answer: RunVerdict):
    search = search_of(SPEC)
    finish(search, lambda r: answer if r.kind == "prove" else below(6)(r))
    assert not search.retry()
    assert isinstance(search.ask(), Outcome)
