"""The sentence that a gate begins with agrees with its exit code and says what was proved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from searches import Answer, below, finish, invalid, search_of, spec_of, verdict
from test_report import CONDITIONS

from analysis.report.required import requirement
from analysis.report.types import Requirement


def asked(answer: Answer, *, rates: str = "4", runs: int = 3, require: float = 4, **conditions: Any) -> Requirement:
    outcome = finish(search_of(spec_of(rates, runs=runs, require=require)), answer)
    return requirement(outcome, require, replace(CONDITIONS, runs=runs, **conditions))


def test_kept():
    found = asked(below(5))
    assert found.verdict == "KEPT"
    assert "3 of 3 fresh runs passed; at 95 % confidence at least 37% of such runs would pass." in found.words


def test_blocks_of_one_history_prove_no_share():
    assert asked(below(5), replicates="block").words.endswith("3 of 3 fresh blocks passed.")


def test_a_larger_proved_rate_keeps_it_too():
    assert "fresh runs passed at " in asked(below(9), rates="2..18", require=5).words


def test_broken():
    found = asked(lambda r: verdict(r.replicate < 2))
    assert found.verdict == "BROKEN"
    assert found.words == "BROKEN: 4 requests/s does not keep the SLO: too many misses; fresh run 3 of 3 showed it."


def test_broken_by_a_smaller_rate():
    found = asked(below(2.1), rates="2..18", require=5)
    assert found.words.startswith("BROKEN: 5 requests/s does not keep the SLO: already ")
    assert "an exploring run showed it" in found.words


@pytest.mark.parametrize(
    ("blame", "name"), [("client", "CLIENT_LIMITED"), ("target", "UNSTABLE_TARGET"), ("evidence", "UNDECIDED")]
)
def test_cannot_tell(blame: Any, name: str):
    found = asked(lambda r: verdict() if r.kind == "sentinel" or r.replicate < 2 else invalid(blame))
    assert found.verdict == "CANNOT_TELL"
    assert found.words.startswith(f"CANNOT TELL whether 4 requests/s keeps the SLO: {name}: ")
    assert found.words.endswith("2 of 3 fresh runs are valid.")
