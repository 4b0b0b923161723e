from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from analysis.report.rehearsal import rehearsal_sentences, rehearsal_tables
from loadgen.common.errors import ScenarioError
from loadgen.experiment.prepare import Setup, prepare
from loadgen.experiment.progress import Progress
from loadgen.experiment.rehearse import Rehearsal, plan_rehearsal, rehearse, repeat, variations
from loadgen.scenario.file import load_scenario

QUICK: dict[str, Any] = {
    "target": ("virtual:fcfs",), "rate": "2..14", "width": "30%", "runs": 2, "window": "100s", "min_requests": 100,
    "input": "16", "output": "1", "slo": ("e2e<=250ms",),
}  # fmt: skip


def setup(**changed: Any) -> Setup:
    return prepare(load_scenario(None, QUICK | changed))


@pytest.fixture(scope="module")
def on() -> Rehearsal:
    return plan_rehearsal(setup())


def test_a_repeat_is_the_same_for_the_same_seed_and_another_for_another(on: Rehearsal) -> None:
    first, again, other = repeat(on, 7), repeat(on, 7), repeat(on, 8)
    assert first == again
    assert [v.attain_min for v in first.outcome.rates] != [v.attain_min for v in other.outcome.rates]
    assert first.outcome.name == "FOUND"
    assert 3.0 < (first.outcome.capacity or 0) < 7.0
    assert first.seconds > first.runs * 0.3 * 100  # a run's own clock, not this machine's


def test_a_repeat_keeps_to_the_budget_of_live_time() -> None:
    short = repeat(plan_rehearsal(setup(max_time="10m")), 7)
    assert short.outcome.name == "BUDGET_EXHAUSTED"
    assert short.seconds <= 600 + 2 * 60  # the tail of the last run is not booked beforehand


def test_variations_change_window_and_replicates_alone(on: Rehearsal) -> None:
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


@pytest.mark.slow
def test_processes_change_nothing_but_the_time(on: Rehearsal) -> None:
    lines: list[str] = []
    alone = rehearse(on, 4, progress=Progress(lambda event: lines.append(event.text)), processes=1)
    assert alone == rehearse(on, 4, progress=Progress(lambda event: lines.append(event.text)), processes=2)
    assert alone.repeats == 4
    assert alone.plans == ()  # too few repeats to say anything of other windows
    assert "4 times as asked" in lines[0]
    text = "\n".join(rehearsal_sentences(alone))
    assert "SIMULATED" in text
    assert "Outcomes of 4 repeats" in text
    assert [table.title.split()[0] for table in rehearsal_tables(alone)] == ["Where", "What"]


@pytest.mark.parametrize(
    "target", [("http://127.0.0.1:1",), ("emulator:fcfs",), ("virtual:fcfs", "virtual:fcfs")]
)  # fmt: skip
def test_only_virtual_time_is_rehearsed(target: tuple[str, ...]) -> None:
    with pytest.raises(ScenarioError, match="--target virtual:PROFILE"):
        plan_rehearsal(setup(target=target))
