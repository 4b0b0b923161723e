"""`loadgen sweep --rehearse` from the command line, and that a repeat is the very experiment it stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadgen.experiment.prepare import prepare
from loadgen.experiment.rehearse import plan_rehearsal, repeat
from loadgen.scenario.file import load_scenario

ASKED = ["--target", "virtual:fcfs", "--input", "16", "--output", "1", "--slo", "e2e<=250ms", "--rate", "2..14"]
QUICK = [*ASKED, "--width", "30%", "--runs", "2", "--window", "100s", "--min-requests", "100"]


def test_a_repeat_ends_as_the_sweep_on_disk_with_its_seed(loadgen: Any, tmp_path: Path) -> None:
    answer = json.loads(loadgen("sweep", *QUICK, "--seed", "9", "--out", "r", "--json").stdout)
    lines = [json.loads(line) for line in (tmp_path / "r" / "verdicts.jsonl").read_text().splitlines()]
    scenario = load_scenario(
        None,
        {
            "target": ("virtual:fcfs",), "input": "16", "output": "1", "slo": ("e2e<=250ms",), "rate": "2..14",
            "width": "30%", "runs": 2, "window": "100s", "min_requests": 100,
        },
    )  # fmt: skip
    rehearsed = repeat(plan_rehearsal(prepare(scenario)), 9)
    assert rehearsed.outcome.capacity == answer["capacity"]
    assert (rehearsed.runs, rehearsed.requests) == (len(lines), sum(line["requests"] for line in lines))


def test_the_report_comes_as_json_and_as_tables_and_leaves_nothing_behind(loadgen: Any, tmp_path: Path) -> None:
    report = json.loads(loadgen("sweep", *QUICK, "--rehearse", "2", "--require", "3", "--search", "--json").stdout)
    assert report["simulated"] is True
    assert sum(report["outcomes"].values()) == report["repeats"] == 2
    assert sum(report["require"][name] for name in ("met", "refuted", "cannot tell")) == 2
    shown = loadgen("sweep", *QUICK, "--rehearse", "2").stdout
    for words in ("Where λ* lands", "on a live server", "Outcomes of 2 repeats", "SIMULATED, no real server"):
        assert words in shown
    assert not list(tmp_path.iterdir())


def test_a_live_target_and_results_are_refused_in_one_line(loadgen: Any, tmp_path: Path) -> None:
    live = loadgen("sweep", "--target", "http://127.0.0.1:9", "--rehearse", "2", code=2)
    assert live.stderr.count("\n") == 1
    assert "virtual:PROFILE" in live.stderr
    for extra in (["--out", "r"], ["--dry-run"]):
        assert "--rehearse writes no results" in loadgen("sweep", *QUICK, "--rehearse", "2", *extra, code=2).stderr
