"""The library: its names, what its functions give, and that the command line uses nothing else."""

from __future__ import annotations

import ast
import asyncio
import runpy
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import loadgen
from analysis.judge import judge_run

ROOT = Path(__file__).parents[2]
NAMES = {
    # what is asked for
    "Scenario", "load_scenario", "resumed_scenario", "prepare", "Setup", "forecast", "Forecast",
    # what measures
    "sweep", "sweep_sync", "run", "run_sync", "replay", "replay_sync", "rehearse", "rehearse_sync", "check", "Checked",
    "Survey", "Work", "calibrate", "Calibration",
    # what happens meanwhile
    "ProgressEvent", "Note", "RunStarted", "Tick", "RunSealed", "RunLabel",
    # what was measured
    "load", "Experiment", "LedgerLine", "ReplayedRun",
    # gates
    "gate", "gate_sync", "prepare_gate", "prepare_gate_against", "resumed_gate", "GateSetup", "forecast_gate",
    "GateForecast",
    # comparisons
    "compare", "compare_sync", "Compared", "load_compared", "load_comparison", "prepare_comparison", "ComparisonSetup",
    "ComparisonSettings", "resumed_comparison", "rehearse_comparison", "ComparisonRehearsal", "forecast_comparison",
    "ComparisonForecast",
    # what goes wrong
    "LoadgenError", "UsageError", "ScenarioError", "ResultsError", "TargetError", "TargetUnfit", "ClientLimited",
    "Aborted",
}  # fmt: skip
INSIDE = ("experiment", "results", "send", "target", "plan", "workload")
QUICK: dict[str, Any] = {"target": "virtual:mm1", "window": "60s", "slo": ("e2e:200ms",), "min_requests": 50}


def quick(**more: Any) -> loadgen.Scenario:
    return loadgen.Scenario(**QUICK | {"rate": "4,8", "runs": 2} | more)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> loadgen.Experiment:
    directory = tmp_path_factory.mktemp("swept") / "r"
    loadgen.sweep_sync(quick(events="all", all_runs=True), directory)
    return loadgen.load(directory)


def test_the_names_are_these_and_all_of_them_are_there() -> None:
    assert set(loadgen.__all__) == NAMES
    assert all(getattr(loadgen, name) is not None for name in NAMES)
    assert set(dir(loadgen)) > NAMES
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        loadgen.sweeep  # noqa: B018


def test_what_is_public_says_what_it_does() -> None:
    assert not [name for name in NAMES - {"ProgressEvent"} if not (getattr(loadgen, name).__doc__ or "").strip()]


def test_the_packages_are_marked_as_typed() -> None:
    assert all((ROOT / name / "py.typed").is_file() for name in ("loadgen", "analysis", "traces"))


def test_the_command_line_uses_nothing_but_the_library() -> None:
    wrong = []
    for path in sorted((ROOT / "loadgen" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{path.name}: {name}" for name in names if name.split(".")[:1] == ["loadgen"]
                      and name.split(".")[1:2] and name.split(".")[1] in INSIDE]  # fmt: skip
    assert not wrong


async def test_events_come_in_order_and_the_result_after_them(tmp_path: Path) -> None:
    called: list[loadgen.ProgressEvent] = []
    work = loadgen.sweep(quick(), tmp_path / "r", progress=called.append)
    seen = [event async for event in work]
    measured = await work
    assert seen == called
    kinds = [type(event) for event in seen if not isinstance(event, loadgen.Note | loadgen.Tick)]
    assert kinds == [loadgen.RunStarted, loadgen.RunSealed] * len(measured.runs)
    verdicts = [event.verdict.status for event in seen if isinstance(event, loadgen.RunSealed)]
    assert verdicts == list(measured.runs["status"])
    assert any("virtual:mm1: ready" in event.text for event in seen if isinstance(event, loadgen.Note))


async def test_a_sweep_that_is_stopped_keeps_its_runs_and_goes_on(tmp_path: Path) -> None:
    work = loadgen.sweep(quick(), tmp_path / "r")
    async for event in work:
        if isinstance(event, loadgen.RunSealed):
            break
    measured = await work
    assert measured.answer.outcome == "ABORTED"
    assert 1 <= len(measured.runs) < 4
    asked = loadgen.resumed_scenario(tmp_path / "r", {})
    whole = await loadgen.sweep(asked, tmp_path / "r", resume=True)
    assert whole.answer.outcome != "ABORTED"
    assert list(whole.runs["run"])[: len(measured.runs)] == list(measured.runs["run"])


async def test_a_run_stopped_before_it_begins_has_no_verdict(tmp_path: Path) -> None:
    work = loadgen.run(quick(rate="4"), tmp_path / "r")
    work.stop()
    with pytest.raises(loadgen.Aborted):
        await work


async def test_cancelling_whoever_waits_cancels_the_work(tmp_path: Path) -> None:
    work = loadgen.run(quick(target="http://127.0.0.1:9", rate="4"), tmp_path / "r")
    waiting = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_what_cannot_be_measured_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(loadgen.ScenarioError, match="one rate"):
        loadgen.run(quick(rate="2..18"), tmp_path / "r")
    with pytest.raises(loadgen.ScenarioError, match="--closed"):
        loadgen.sweep(quick(closed=2), tmp_path / "r")
    with pytest.raises(loadgen.ScenarioError, match="trace:FILE"):
        loadgen.replay(quick(), tmp_path / "r")
    with pytest.raises(loadgen.ScenarioError, match="virtual:PROFILE"):
        loadgen.rehearse(quick(target="http://127.0.0.1:9"), 2)
    assert not (tmp_path / "r").exists()


def test_the_rates_are_a_row_each(swept: loadgen.Experiment) -> None:
    assert list(swept.rates["rate"]) == [4.0, 8.0]
    for row, told in zip(swept.rates.to_dict("records"), swept.answer.rates, strict=True):
        assert row["status"] == told.check
        assert [row["attainment_min"], row["attainment_max"]] == list(told.attainment)
        assert row["e2e_s_p95"] == told.worst["e2e_s"]["p95"]


def test_the_runs_are_those_of_the_ledger_and_their_requests_judge_them_again(swept: loadgen.Experiment) -> None:
    assert list(swept.runs["run"]) == [run.key for run in swept.answer.runs]
    assert list(swept.runs["attainment"]) == [run.attainment for run in swept.answer.runs]
    assert callable(judge_run)
    for run in swept.runs.to_dict("records"):
        cohort = swept.requests(run=run["run"], cohort=True)
        assert set(cohort["run"]) == {run["run"]}
        assert len(cohort) == run["cohort"]
        late = (cohort["e2e_s"] > 0.2) | (cohort["outcome"] != "ok")
        assert late.sum() == run["misses"]


def test_requests_and_events_are_of_the_runs_asked_for(swept: loadgen.Experiment) -> None:
    at_four = swept.requests(rate=4.0, columns=["index", "ttft_s"])
    assert list(at_four.columns) == ["run", "rate", "index", "ttft_s"]
    assert set(at_four["run"]) == set(swept.runs.loc[swept.runs["rate"] == 4.0, "run"])
    assert len(swept.requests()) == swept.runs["requests"].sum()
    one = swept.runs["run"][0]
    events = swept.events(run=one)
    requests = swept.requests(run=one)
    assert len(events) == requests["token_events"].sum()
    assert list(events.columns) == ["run", "rate", "index", "at_ns", "tokens"]


def test_what_is_not_there_is_refused_in_a_line_that_says_what_is(swept: loadgen.Experiment, tmp_path: Path) -> None:
    with pytest.raises(loadgen.ResultsError, match=r"no sealed run of rate 5.*its rates are 4, 8"):
        swept.requests(rate=5.0)
    with pytest.raises(loadgen.ResultsError, match="no column tft_s; it has index"):
        swept.requests(columns=["tft_s"])
    with pytest.raises(loadgen.ResultsError, match="no experiment"):
        loadgen.load(tmp_path)


def test_a_frame_is_read_when_it_is_asked_for(swept: loadgen.Experiment) -> None:
    (swept.directory / "verdicts.jsonl").rename(swept.directory / "away")
    try:
        later = loadgen.load(swept.directory)
        assert later.answer.outcome
        with pytest.raises(loadgen.ResultsError):
            later.runs  # noqa: B018
    finally:
        (swept.directory / "away").rename(swept.directory / "verdicts.jsonl")


def test_a_single_run_has_runs_and_no_capacity(tmp_path: Path) -> None:
    measured = loadgen.run_sync(quick(rate="4"), tmp_path / "r")
    assert list(measured.runs["status"]) == ["PASS"]
    assert isinstance(measured.requests(), pd.DataFrame)
    with pytest.raises(loadgen.ResultsError, match="a single run has no answer"):
        measured.answer  # noqa: B018


def test_a_replay_is_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("timestamp,input,output\n" + "".join(f"{at / 4},16,4\n" for at in range(240)))
    scenario = loadgen.Scenario(
        **QUICK | {"window": "120s"}, arrivals=f"trace:{trace}", map="timestamp=timestamp,input=input,output=output",
        unit="s", warmup="0s",
    )  # fmt: skip
    measured = loadgen.replay_sync(scenario, tmp_path / "r")
    assert measured.kind == "replay"
    assert len(measured.requests()) == 240
    assert measured.ledger[0].replay.schedule_sha256


async def test_a_rehearsal_says_the_same_on_a_loop_and_without_one() -> None:
    notes: list[loadgen.ProgressEvent] = []
    there = await loadgen.rehearse(quick(), 2, progress=notes.append)
    here = await asyncio.to_thread(loadgen.rehearse_sync, quick(), 2)
    assert there == here
    assert there.repeats == 2
    assert isinstance(notes[0], loadgen.Note)


def test_the_examples_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def example(name: str) -> str:
        script = str(ROOT / "examples" / name)
        monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "r")])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    assert "FOUND: 7.21" in example("find_capacity.py")
    read = example("read_results.py")
    assert "attainment_min" in read
    assert "0.95" in read
