"""`loadgen gate` of one rate, on a queue whose capacity is known."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loadgen as library
from tests.conftest import RunResult
from tests.fakes.cli import LOADGEN

Loadgen = Callable[..., RunResult]
# 2/s always passes this SLO and 14/s never does (pass probabilities above 0.999, below 0.001)
SURE = ("--target", "virtual:fcfs", "--input", "16", "--output", "1", "--slo", "e2e<=250ms", "--window", "300s")


def ledger(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "verdicts.jsonl").read_text().splitlines()]


def test_a_kept_rate_is_proved_by_fresh_runs_at_that_rate_alone(loadgen: Loadgen, tmp_path: Path) -> None:
    done = loadgen("gate", *SURE, "--rate", "2", "--runs", "3", "--out", "r")
    assert done.stdout.splitlines()[0] == (
        "KEPT: 2 requests/s keeps the SLO: 3 of 3 fresh runs passed; at 95 % confidence at least 37% of such runs "
        "would pass."
    )
    runs = [line["run"] for line in ledger(tmp_path / "r")]
    assert {run["rate"] for run in runs} == {2.0}
    assert [run["kind"] for run in runs if run["kind"] != "sentinel"] == ["prove"] * 3
    assert loadgen("show", "r").stdout == done.stdout
    answer = json.loads(loadgen("show", "r", "--json").stdout)
    assert (answer["requirement"]["verdict"], answer["capacity"]) == ("KEPT", 2.0)


def test_it_ends_at_the_first_failure_once_that_was_repeated(loadgen: Loadgen, tmp_path: Path) -> None:
    done = loadgen("gate", *SURE, "--rate", "14", "--runs", "5", "--out", "r", code=1)
    assert done.stdout.startswith("BROKEN: 14 requests/s does not keep the SLO: ")
    assert "fresh run 1 of 5 showed it." in done.stdout.splitlines()[0]
    lines = [line for line in ledger(tmp_path / "r") if line["run"]["kind"] != "sentinel"]
    assert [line["run"]["kind"] for line in lines] == ["prove", "recheck"]
    assert lines[0]["verdict"]["attainment_is_bound"] is True  # it was not run to its end


@pytest.mark.parametrize("command", ["gate", "sweep"])
def test_too_few_requests_cannot_tell(command: str, loadgen: Loadgen) -> None:
    rate = "--rate" if command == "gate" else "--require"
    done = loadgen(command, *SURE, rate, "2", "--runs", "2", "--min-requests", "600", code=4)
    assert done.stdout.startswith("CANNOT TELL whether 2 requests/s keeps the SLO: UNDECIDED: ")


def test_a_budget_ends_it_and_more_of_it_gives_the_answer_of_one_go(loadgen: Loadgen, tmp_path: Path) -> None:
    asked = ("gate", *SURE, "--rate", "2", "--runs", "3")
    whole = loadgen(*asked, "--out", "whole", "--quiet").stdout
    part = loadgen(*asked, "--out", "part", "--max-requests", "1500", "--quiet", code=4).stdout
    assert part.startswith("CANNOT TELL whether 2 requests/s keeps the SLO: BUDGET_EXHAUSTED: --max-requests 1500")
    assert "Go on with: loadgen gate --resume part with more of it" in part
    assert loadgen("gate", "--resume", "part", "--max-requests", "100000", "--quiet").stdout == whole


def test_a_required_rate_alone_is_a_gate_and_with_search_the_rest_comes_after(loadgen: Loadgen, tmp_path: Path) -> None:
    asked = ("sweep", *SURE, "--rate", "2..14", "--runs", "2", "--width", "50%", "--require", "2.5")
    loadgen(*asked, "--out", "alone")
    assert {line["run"]["rate"] for line in ledger(tmp_path / "alone")} == {2.5}
    searched = loadgen(*asked, "--search", "--out", "all").stdout
    assert searched.startswith("KEPT: 2.5 requests/s keeps the SLO")
    assert "FOUND: capacity is" in searched
    assert len({line["run"]["rate"] for line in ledger(tmp_path / "all")}) > 3
    # a rate beyond the default range needs no --rate, where nothing else is tested
    assert loadgen("sweep", *SURE, "--require", "40", "--runs", "1", code=1).stdout.startswith("BROKEN: 40 requests/s")


def test_what_is_asked_for_does_not_change_on_the_way(loadgen: Loadgen) -> None:
    loadgen("sweep", *SURE, "--require", "2", "--runs", "1", "--out", "r")
    for option in (("--require", "3"), ("--search",)):
        refused = loadgen("sweep", "--resume", "r", *option, code=2).stderr
        assert "not the same experiment" in refused
        assert refused.count("\n") == 1
    assert "holds the results of loadgen sweep" in loadgen("gate", "--resume", "r", code=2).stderr
    loadgen("gate", *SURE, "--rate", "2", "--runs", "1", "--out", "g")
    assert "go on with loadgen gate --resume g" in loadgen("sweep", "--resume", "g", code=2).stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", "2..4"), "--rate 2..4: a gate tests one rate, such as --rate 6"),
        (("--rate", "2,4"), "--rate 2,4: a gate tests one rate"),
        ((), "a gate tests one rate, such as --rate 6"),
        (("--rate", "x"), "--rate: rate 'x': 'x' is not a number"),
        (("--rate", "2", "--explore", "2"), "No such option: --explore"),
        (("--resume", "r", "--out", "s"), "drop --scenario, --out and --baseline"),
        (("--resume", "nothere"), "holds no experiment"),
    ],
)
def test_bad_input_is_one_line(options: tuple[str, ...], said: str, loadgen: Loadgen, tmp_path: Path) -> None:
    refused = loadgen("gate", *SURE, *options, code=2).stderr
    assert said in refused
    assert refused.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_placeholder_slo_decides_nothing(loadgen: Loadgen) -> None:
    assert "--slo ttft:800ms" in loadgen("gate", "--target", "virtual:mm1", "--rate", "2", code=2).stderr


def test_dry_run_says_what_a_kept_rate_costs(loadgen: Loadgen, tmp_path: Path) -> None:
    said = loadgen("gate", *SURE, "--rate", "2", "--runs", "4", "--dry-run").stdout
    assert said.startswith("plan: tests 2/s and no other rate; ")
    assert "if the rate keeps the SLO: 6 runs, " in said  # and two sentinels
    costs = json.loads(loadgen("gate", *SURE, "--rate", "2", "--runs", "4", "--dry-run", "--json").stdout)
    assert costs["expected"]["runs"] == 6
    assert costs["worst"]["runs"] > 2 * 4 + 2
    assert not list(tmp_path.iterdir())


def test_a_scenario_may_name_the_rate_or_require_it(loadgen: Loadgen, tmp_path: Path) -> None:
    head = 'target = "virtual:fcfs"\ninput = "16"\noutput = "1"\nslo = ["e2e:250ms"]\nwindow = "300s"\nruns = 1\n'
    (tmp_path / "rate.toml").write_text(head + 'rate = "2"\n')
    (tmp_path / "require.toml").write_text(head + "require = 2\nsearch = true\n")
    for name in ("rate", "require"):
        done = loadgen("gate", "--scenario", f"{name}.toml", "--out", name)
        assert done.stdout.startswith("KEPT: 2 requests/s")
    (tmp_path / "search.toml").write_text(head + "search = true\n")
    assert (
        "search says what comes after a required rate" in loadgen("sweep", "--scenario", "search.toml", code=2).stderr
    )


def test_ctrl_c_keeps_sealed_runs_and_names_how_to_go_on(loadgen: Loadgen, tmp_path: Path) -> None:
    asked = [*LOADGEN, "gate", *SURE, "--rate", "2", "--runs", "400", "--out", "r", "--quiet"]
    process = subprocess.Popen(asked, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    path, deadline = tmp_path / "r" / "verdicts.jsonl", time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= 2) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert "Go on with: loadgen gate --resume r" in out
    assert "CANNOT TELL whether 2 requests/s keeps the SLO: ABORTED" in out


def test_the_library_has_the_same_gate(tmp_path: Path) -> None:
    scenario = library.Scenario(
        target="virtual:fcfs", input="16", output="1", slo=("e2e:250ms",), window="300s", runs=2
    )
    with pytest.raises(library.ScenarioError, match="a gate tests one rate"):
        library.gate(scenario, tmp_path / "r")
    found = library.gate_sync(scenario.model_copy(update={"rate": "2"}), tmp_path / "r")
    requirement = found.answer.requirement
    assert requirement is not None
    assert (found.kind, requirement.verdict, requirement.rate) == ("gate", "KEPT", 2.0)
    assert library.load(tmp_path / "r").answer == found.answer
