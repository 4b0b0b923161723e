"""The runs of a baseline again: what is asked next, what is repeated, and when nothing can be said."""

from __future__ import annotations

from typing import Any

import pytest
from searches import invalid, verdict

from analysis.compare.phase import PairedEnd
from analysis.compare.reruns import Reruns
from analysis.search import RunRequest
from analysis.verdict import RunVerdict

BASELINE = tuple(
    RunRequest(
        kind="prove", rate=6.5, rate_index=3, replicate=r, block=2, seed=100 + r, attempt=0, key=f"k{r}", variant="v"
    )
    for r in range(10)
)  # fmt: skip


def played(
    answers: dict[tuple[int, int], RunVerdict], *, again: bool = True
) -> tuple[Reruns, list[RunRequest], PairedEnd]:
    """`answers` by (seed, attempt); every other run passes."""
    reruns, asked = Reruns(BASELINE, again=again), []
    while isinstance(request := reruns.ask(), RunRequest):
        assert reruns.ask() == request
        asked.append(request)
        reruns.tell(request, answers.get((request.seed, request.attempt), verdict()))
    return reruns, asked, request


def test_every_run_is_made_once_with_its_seed_replicate_and_block():
    reruns, asked, end = played({})
    assert end == PairedEnd(name="COMPLETE")
    assert [(r.seed, r.replicate, r.block, r.rate) for r in asked] == [
        (r.seed, r.replicate, r.block, r.rate) for r in BASELINE
    ]
    assert {(r.kind, r.variant) for r in asked} == {("paired", "main")}
    assert len({r.key for r in asked}) == 10
    assert [k for k, *_ in reruns.counting()] == list(range(10))


def test_failures_and_thin_evidence_count():
    answers = {(101, 0): verdict(False), (102, 0): invalid("evidence")}
    reruns, asked, _ = played(answers)
    assert (len(asked), reruns.left_out) == (10, 0)


@pytest.mark.parametrize("blame", ["client", "workload", "target"])
def test_an_invalid_run_is_repeated_once_with_its_seed(blame: Any):
    reruns, asked, end = played({(103, 0): invalid(blame)})
    assert [r.attempt for r in asked if r.seed == 103] == [0, 1]
    assert (reruns.left_out, end.name) == (0, "COMPLETE")


def test_then_its_pair_is_left_out():
    reruns, _, end = played({(103, 0): invalid("client"), (103, 1): invalid("workload")})
    assert (reruns.left_out, end.name) == (1, "COMPLETE")
    assert [k for k, *_ in reruns.counting()] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_more_than_a_fifth_left_out_says_nothing():
    spoiled = {(seed, attempt): invalid("client") for seed in (101, 104, 105) for attempt in (0, 1)}
    _, asked, end = played(spoiled)
    assert end.name == "CLIENT_LIMITED"
    assert end.reason == "the run with seed 105 was INVALID, and more than 2 pairs would be left out: client gate"
    assert asked[-1].seed == 105


def test_a_target_that_is_to_blame_twice_ends_it():
    _, asked, end = played({(100, 0): invalid("target"), (100, 1): invalid("target")})
    assert (end.name, len(asked)) == ("UNSTABLE_TARGET", 2)


def test_where_content_follows_the_attempt_nothing_is_repeated():
    reruns, asked, _ = played({(103, 0): invalid("client")}, again=False)
    assert (len(asked), reruns.left_out) == (10, 1)


def test_replayed_it_goes_on_where_it_was_and_tries_again_after_an_end():
    reruns = Reruns(BASELINE)
    pairs: list[tuple[RunRequest, RunVerdict]] = []
    for answer in (verdict(), invalid("target"), invalid("target")):
        request = reruns.ask()
        assert isinstance(request, RunRequest)
        reruns.tell(request, answer)
        pairs.append((request, answer))
    assert reruns.ask() == PairedEnd(
        name="UNSTABLE_TARGET", reason="the run with seed 101 was disturbed twice: target gate"
    )
    again = Reruns.replay(BASELINE, pairs)
    request = again.ask()
    assert isinstance(request, RunRequest)
    assert (request.seed, request.attempt) == (101, 2)
    assert Reruns.replay(BASELINE, [*pairs, (request, verdict())]).ask() != request


def test_a_run_that_was_not_asked_for_is_refused():
    with pytest.raises(ValueError, match="is not the one this gate asked for"):
        Reruns(BASELINE).tell(BASELINE[0], verdict())
    _, asked, _ = played({})
    with pytest.raises(ValueError, match="is not the one"):
        Reruns.replay(BASELINE, [(asked[1], verdict())])
