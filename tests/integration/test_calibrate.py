"""`loadgen calibrate` against its lean server, a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.results.calibration import Calibration, keep_calibration, stored_calibration
from tests.conftest import RunResult

pytestmark = pytest.mark.realtime


def test_each_step_is_measured_against_what_the_server_wrote(
    loadgen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done: RunResult = loadgen("calibrate", "--seconds", "1", "--highest", "50", "--json")
    told = json.loads(done.stdout)
    assert told["stamps"] == "kernel"
    short, *long = told["steps"]
    assert (short["rate"], short["output_tokens"]) == (100, 8)
    assert (long[0]["rate"], long[0]["output_tokens"]) == (50, 128)
    for step in told["steps"]:
        assert step["requests"] > 50
        assert "did not come whole" not in step["reason"]
        assert step["holds"] == (not step["reason"])
        assert 0 < step["last_token_error_p99_s"] < 0.01  # whatever else the machine does
        assert 0 < step["send_lag_p99_s"] < 1
        assert step["cpu_s_per_request"] > 0
    kept = stored_calibration()
    assert kept is not None
    assert kept.ceiling == told["ceiling"]


def test_a_run_above_half_of_the_ceiling_says_so(
    loadgen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulator: str, unhurried: None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keep_calibration(
        Calibration(
            stamps="kernel", tokens=128, gap_s=0.01, steps=(), ceiling=30.0, server_limited=False,
            cpu_s_per_request=0.01, cpu_s_per_token=0.0,
        )
    )  # fmt: skip
    asked = ("run", "--target", emulator, "--rate", "40", "--slo", "e2e:2s", "--input", "8", "--output", "2")
    done: RunResult = loadgen(
        *asked, "--window", "1s", "--warmup", "0s", "--min-requests", "10", "--out", "r", code=None
    )
    assert "40 requests/s is more than half of what this machine's client can carry" in done.stderr
    assert "30 requests/s of 2 tokens" in done.stderr


def test_a_directory_that_cannot_be_written_is_one_line(
    loadgen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done: RunResult = loadgen("calibrate", "--seconds", "1", "--highest", "50", "--quiet", code=2)
    assert done.stderr.count("\n") == 1
    assert "cache" in done.stderr
