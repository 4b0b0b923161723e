from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from analysis.report.rehearsal import rehearsal_sentences, rehearsal_tables
from analysis.report.repeats import Cell, Repeat, place_of, plan_row, settling, summarise
from analysis.search import Outcome, OutcomeName
from loadgen.common.errors import ScenarioError
from loadgen.experiment.prepare import Setup, prepare
from loadgen.experiment.progress import Progress
from loadgen.experiment.rehearse import Stage, rehearse, repeat, stage, variations
from loadgen.scenario.file import load_scenario

GRID = (2.0, 3.0, 4.0, 6.0, 8.0)
QUICK: dict[str, Any] = {
    "target": ("virtual:fcfs",), "rate": "2..14", "width": "30%", "runs": 2, "window": "100s", "min_requests": 100,
    "input": "16", "output": "1", "slo": ("e2e<=250ms",),
}  # fmt: skip


def ended(name: OutcomeName, capacity: float | None = None, upper: float | None = None, **more: Any) -> Repeat:
    outcome = Outcome(
        name=name, reason="", capacity=capacity, proved=capacity, lower=capacity, upper=upper,
        upper_stands=upper is not None,
    )  # fmt: skip
    return Repeat(outcome=outcome, **{"runs": 10, "seconds": 3600.0, "requests": 1000, "tokens": 9000} | more)


def setup(**changed: Any) -> Setup:
    return prepare(load_scenario(None, QUICK | changed))


@pytest.fixture(scope="module")
def on() -> Stage:
    return stage(setup())


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
    assert said["outcomes"] == {"FOUND": 8, "BELOW_RANGE": 1, "ABOVE_RANGE": 1, "BUDGET_EXHAUSTED": 1}
    assert said["quantiles"]["10%"] == {"rate": None, "outside": "below"}
    assert said["quantiles"]["50%"] == {"rate": 3.0, "outside": None}
    assert said["quantiles"]["95%"] == {"rate": None, "outside": "above"}
    assert [(row["rate"], row["repeats"]) for row in said["landings"]] == [(None, 1), (3.0, 5), (4.0, 3), (None, 1)]
    # below the range is next to its second rate's neighbour here, two steps from the median: −1 against 1
    assert said["within_one_step"] == pytest.approx(8 / 11)
    assert said["within_two_steps"] == pytest.approx(9 / 11)


def test_the_bill_is_a_mean_and_a_nearest_rank() -> None:
    said = summarise([ended("FOUND", 4.0, runs=n, seconds=360.0 * n) for n in range(1, 11)], GRID)
    assert said["cost"]["runs"] == {"mean": 5.5, "p90": 9.0}
    assert said["cost"]["hours"]["mean"] == pytest.approx(0.55)


def test_a_requirement_has_three_chances() -> None:
    repeats = [ended("FOUND", 6.0, upper=8.0), ended("FOUND", 3.0, upper=4.0), ended("BUDGET_EXHAUSTED")]
    assert summarise(repeats, GRID, require=5.0)["require"] == {"rate": 5.0, "met": 1, "refuted": 1, "cannot tell": 1}


def test_nothing_repeated_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was repeated"):
        summarise([], GRID)


def cell(window_s: float, runs: int, *rates: float, hours: float = 1.0) -> dict[str, Any]:
    repeats = tuple(ended("FOUND", rate, seconds=3600 * hours) for rate in rates)
    return plan_row(Cell(window_s=window_s, cohort=None, runs=runs, repeats=repeats), GRID)


def test_the_window_that_would_settle_it_follows_from_the_variance_over_all_windows() -> None:
    rows = [cell(100.0, 2, 2.0, 8.0), cell(200.0, 2, 2.0, 8.0, hours=2.0)]  # places 0 and 4: a variance of 8 steps²
    plan = settling(rows)
    assert plan is not None
    assert plan["window_s"] == pytest.approx(8 * 150 * (1.2816 / 1.5) ** 2)
    assert plan["hours"] == pytest.approx(2.0 * plan["window_s"] / 200)


def test_it_is_never_shorter_than_what_was_simulated_in_vain_and_prefers_the_cheapest_r() -> None:
    plan = settling([cell(100.0, 2, 3.0, 4.0), cell(100.0, 4, 3.0, 4.0, hours=0.5)])
    assert plan == {"window_s": 100.0, "cohort": None, "runs": 4, "hours": 0.5}


def test_a_capacity_outside_of_the_range_settles_nothing() -> None:
    repeats = (ended("ABOVE_RANGE", 8.0), ended("FOUND", 8.0))
    assert settling([plan_row(Cell(window_s=100.0, cohort=None, runs=2, repeats=repeats), GRID)]) is None


def test_a_row_resolves_where_four_in_five_agree() -> None:
    def row(near: int) -> dict[str, Any]:
        repeats = [ended("FOUND", 3.0)] * near + [ended("FOUND", 8.0)] * (10 - near)
        return plan_row(Cell(window_s=60.0, cohort=None, runs=2, repeats=tuple(repeats)), GRID)

    assert [row(near)["resolves"] for near in (7, 8)] == [False, True]


def test_a_repeat_is_the_same_for_the_same_seed_and_another_for_another(on: Stage) -> None:
    first, again, other = repeat(on, 7), repeat(on, 7), repeat(on, 8)
    assert first == again
    assert [v.attain_min for v in first.outcome.rates] != [v.attain_min for v in other.outcome.rates]
    assert first.outcome.name == "FOUND"
    assert 3.0 < (first.outcome.capacity or 0) < 7.0
    assert first.seconds > first.runs * 0.3 * 100  # a run's own clock, not this machine's


def test_a_repeat_keeps_to_the_budget_of_live_time() -> None:
    short = repeat(stage(setup(max_time="10m")), 7)
    assert short.outcome.name == "BUDGET_EXHAUSTED"
    assert short.seconds <= 600 + 2 * 60  # the tail of the last run is not booked beforehand


def test_variations_change_window_and_replicates_alone(on: Stage) -> None:
    made = [(v.setup.workload.window_s, v.setup.spec.runs) for v in variations(on)]
    assert made == [(100, 1), (100, 4), (200, 1), (200, 2), (200, 4), (400, 1), (400, 2), (400, 4)]
    assert {v.setup.spec.explore for v in variations(on)} == {1}
    for v in variations(on):
        assert v.setup.scenario.window == v.setup.workload.window_s
        assert v.setup.scenario.runs == v.setup.spec.runs
    by_count = variations(dataclasses.replace(on, setup=_by_count()))
    assert {v.setup.workload.cohort for v in by_count} == {300, 600, 1200}


def _by_count() -> Setup:
    kept = {key: value for key, value in QUICK.items() if key != "window"}
    return prepare(load_scenario(None, kept | {"cohort": 300}))


def test_processes_change_nothing_but_the_time(on: Stage) -> None:
    lines: list[str] = []
    alone = rehearse(on, 4, progress=Progress(lambda event: lines.append(event.text)), processes=1)
    assert alone == rehearse(on, 4, progress=Progress(lambda event: lines.append(event.text)), processes=2)
    assert alone["repeats"] == 4
    assert alone["plans"] == []  # too few repeats to say anything of other windows
    assert "4 times as asked" in lines[0]
    text = "\n".join(rehearsal_sentences(alone))
    assert "SIMULATED" in text
    assert "Outcomes of 4 repeats" in text
    assert [table.title.split()[0] for table in rehearsal_tables(alone)] == ["Where", "What"]


def test_advice_is_simulated_where_a_row_resolves_and_else_said_to_be_extrapolated(on: Stage) -> None:
    report = rehearse(on, 1, progress=Progress(), processes=1)

    def advice(*repeats: Repeat) -> str:
        report["plans"] = [plan_row(Cell(window_s=100.0, cohort=None, runs=2, repeats=repeats), GRID)]
        return rehearsal_sentences(report)[2]

    assert "windows of 1m 40s with R = 2" in advice(*[ended("FOUND", 3.0)] * 5)
    assert "Extrapolated, not simulated" in advice(*[ended("FOUND", 2.0)] * 3, *[ended("FOUND", 8.0)] * 2)


@pytest.mark.parametrize(
    "target", [("http://127.0.0.1:1",), ("emulator:fcfs",), ("virtual:fcfs", "virtual:fcfs")]
)  # fmt: skip
def test_only_virtual_time_is_rehearsed(target: tuple[str, ...]) -> None:
    with pytest.raises(ScenarioError, match="--target virtual:PROFILE"):
        stage(setup(target=target))
