"""What a rehearsal's report says, from reports made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.report.rehearsal import rehearsal_sentences, rehearsal_tables
from analysis.report.repeats import GridPlace, MeanAndP90, PlanRow, RehearsalReport, RepeatCost, RequireChances

COST = RepeatCost(
    runs=MeanAndP90(mean=12.4, p90=20),
    hours=MeanAndP90(mean=1.5, p90=2.25),
    requests=MeanAndP90(mean=12_345, p90=20_000),
    tokens=MeanAndP90(mean=1_234_567, p90=2_000_000),
)
REPORT = RehearsalReport(
    repeats=200,
    outcomes={"FOUND": 190, "BELOW_RANGE": 10},
    quantiles={"5%": GridPlace(rate=None, outside="below"), "50%": GridPlace(rate=4.25, outside=None),
               "95%": GridPlace(rate=None, outside="above")},
    landings=(), within_one_step=0.8, within_two_steps=0.93, cost=COST, require=None, simulated=True,
    target="virtual:fcfs", profile="fcfs", slo="e2e<=1s", placeholder_slo=False, attain="95%", width="10%",
    warmup_s=60.0, window_s=300.0, cohort=None, runs=3, explore=1, plans=(),
)  # fmt: skip
ROW = PlanRow(
    window_s=600.0, cohort=None, runs=4, repeats=100, answered=100, p10=None, median=GridPlace(rate=4.5, outside=None),
    p90=GridPlace(rate=5.0, outside=None), within_one_step=0.5, resolves=False, variance=4.0, runs_made=30.0, hours=6.5,
    requests=54_321.0,
)  # fmt: skip


def test_places_beside_the_range_and_the_bill_are_shown() -> None:
    where, cost = rehearsal_tables(REPORT)
    assert where.columns == ("5%", "50%", "95%")
    assert where.rows == (("< range", "4.25", "≥ range"),)
    assert cost.rows == (
        ("mean", "12", "1.50", "12,345", "1,234,567"),
        ("p90", "20", "2.25", "20,000", "2,000,000"),
    )
    assert rehearsal_tables(replace(REPORT, quantiles={})) == [cost]


def test_other_windows_are_shown_with_the_luck_of_so_few_repeats() -> None:
    *_, others = rehearsal_tables(replace(REPORT, plans=(ROW, replace(ROW, window_s=None, cohort=500, repeats=64))))
    assert "± 5 points" in others.title  # √(0.8 · 0.2 / 64), of the row with the fewest repeats
    assert others.rows == (
        ("10m 00s", "4", "–", "4.5", "5", "50% of 100", "30", "6.50", "54,321"),
        ("500 requests", "4", "–", "4.5", "5", "50% of 64", "30", "6.50", "54,321"),
    )


def test_it_says_how_often_each_outcome_came_and_what_it_holds_for() -> None:
    outcomes, width, more, valid = rehearsal_sentences(REPORT)
    assert outcomes == "Outcomes of 200 repeats: FOUND 95.0%, BELOW_RANGE 5.0%."
    assert "is resolved, which asks for 80%" in width
    assert "80% are, 93% within two" in width
    assert "--rehearse 50" in more
    assert "R = 3 runs of 5m 00s after 1m 00s warm-up" in valid
    assert "is not resolved" in rehearsal_sentences(replace(REPORT, within_one_step=0.79))[1]


def test_a_requirement_a_placeholder_and_a_missing_capacity_are_said() -> None:
    required = RequireChances(rate=3.5, met=150, refuted=30, cannot_tell=20)
    said = rehearsal_sentences(
        replace(REPORT, require=required, placeholder_slo=True, quantiles={}, window_s=None, cohort=300)
    )
    assert said[1] == "--require 3.5: met 75.0%, refuted 15.0%, cannot tell 10.0%."
    assert not any("resolved" in sentence for sentence in said)
    assert "runs of 300 requests" in said[-2]
    assert said[-1] == "placeholder SLO: set --slo"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            (replace(ROW, resolves=True, hours=9.0), replace(ROW, resolves=True, hours=7.0, runs=5), ROW),
            "Cheapest of these that resolves the width: windows of 10m 00s with R = 5, 7.00 hours.",
        ),
        ((replace(ROW, variance=None),), "λ* leaves the range; widen --rate."),
        ((ROW,), "Extrapolated, not simulated"),
    ],
)
def test_the_cheapest_plan_that_resolves_is_advised(rows: tuple[PlanRow, ...], says: str) -> None:
    assert says in rehearsal_sentences(replace(REPORT, plans=rows))[2]
