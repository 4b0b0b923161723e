"""The search as a fold over verdicts: replay, ask and tell, stop, directories, and the seed book it needs."""

from __future__ import annotations

import pytest
from result_files import again
from searches import CRITERIA, asked, below, book_of, finish, invalid, scripted, search_of, spec_of, verdict

from analysis.search import RunRequest, Search, SeedBook

SPEC = spec_of("2..18", runs=5)


def test_replay_is_the_live_search_at_every_point():
    search = search_of(SPEC)
    client, fails = invalid("client"), verdict(False)
    answer = scripted({("explore", 14, 0): [client, client, fails], ("prove", 13, 2): [fails]}, below(6))
    ledger = []
    while isinstance(request := search.ask(), RunRequest):
        search.tell(request, answer(request))
        ledger += [(again(r), again(v)) for r, v in search.history[len(ledger) :]]
        assert Search.replay(SPEC, book_of(SPEC), CRITERIA, ledger).ask() == search.ask()
    assert request.name == "FOUND"
    assert asked(search, "recheck")


def test_ask_is_the_same_until_told_and_nothing_else_is_taken():
    search = search_of(SPEC)
    first = search.ask()
    assert first == search.ask()
    assert isinstance(first, RunRequest)
    search.tell(first, verdict())
    with pytest.raises(ValueError, match="not the one this search asked for"):
        search.tell(first, verdict())
    finish(search, below(6))
    with pytest.raises(ValueError, match="it ended FOUND"):
        search.tell(first, verdict())


def test_stop_gives_the_bracket_so_far_and_the_search_can_go_on():
    search = search_of(SPEC)
    for _ in range(4):
        request = search.ask()
        assert isinstance(request, RunRequest)
        search.tell(request, below(6)(request))
    stopped = search.stop("BUDGET_EXHAUSTED", "--max-time 2h is used up")
    assert (stopped.name, stopped.capacity, stopped.support) == ("BUDGET_EXHAUSTED", None, "explored")
    assert (stopped.lower, stopped.upper, stopped.upper_stands) == (SPEC.grid[14], SPEC.grid[28], False)
    assert stopped.reason == "--max-time 2h is used up"
    assert finish(search, below(6)).name == "FOUND"
    assert search.stop("ABORTED", "too late").name == "FOUND"


def test_directories_differ_wherever_runs_do():
    for spec in (spec_of("2..18", runs=12), spec_of("0.001..0.002"), spec_of("2,2.0000001")):
        search = search_of(spec)
        finish(search, lambda r: verdict(r.rate_index < 3))
        keys = [r.key for r, _ in search.history]
        assert len(set(keys)) == len(keys)
        assert all(".." not in key.split("/") and not key.startswith("/") for key in keys)


def test_directories_are_named_as_they_are_documented():
    search = search_of(spec_of("6..8", runs=3, width=0.34))
    finish(search, scripted({("prove", 0, 1): [verdict(False)]}, below(6)))
    keys = {r.key for r, _ in search.history}
    assert {
        "rate=6.000/rep=00-seed=101", "rate=6.000/proof=00/rep=01-seed=10001", "rate=6.000/sentinel/rep=00-seed=7",
        "rate=6.000/recheck=00/rep=01-seed=10001-attempt=1", "rate=8.000/recheck/rep=00-seed=101-attempt=1",
    } <= keys  # fmt: skip


def test_a_seed_declared_twice_is_refused():
    with pytest.raises(ValueError, match="seed 5 is declared twice"):
        SeedBook(roots=(5, 6), blocks=((7, 8),), spares=(5,), sentinel=1)


def test_ragged_seeds_are_refused():
    with pytest.raises(ValueError, match="all be of one length"):
        SeedBook(roots=(5,), blocks=((7, 8), (9,)), spares=(), sentinel=1)
    with pytest.raises(ValueError, match="as many roots at every rate"):
        SeedBook(roots=(5, 6), blocks=(), spares=(), sentinel=1, fresh=((7, 8), (9,)))


def test_a_book_that_cannot_serve_is_refused():
    spec = spec_of("2..18", runs=3)
    good = book_of(spec)
    with pytest.raises(ValueError, match="declare one for each"):
        Search(spec, SeedBook(roots=(), blocks=good.blocks, spares=(), sentinel=1), CRITERIA)
    with pytest.raises(ValueError, match="47 blocks of 3 seeds"):
        Search(spec, SeedBook(roots=(1, 2, 3), blocks=((4, 5, 6),), spares=(), sentinel=1), CRITERIA)
    with pytest.raises(ValueError, match="blocks of 3 seeds"):
        Search(spec_of("4", require=4), SeedBook(roots=(1, 2, 3), blocks=(), spares=(), sentinel=1), CRITERIA)


@pytest.mark.parametrize(("runs", "explore"), [(0, 1), (3, 0), (3, 4)])
def test_a_search_without_evidence_is_refused(runs: int, explore: int):
    with pytest.raises(ValueError, match="at least 1"):
        spec_of("2..18", runs=runs, explore=explore)
