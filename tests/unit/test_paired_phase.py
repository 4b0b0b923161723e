"""The paired phase: every pair once, in the declared order, with one seed a replicate, whatever runs are INVALID."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from analysis.compare.phase import PairedEnd, PairedPhase, PairedPlan, Point
from analysis.search import RunRequest
from analysis.verdict import Blame, Finding, RunVerdict

PASS = RunVerdict(status="PASS")


def invalid(blame: Blame) -> RunVerdict:
    finding = Finding(check="x", blame=blame, severity="block", text="why")
    return RunVerdict(status="INVALID", findings=(finding,))


def abba(replicate: int) -> tuple[str, ...]:
    return ("a", "b") if replicate % 4 in (0, 3) else ("b", "a")


def plan(runs: int = 4, *, interleaved: bool = True) -> PairedPlan:
    return PairedPlan(
        variants=("a", "b"),
        points=(Point(label="own", rates={"a": 2.0, "b": 3.0}), Point(label="2/s", rates={"a": 2.0, "b": 2.0})),
        seeds=tuple(range(100, 100 + runs)),
        spares=tuple(range(900, 900 + runs)),
        order=abba if interleaved else None,
    )


def play(phase: PairedPhase, verdict: Callable[[RunRequest], RunVerdict]) -> tuple[list[RunRequest], PairedEnd]:
    asked = []
    while isinstance(request := phase.ask(), RunRequest):
        asked.append(request)
        phase.tell(request, verdict(request))
    return asked, request


def told(runs: Iterable[RunRequest]) -> list[tuple[str, float, int]]:
    return [(run.variant, run.rate, run.seed) for run in runs]


def test_variants_are_interleaved_and_a_rate_that_two_points_share_is_run_once() -> None:
    asked, end = play(PairedPhase(plan(2)), lambda _: PASS)
    assert told(asked) == [
        ("a", 2, 100), ("b", 3, 100), ("b", 2, 100),
        ("b", 3, 101), ("a", 2, 101), ("b", 2, 101),
    ]  # fmt: skip
    assert end.name == "COMPLETE"
    assert len({run.path for run in asked}) == len(asked)


def test_variants_that_share_their_gpus_are_run_one_after_the_other() -> None:
    asked, _ = play(PairedPhase(plan(3, interleaved=False)), lambda _: PASS)
    assert [run.variant for run in asked] == ["a"] * 3 + ["b"] * 6


def test_thin_evidence_is_a_measurement_all_the_same() -> None:
    asked, end = play(PairedPhase(plan(2)), lambda _: invalid("evidence"))
    assert (len(asked), end.name) == (6, "COMPLETE")


def test_an_invalid_run_is_repeated_and_then_the_replicate_is_replaced_for_every_variant() -> None:
    bad = ("b", 3.0, 102)
    asked, end = play(PairedPhase(plan()), lambda run: invalid("client") if told([run]) == [bad] else PASS)
    assert end.name == "COMPLETE"
    assert told(asked).count(bad) == 2
    again = [run for run in told(asked) if run[2] == 902]
    assert sorted(again) == [("a", 2, 902), ("b", 2, 902), ("b", 3, 902)]
    phase = PairedPhase.replay(plan(), [(run, invalid("client") if told([run]) == [bad] else PASS) for run in asked])
    assert phase.seeds == (100, 101, 902, 103)
    assert {run.seed for job, run, _ in phase.counting() if job.replicate == 2} == {902}


@pytest.mark.parametrize(
    ("blame", "name", "runs"),
    [("client", "CLIENT_LIMITED", 3), ("workload", "UNSTABLE_TARGET", 3), ("target", "UNSTABLE_TARGET", 2)],
)
def test_it_ends_where_a_seed_and_its_spare_are_invalid_or_the_target_is_to_blame_twice(
    blame: Blame, name: str, runs: int
) -> None:
    asked, end = play(PairedPhase(plan()), lambda _: invalid(blame))
    assert (end.name, len(asked)) == (name, runs)
    assert "a: the run of seed" in end.reason


def test_more_than_a_fifth_of_the_replicates_may_not_be_replaced() -> None:
    roots = {100, 101}
    _, end = play(PairedPhase(plan()), lambda run: invalid("client") if run.seed in roots else PASS)
    assert end.name == "CLIENT_LIMITED"
    assert "2 of 4 replicates would be replaced" in end.reason


def test_replaying_the_ledgers_of_the_variants_one_after_the_other_goes_on_where_it_stopped() -> None:
    bad = {("a", 2.0, 101), ("b", 2.0, 103)}
    verdict: Callable[[RunRequest], RunVerdict]
    verdict = lambda run: invalid("target") if told([run])[0] in bad and not run.attempt else PASS  # noqa: E731
    whole, _ = play(PairedPhase(plan()), verdict)
    for cut in range(len(whole) + 1):
        before = [(run, verdict(run)) for run in whole[:cut]]
        before.sort(key=lambda pair: pair[0].variant)
        rest, end = play(PairedPhase.replay(plan(), before), verdict)
        assert (rest, end.name) == (whole[cut:], "COMPLETE")


def test_a_run_of_another_phase_is_refused() -> None:
    phase = PairedPhase(plan())
    first = phase.ask()
    assert isinstance(first, RunRequest)
    phase.tell(first, PASS)
    with pytest.raises(ValueError, match="not the one this phase asked for"):
        phase.tell(first, PASS)
    with pytest.raises(ValueError, match="none of this paired phase"):
        PairedPhase.replay(plan(1), [(run, PASS) for run in play(PairedPhase(plan()), lambda _: PASS)[0]])


def test_seeds_are_declared_once_and_each_has_a_spare() -> None:
    with pytest.raises(ValueError, match="twice"):
        PairedPlan(variants=("a",), points=(), seeds=(1, 2), spares=(2, 3))
    with pytest.raises(ValueError, match="one each"):
        PairedPlan(variants=("a",), points=(), seeds=(1, 2), spares=(3,))
