"""The statistics of a rehearsal's repeats, from repeats made by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from test_report_rehearsal import REPORT

from analysis.report.rehearsal import rehearsal_sentences
from analysis.report.repeats import (
    GridPlace,
    MeanAndP90,
    PlanRow,
    RehearsedPlan,
    Repeat,
    RequireChances,
    SettlingPlan,
    place_of,
    plan_row,
    settling,
    summarise,
)
from analysis.search import Outcome, OutcomeName
from loadgen.common.documents import to_json

GRID = (2.0, 3.0, 4.0, 6.0, 8.0)


def ended(name: OutcomeName, capacity: float | None = None, upper: float | None = None, **more: Any) -> Repeat:
    outcome = Outcome(
        name=name, reason="", capacity=capacity, proved=capacity, lower=capacity, upper=upper,
        upper_stands=upper is not None,
    )  # fmt: skip
    return Repeat(outcome=outcome, **{"runs": 10, "seconds": 3600.0, "requests": 1000, "tokens": 9000} | more)


def test_a_place_is_an_index_or_beyond_the_range() -> None:
    assert place_of(ended("FOUND", 4.0).outcome, GRID) == 2
    assert place_of(ended("ABOVE_RANGE", 8.0).outcome, GRID) == 5
    assert place_of(ended("BELOW_RANGE", upper=2.0).outcome, GRID) == -1
    assert place_of(ended("BUDGET_EXHAUSTED").outcome, GRID) is None
    assert place_of(Outcome(name="TABULATED", reason="", lower=3.0), GRID) == 1


def test_the_summary_counts_every_end_and_quantiles_only_those_that_say_where() -> None:
    repeats = [ended("BELOW_RANGE", upper=2.0), *[ended("FOUND", 3.0)] * 5, *[ended("FOUND", 4.0)] * 3]
    repeats += [ended("ABOVE_RANGE", 8.0), ended("BUDGET_EXHAUSTED")]
    said = summarise(repeats, GRID)
    assert said.outcomes == {"FOUND": 8, "BELOW_RANGE": 1, "ABOVE_RANGE": 1, "BUDGET_EXHAUSTED": 1}
    assert said.quantiles["10%"] == GridPlace(rate=None, outside="below")
    assert said.quantiles["50%"] == GridPlace(rate=3.0, outside=None)
    assert said.quantiles["95%"] == GridPlace(rate=None, outside="above")
    assert [(row.rate, row.repeats) for row in said.landings] == [(None, 1), (3.0, 5), (4.0, 3), (None, 1)]
    # below the range is next to its second rate's neighbour here, two steps from the median: −1 against 1
    assert said.within_one_step == pytest.approx(8 / 11)
    assert said.within_two_steps == pytest.approx(9 / 11)


def test_the_bill_is_a_mean_and_a_nearest_rank() -> None:
    said = summarise([ended("FOUND", 4.0, runs=n, seconds=360.0 * n) for n in range(1, 11)], GRID)
    assert said.cost.runs == MeanAndP90(mean=5.5, p90=9.0)
    assert said.cost.hours.mean == pytest.approx(0.55)


def test_a_requirement_has_three_chances() -> None:
    repeats = [ended("FOUND", 6.0, upper=8.0), ended("FOUND", 3.0, upper=4.0), ended("BUDGET_EXHAUSTED")]
    chances = summarise(repeats, GRID, require=5.0).require
    assert chances == RequireChances(rate=5.0, met=1, refuted=1, cannot_tell=1)
    assert json.loads(to_json(chances)) == {"rate": 5.0, "met": 1, "refuted": 1, "cannot tell": 1}


def test_nothing_repeated_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was repeated"):
        summarise([], GRID)


def cell(window_s: float, runs: int, *rates: float, hours: float = 1.0) -> PlanRow:
    repeats = tuple(ended("FOUND", rate, seconds=3600 * hours) for rate in rates)
    return plan_row(RehearsedPlan(window_s=window_s, cohort=None, runs=runs, repeats=repeats), GRID)


def test_the_window_that_would_settle_it_follows_from_the_variance_over_all_windows() -> None:
    rows = [cell(100.0, 2, 2.0, 8.0), cell(200.0, 2, 2.0, 8.0, hours=2.0)]  # places 0 and 4: a variance of 8 steps²
    plan = settling(rows)
    assert plan is not None
    assert plan.window_s == pytest.approx(8 * 150 * (1.2816 / 1.5) ** 2)
    assert plan.hours == pytest.approx(2.0 * plan.window_s / 200)


def test_it_is_never_shorter_than_what_was_simulated_in_vain_and_prefers_the_cheapest_r() -> None:
    plan = settling([cell(100.0, 2, 3.0, 4.0), cell(100.0, 4, 3.0, 4.0, hours=0.5)])
    assert plan == SettlingPlan(window_s=100.0, cohort=None, runs=4, hours=0.5)


def test_a_capacity_outside_of_the_range_settles_nothing() -> None:
    repeats = (ended("ABOVE_RANGE", 8.0), ended("FOUND", 8.0))
    assert settling([plan_row(RehearsedPlan(window_s=100.0, cohort=None, runs=2, repeats=repeats), GRID)]) is None


def test_a_row_resolves_where_four_in_five_agree() -> None:
    def row(near: int) -> PlanRow:
        repeats = [ended("FOUND", 3.0)] * near + [ended("FOUND", 8.0)] * (10 - near)
        return plan_row(RehearsedPlan(window_s=60.0, cohort=None, runs=2, repeats=tuple(repeats)), GRID)

    assert [row(near).resolves for near in (7, 8)] == [False, True]


def test_advice_is_simulated_where_a_row_resolves_and_else_said_to_be_extrapolated() -> None:
    def advice(*repeats: Repeat) -> str:
        plans = (plan_row(RehearsedPlan(window_s=100.0, cohort=None, runs=2, repeats=repeats), GRID),)
        return rehearsal_sentences(dataclasses.replace(REPORT, plans=plans))[2]

    assert "windows of 1m 40s with R = 2" in advice(*[ended("FOUND", 3.0)] * 5)
    assert "Extrapolated, not simulated" in advice(*[ended("FOUND", 2.0)] * 3, *[ended("FOUND", 8.0)] * 2)
