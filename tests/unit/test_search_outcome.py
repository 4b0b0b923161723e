"""The exit code of every outcome, with and without a required rate."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.search import Outcome, OutcomeName, exit_code


def ended(name: OutcomeName, **known: Any) -> Outcome:
    return Outcome(name=name, reason="", **known)


FOUND = ended("FOUND", capacity=5, proved=5, lower=5, upper=5.2, upper_stands=True)
ABOVE = ended("ABOVE_RANGE", capacity=18, proved=18, lower=18)
BELOW = ended("BELOW_RANGE", upper=2, upper_stands=True)
TABLE = ended("TABULATED", lower=4, upper=6, upper_stands=True)
SPENT = ended("BUDGET_EXHAUSTED", proved=3, lower=4, upper=8, upper_stands=True)


@pytest.mark.parametrize(
    ("outcome", "require", "code"),
    [
        (FOUND, None, 0),
        (FOUND, 5, 0),
        (FOUND, 5.1, 4),
        (FOUND, 5.2, 1),
        (ABOVE, None, 0),
        (ABOVE, 18, 0),
        (ABOVE, 20, 4),
        (BELOW, None, 0),
        (BELOW, 2, 1),
        (TABLE, None, 0),
        (TABLE, 4, 4),  # R runs passed, none of them fresh
        (TABLE, 6, 1),
        (ended("UNDECIDED", undecided=2), None, 4),
        (ended("UNDECIDED", undecided=2), 2, 4),
        (ended("CLIENT_LIMITED", lower=4), None, 4),
        (ended("CLIENT_LIMITED", lower=4), 4, 4),
        (ended("CLIENT_LIMITED", lower=6, proved=4), 4, 0),  # what was proved stays proved
        (SPENT, None, 4),
        (SPENT, 3, 0),
        (SPENT, 4, 4),  # exploring runs prove nothing
        (SPENT, 9, 1),
        (ended("BUDGET_EXHAUSTED", upper=8), 9, 4),  # one run failed, and nobody looked again
        (ended("UNFINISHED"), None, 4),
        (ended("UNSTABLE_TARGET", proved=4, upper=8, upper_stands=True), 3, 3),
        (ended("ABORTED", proved=4, upper=8, upper_stands=True), 9, 5),
    ],
)
def test_codes(outcome: Outcome, require: float | None, code: int):
    assert exit_code(outcome, require) == code
