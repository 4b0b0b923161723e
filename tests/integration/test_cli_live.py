"""The command line against real HTTP servers: the emulator, and servers that are none of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from loadgen.results.events import read_events
from tests.fakes.cli import LOADGEN
from tests.fakes.pages import HTML, JSON, Reply, paged
from tests.fakes.server import in_thread

pytestmark = pytest.mark.realtime

SHORT = ["--input", "16", "--output", "4", "--slo", "e2e<=10s", "--window", "750ms", "--warmup", "250ms",
         "--min-requests", "20"]  # fmt: skip
SECRET = "sk-very-secret-4711"


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((200, HTML, b"<html><body>\x1b[31mWelcome to nginx</body></html>"), "web page"),
        ((401, JSON, b'{"error":{"message":"bad key"}}'), "401"),
        ((404, JSON, b'{"detail":"Not Found"}'), "404"),
        ((200, JSON, b'{"data":[{"id":"other"}]}'), "other"),
    ],
)
def test_a_server_that_is_not_the_one_meant_is_refused_with_nothing_written(
    tmp_path: Path, loadgen: Any, answer: Reply, complaint: str
) -> None:
    asked = ("run", "--model", "mine", "--rate", "20", *SHORT, "--ready-timeout", "1s", "--quiet")
    with in_thread(paged(lambda *_: answer)) as url:
        done = loadgen(*asked, "--target", url, code=3)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert complaint in done.stderr
    assert "\x1b" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_target_is_one_line_and_exit_code_3(tmp_path: Path, loadgen: Any) -> None:
    asked = ["run", "--target", "http://127.0.0.1:9", "--rate", "20", *SHORT, "--ready-timeout", "300ms", "--quiet"]
    assert "connection refused" in loadgen(*asked, code=3).stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unhurried")
def test_a_run_over_http_records_every_request_and_keeps_the_key_to_itself(
    loadgen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", SECRET)
    ran = loadgen(
        "run", "--target", "emulator:fcfs-fast", "--api-key-env", "THE_KEY", "--rate", "120", *SHORT, "--out", "r",
        "--json", "--events", "all",
    )  # fmt: skip
    line = json.loads(ran.stdout)
    requests = pd.read_parquet(next(Path("r").rglob("requests.parquet")))
    events = read_events(next(Path("r").rglob("events.parquet")).parent)
    done = requests[requests["outcome"] == "ok"]
    assert line["verdict"]["outcomes"].get("ok", 0) == line["verdict"]["cohort"] >= 60
    assert (done["input_tokens"] == 16).all()
    assert (done["output_tokens"] == 4).all()
    assert (done["scheduled_ns"] <= done["sent_ns"]).all()
    assert (done["sent_ns"] < done["first_token_ns"]).all()
    assert set(events["index"]) == set(done["index"])
    assert len(events) == requests["token_events"].sum()
    for path in Path("r").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in ran.stdout + ran.stderr
    assert not list(Path("r").rglob("journal.jsonl"))


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_a_gate_over_http_meets_the_requests_of_its_baseline_and_sees_a_much_slower_server(loadgen: Any) -> None:
    asked = ("--rate", "20", "--runs", "6", "--quiet", "--out", "one")
    loadgen("gate", "--target", "emulator:fcfs-fast", *SHORT[:-1], "5", *asked)
    slower = "emulator:fcfs-fast?service.times_ms=[20]&service.shares=[1.0]"
    gated = loadgen("gate", "--baseline", "one", "--target", slower, "--quiet", "--out", "two", code=1)
    assert gated.stdout.startswith("WORSE: ")
    before, after = (
        [json.loads(line) for line in Path(name, "verdicts.jsonl").read_text().splitlines()] for name in ("one", "two")
    )
    made = [line for line in before if line["run"]["kind"] == "prove"]
    for old, new in zip(made, after, strict=True):
        assert new["run"]["seed"] == old["run"]["seed"]
        assert [new[key] for key in ("schedule_sha256", "workload_sha256", "window")] == [
            old[key] for key in ("schedule_sha256", "workload_sha256", "window")
        ]


def test_ctrl_c_ends_in_order_with_what_was_measured(tmp_path: Path) -> None:
    asked = ["sweep", "--target", "emulator:fcfs-fast", "--rate", "80,100,120", "--runs", "3", *SHORT, "--out", "r"]
    process = subprocess.Popen(
        [*LOADGEN, *asked], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    path = tmp_path / "r" / "verdicts.jsonl"
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 5, err
    assert "ABORTED: no capacity is claimed: stopped by the user" in out
    assert "Traceback" not in err
    assert json.loads((tmp_path / "r" / "capacity.json").read_text())["outcome"] == "ABORTED"
    assert path.read_bytes().endswith(b"\n")


def test_a_full_disk_ends_the_run_with_one_line(tmp_path: Path) -> None:
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000));"
        "from loadgen.cli import main; main()"
    )
    asked = ["run", "--target", "emulator:fcfs-fast", "--rate", "120", *SHORT, "--out", "r", "--quiet"]
    # not measured: the limit would cut what coverage.py writes at the end too
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", script, *asked], cwd=tmp_path, capture_output=True, text=True, env=unmeasured, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "File too large" in done.stderr
    assert (tmp_path / "r" / "verdicts.jsonl").read_bytes() == b""
    assert not list((tmp_path / "r").rglob("*.unfinished"))
