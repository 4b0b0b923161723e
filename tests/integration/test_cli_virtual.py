"""The command line from end to end against a server in virtual time, whose capacity is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loadgen.results.events import read_events
from tests.fakes.cli import LOADGEN, Forks

# on the simulated queue 2/s always passes this SLO and 14/s never does (pass probabilities above 0.999, below 0.001)
SURE = ["--target", "virtual:fcfs", "--input", "16", "--output", "1", "--slo", "e2e<=250ms", "--window", "300s"]


def ledger(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "verdicts.jsonl").read_text().splitlines()]


def test_a_sweep_finds_the_bracket_of_a_known_queue_and_show_prints_it_again(loadgen: Any, tmp_path: Path) -> None:
    done = loadgen("sweep", *SURE, "--rate", "2..14", "--runs", "3", "--width", "20%", "--out", "r", "--json")
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "FOUND"
    low, high = answer["bracket"]
    assert low == answer["capacity"]
    # the queue's long-run 95 % rate is 5.9/s; the floor of three windows of 300 s lies below it
    assert 3.3 < low < 6.0 < high * 1.2
    assert answer["conditions"]["simulated"] is True
    assert json.loads((tmp_path / "r" / "capacity.json").read_text()) == answer
    shown = loadgen("show", "r", "--buckets").stdout
    assert "FOUND: capacity is" in shown
    assert "SIMULATED" in shown
    assert "in 16, out 1" in shown


def test_the_same_seed_gives_the_same_answer_and_another_gives_other_schedules(loadgen: Any, tmp_path: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        loadgen("sweep", *SURE, "--rate", "2,14", "--runs", "2", "--seed", seed, "--out", name)
    one, two, other = (ledger(tmp_path / name) for name in "abc")
    hashes = [[line["schedule_sha256"] for line in lines] for lines in (one, two, other)]
    assert hashes[0] == hashes[1]
    assert not set(hashes[0]) & set(hashes[2])
    assert [line["verdict"] for line in one] == [line["verdict"] for line in two]


def test_virtual_time_keeps_token_events_only_where_they_are_asked_for(loadgen: Any, tmp_path: Path) -> None:
    asked = ["run", "--target", "virtual:llama8b-80gb", "--rate", "4", "--window", "120s", "--slo", "e2e<=60s"]
    for name, option in (("default", []), ("all", ["--events", "all"]), ("sample", ["--events", "sample"])):
        loadgen(*asked, *option, "--out", name)
    lines = [ledger(tmp_path / name)[0]["verdict"] for name in ("default", "all", "sample")]
    assert lines[0] == lines[1] == lines[2]
    kept = {name: next((tmp_path / name).rglob("run.json")).parent for name in ("default", "all", "sample")}
    assert not (kept["default"] / "events.parquet").exists()
    requests = pd.read_parquet(kept["all"] / "requests.parquet")
    assert len(read_events(kept["all"])) == requests["token_events"].sum() > 50_000
    assert len(read_events(kept["sample"])) < 0.15 * requests["token_events"].sum()
    assert "passes" in loadgen("emulate", "llama8b-80gb", "--fit", "all").stdout
    for name, said in (("default", "kept no token events"), ("sample", "token events were kept")):
        refused = loadgen("emulate", "llama8b-80gb", "--fit", name, code=2).stderr.splitlines()
        assert len(refused) == 1
        assert said in refused[0]
        assert "measure again with --events all" in refused[0]


@pytest.mark.parametrize(("more", "failures"), [([], 1), (["--all-runs"], 2)])
def test_a_table_searches_nothing_and_ends_a_rate_at_its_first_failure_unless_asked(
    loadgen: Any, tmp_path: Path, more: list[str], failures: int
) -> None:
    done = loadgen("sweep", *SURE, "--rate", "2,14", "--runs", "2", *more, "--out", "r")
    lines = [line for line in ledger(tmp_path / "r") if line["run"]["kind"] != "sentinel"]
    assert {line["run"]["kind"] for line in lines} == {"explore"}
    assert [(line["run"]["rate"], line["verdict"]["status"]) for line in lines] == [
        *[(2, "PASS")] * 2, *[(14, "FAIL")] * failures,
    ]  # fmt: skip
    assert not any(line["verdict"]["attainment_is_bound"] for line in lines)
    assert "TABULATED: 2 requests/s is the largest tested rate that passed" in done.stdout


@pytest.mark.parametrize(
    ("rate", "require", "code"),
    [("2..2.5", "2.2", 0), ("2..14", "13", 1), ("13..14", "13.5", 1), ("2", "2", 0), ("14", "14", 1), ("2,14", "2", 0)],
)
def test_a_requirement_is_met_refuted_or_unknown(
    loadgen: Any, tmp_path: Path, rate: str, require: str, code: int
) -> None:
    loadgen(
        "sweep", *SURE, "--rate", rate, "--runs", "1", "--width", "30%", "--require", require, "--search", code=code
    )


def test_a_required_rate_is_proved_by_fresh_runs_before_anything_else(loadgen: Any, tmp_path: Path) -> None:
    asked = ["--rate", "2..14", "--runs", "3", "--width", "50%", "--require", "2.3", "--search"]
    loadgen("sweep", *SURE, *asked, "--max-requests", "4500", "--out", "r", code=0)  # enough for 2.3/s, not for 14
    answer = json.loads((tmp_path / "r" / "capacity.json").read_text())
    assert answer["outcome"] == "BUDGET_EXHAUSTED"
    assert {line["verdict"]["status"] for line in ledger(tmp_path / "r")} == {"PASS"}  # the short sentinel too
    fresh = [line["run"] for line in ledger(tmp_path / "r") if line["run"]["kind"] == "prove"]
    assert [(run["rate"], run["replicate"], run["block"]) for run in fresh] == [(2.3, r, 0) for r in range(3)]


def test_a_sweep_that_the_client_limited_goes_on_when_it_is_resumed(loadgen: Any, tmp_path: Path) -> None:
    loadgen("sweep", *SURE, "--rate", "2", "--runs", "1", "--out", "r")
    path = tmp_path / "r" / "verdicts.jsonl"
    first = ledger(tmp_path / "r")[0]
    late = {"check": "send_lag_p99", "blame": "client", "severity": "block", "value": 1, "limit": 0, "text": "late"}
    first["verdict"] |= {"status": "INVALID", "findings": [late]}
    again = json.loads(json.dumps(first))
    again["run"] |= {"attempt": 1, "key": first["run"]["key"] + "-attempt=1"}
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, again)))
    (tmp_path / "r" / "capacity.json").unlink()
    assert "CLIENT_LIMITED" in loadgen("show", "r", "--json").stdout
    assert "TABULATED" in loadgen("sweep", "--resume", "r").stdout
    assert len(ledger(tmp_path / "r")) > 2


def test_a_budget_ends_it_with_the_bracket_so_far_and_more_of_it_goes_on(loadgen: Any, tmp_path: Path) -> None:
    asked = [*SURE, "--rate", "2..14", "--runs", "2", "--width", "50%"]
    done = loadgen("sweep", *asked, "--max-requests", "5000", "--out", "r", code=4)
    assert "BUDGET_EXHAUSTED: no capacity is claimed: --max-requests 5000" in done.stdout
    before = ledger(tmp_path / "r")
    assert sum(line["requests"] for line in before) <= 5000
    done = loadgen("sweep", "--resume", "r", "--max-requests", "1000000")
    assert "FOUND" in done.stdout
    assert ledger(tmp_path / "r")[: len(before)] == before


def test_resuming_another_experiment_is_refused_naming_the_difference(loadgen: Any, tmp_path: Path) -> None:
    loadgen("sweep", *SURE, "--rate", "2,3", "--runs", "1", "--out", "r")
    before = (tmp_path / "r" / "verdicts.jsonl").read_bytes()
    done = loadgen("sweep", "--resume", "r", "--window", "200s", code=2)
    assert "not the same experiment (window: 300.0s → 200.0s)" in done.stderr
    assert (tmp_path / "r" / "verdicts.jsonl").read_bytes() == before


def test_kill_9_amid_a_sweep_loses_no_sealed_run(loadgen: Any, tmp_path: Path) -> None:
    asked = [*SURE, "--rate", "2,14", "--runs", "12", "--out", "r"]
    whole = loadgen("sweep", *asked[:-1], "whole")
    assert "TABULATED" in whole.stdout
    process = subprocess.Popen(
        [*LOADGEN, "sweep", *asked], cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    path = tmp_path / "r" / "verdicts.jsonl"
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= 5) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = path.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    sealed = before.count(b"\n")
    assert 5 <= sealed < 24, "the sweep ended before it could be killed"
    tables = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*.parquet")}
    loadgen("sweep", "--resume", "r")
    assert path.read_bytes().startswith(before)
    kept = {line["run"]["key"] for line in ledger(tmp_path / "r")[:sealed]}
    for table, content in tables.items():
        if table.parent.relative_to(tmp_path / "r" / "runs" / "main").as_posix() in kept:
            assert table.read_bytes() == content
    resumed, complete = ledger(tmp_path / "r"), ledger(tmp_path / "whole")
    assert [(line["run"], line["verdict"]) for line in resumed] == [(line["run"], line["verdict"]) for line in complete]


def beginning(of: int) -> bytes:
    """Ten bytes of a pipe, whose reader then leaves."""
    with os.fdopen(of, "rb", buffering=0) as reader:
        return reader.read(10)


def test_a_pipe_whose_reader_left_is_no_traceback(loadgen: Any, forked: Forks, tmp_path: Path) -> None:
    loadgen("sweep", *SURE, "--rate", "2,3", "--runs", "1", "--out", "r")
    reading, writing = os.pipe()
    with ThreadPoolExecutor() as pool, os.fdopen(writing, "wb") as output:
        read = pool.submit(beginning, reading)
        done = forked("show", "r", "--json", cwd=tmp_path, stdout=output.fileno())
    assert b"Traceback" not in done.stderr
    assert len(read.result()) == 10


def test_a_narrow_terminal_folds_and_loses_nothing(loadgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loadgen("sweep", *SURE, "--rate", "2,14", "--runs", "1", "--out", "r")
    wide = loadgen("show", "r").stdout
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    narrow = loadgen("show", "r").stdout
    assert max(map(len, wide.splitlines())) > 60
    assert "TABULATED" in narrow
    assert "FAIL" in narrow


def test_a_requirement_outside_the_range_is_refused(loadgen: Any) -> None:
    done = loadgen("sweep", *SURE, "--rate", "2..4", "--require", "9", "--search", code=2)
    assert "--require 9 is not among the rates to be tested, 2..4" in done.stderr


def test_a_window_too_short_for_anything_to_pass_is_refused_before_a_request_is_sent(loadgen: Any) -> None:
    done = loadgen("sweep", *SURE, "--rate", "2..14", "--window", "30s", code=2)
    assert "lengthen --window to about 1m 56s" in done.stderr  # 232 requests, and 200 of them at two deviations less
    asked = ("--rate", "2..14", "--window", "1m56s", "--dry-run")
    assert "warning" not in loadgen("sweep", *SURE, *asked).stdout  # the advice is enough
    assert (
        "warning: at 2 requests/s" in loadgen("sweep", *SURE, "--rate", "2..14", "--window", "100s", "--dry-run").stdout
    )


def test_a_gateway_that_hides_the_queue_from_the_server_is_caught_by_its_rising_work(
    loadgen: Any, tmp_path: Path
) -> None:
    # 22/s on a server of 19.2/s, eight at a time: the server never sees more than eight, the users' queue only grows
    asked = ["--target", "virtual:fcfs", "--input", "16", "--output", "1", "--window", "300s", "--slo", "e2e<=1h"]
    done = loadgen(
        "sweep",
        *asked,
        "--rate",
        "10,22",
        "--runs",
        "3",
        "--all-runs",
        "--max-concurrency",
        "8",
        "--out",
        "r",
        "--json",
    )
    low, high = json.loads(done.stdout)["rates"]
    assert (low["check"], high["check"]) == ("PASS", "FAIL")
    assert "outstanding work rises" in high["reason"]
    requests = pd.concat(pd.read_parquet(path) for path in (tmp_path / "r").rglob("rate=22*/**/requests.parquet"))
    served = requests[requests["outcome"] == "ok"]
    assert ((served["admitted_ns"] - served["released_ns"]).max()) > 5e9
    assert served["client_queue_s"].max() > 5  # the wait for a slot is the user's


def test_the_user_reads_of_a_cohort_by_count(loadgen: Any, tmp_path: Path) -> None:
    shape = ["--target", "virtual:fcfs", "--input", "16", "--output", "1", "--slo", "e2e<=250ms"]
    done = loadgen("sweep", *shape, "--rate", "2,14", "--runs", "2", "--cohort", "500", "--out", "r")
    assert "runs of 500 requests" in done.stdout
    cohorts = {line["run"]["kind"]: line["verdict"]["cohort"] for line in ledger(tmp_path / "r")}
    assert cohorts == {"sentinel": 200, "explore": 500}  # a sentinel is just long enough for 200
