"""Sentinels watch whether the target stays the same: when they run, and what a change beyond their noise leads to."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import pytest
from searches import Answer, asked, below, finish, invalid, search_of, spec_of, verdict

from analysis.search import RunRequest
from analysis.verdict import Blame, RunVerdict

SPEC = spec_of("2..18", runs=3)


def later(**of_sentinels: float | None) -> Answer:
    """All sentinels but the first are like that, on a server that carries 6/s."""
    return lambda r: verdict(r.rate < 6, **(of_sentinels if r.kind == "sentinel" and r.replicate else {}))


def test_they_run_first_every_ten_and_last_at_the_lowest_rate_with_one_seed():
    search = search_of(spec_of("2..18", runs=12))
    finish(search, below(6))
    kinds = [request.kind for request, _ in search.history]
    assert kinds[0] == kinds[-1] == "sentinel"
    gaps = [len(part) for part in "".join("S" if k == "sentinel" else "." for k in kinds).split("S")[1:-1]]
    assert gaps[:-1] == [10] * (len(gaps) - 1)
    assert 0 < gaps[-1] <= 10
    sentinels = asked(search, "sentinel")
    assert {(r.rate, r.seed) for r in sentinels} == {(2, 7)}
    assert len({r.key for r in sentinels}) == len(sentinels)


@pytest.mark.parametrize(
    ("moved", "name", "severity"),
    [
        (1.09, "FOUND", None),
        (1.11, "FOUND", "warning"),
        (0.89, "FOUND", "warning"),
        (1.26, "UNSTABLE_TARGET", "block"),
        (0.74, "UNSTABLE_TARGET", "block"),
    ],
)
def test_moved_mean_e2e(moved: float, name: str, severity: str | None):
    outcome = finish(search_of(SPEC), later(e2e_s=moved))
    assert outcome.name == name
    assert {f.severity for f in outcome.findings if f.check == "sentinel"} == ({severity} if severity else set())
    if name == "UNSTABLE_TARGET":
        assert outcome.capacity is None
        assert "mean E2E at 2/s moved by" in outcome.reason


@pytest.mark.parametrize(
    ("error_s", "name"), [(0.40 / 3 / sqrt(2) * 1.01, "FOUND"), (0.40 / 3 / sqrt(2) * 0.99, "UNSTABLE_TARGET")]
)
def test_what_moved_by_fewer_than_three_standard_errors_may_be_luck(error_s: float, name: str):
    def answer(r: RunRequest) -> RunVerdict:
        return verdict(r.rate < 6, e2e_s=1.4 if r.kind == "sentinel" and r.replicate else 1.0, e2e_error_s=error_s)

    outcome = finish(search_of(SPEC), answer)
    assert outcome.name == name
    assert any(f.check == "sentinel" and "moved by +40%" in f.text for f in outcome.findings)


def test_a_mean_whose_error_nobody_knows_ends_nothing():
    outcome = finish(search_of(SPEC), later(e2e_s=3.0, e2e_error_s=None))
    assert outcome.name == "FOUND"
    assert {f.severity for f in outcome.findings if f.check == "sentinel"} == {"warning"}


def test_the_last_one_can_still_withdraw_the_answer():
    search = search_of(SPEC)

    def answer(r: RunRequest) -> RunVerdict:
        over = r.kind == "sentinel" and asked(search, "recheck")
        return verdict(r.rate < 6, e2e_s=2.0 if over else 1.0)

    outcome = finish(search, answer)
    assert outcome.name == "UNSTABLE_TARGET"
    assert (outcome.support, outcome.capacity) == ("proved", None)


def test_they_pass_no_rate_and_fail_none():
    assert finish(search_of(SPEC), lambda r: verdict(r.kind != "sentinel" and r.rate < 6)).name == "FOUND"


def test_one_that_fails_where_the_first_passed_is_told():
    outcome = finish(search_of(SPEC), lambda r: verdict(r.rate < 6 and not (r.kind == "sentinel" and r.replicate)))
    assert outcome.name == "FOUND"
    assert any("passed at first and failed later: too many misses" in f.text for f in outcome.findings)


@pytest.mark.parametrize(
    ("blame", "name"),
    [("client", "CLIENT_LIMITED"), ("target", "UNSTABLE_TARGET"), ("workload", "UNSTABLE_TARGET")],
)
def test_an_invalid_one_is_repeated_once(blame: Blame, name: str):
    search = search_of(SPEC)
    outcome = finish(search, lambda r: invalid(blame))
    assert (outcome.name, outcome.runs) == (name, 2)
    assert [r.attempt for r in asked(search, "sentinel")] == [0, 1]
    once: Callable[[RunRequest], bool] = lambda r: r.kind == "sentinel" and not r.attempt  # noqa: E731
    assert finish(search_of(SPEC), lambda r: invalid(blame) if once(r) else below(6)(r)).name == "FOUND"
