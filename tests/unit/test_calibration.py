"""What was calibrated, kept for later, and what a sweep says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.experiment.calibrate import strain
from loadgen.results.calibration import Calibration, calibration_file, keep_calibration, stored_calibration

FOUND = Calibration(
    stamps="kernel", tokens=128, gap_s=0.01, steps=(), ceiling=400.0, server_limited=False, cpu_s_per_request=0.0005,
    cpu_s_per_token=0.00001,
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_it_is_kept_for_this_machine_alone() -> None:
    assert stored_calibration() is None
    keep_calibration(FOUND)
    assert stored_calibration() == FOUND
    text = calibration_file().read_text()
    calibration_file().write_text(text.replace('"cores":', '"cores": 1, "was":'))
    assert stored_calibration() is None
    calibration_file().write_text(text[:40])
    assert stored_calibration() is None


def test_longer_answers_lower_the_ceiling() -> None:
    assert FOUND.ceiling_of(128) == pytest.approx(400)
    assert FOUND.ceiling_of(8) == pytest.approx(400 * 1780 / 580)
    assert FOUND.ceiling_of(1000) == pytest.approx(400 * 1780 / 10_500)
    assert replace(FOUND, ceiling=None).ceiling_of(8) is None


def test_a_rate_above_half_of_the_ceiling_is_named() -> None:
    assert strain(None, rate=10_000, output_tokens=128) == ""
    assert strain(FOUND, rate=200, output_tokens=128) == ""
    said = strain(FOUND, rate=201, output_tokens=128)
    assert said.startswith("201 requests/s is more than half of what this machine's client can carry")
    assert "400 requests/s of 128 tokens" in said
    assert strain(FOUND, rate=201, output_tokens=8) == ""
    assert strain(FOUND, rate=400, output_tokens=128, processes=2) == ""
    assert "for each of 2 processes" in strain(FOUND, rate=401, output_tokens=128, processes=2)
    assert strain(replace(FOUND, server_limited=True), rate=10_000, output_tokens=128) == ""
    assert "no rate of 128 tokens" in strain(replace(FOUND, ceiling=None), rate=2, output_tokens=128)
