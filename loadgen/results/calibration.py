"""What `loadgen calibrate` found of this machine, kept in the user's cache directory for later sweeps.

The file is `loadgen/calibration.json` under XDG_CACHE_HOME (by default ~/.cache). It counts only on a machine with the
same system, processor and cores and under the same versions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadgen.common.documents import read
from loadgen.common.errors import ResultsError
from loadgen.results.files import explained, write_json
from loadgen.results.manifest import machine, versions
from loadgen.results.types import Machine

__all__ = [
    "Calibration",
    "CalibrationStep",
    "calibration_file",
    "check_calibration_file",
    "keep_calibration",
    "stored_calibration",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationStep:
    """One rate, requests/s; errors in seconds, CPU of this process."""

    rate: float
    output_tokens: int
    requests: int
    cpu_share: float  # of one core, while load comes and goes alike
    cpu_s_per_request: float
    send_lag_p99_s: float
    ttft_error_p99_s: float
    last_token_error_p99_s: float
    late_first_reads: float  # share of first reads that held several tokens
    server_cpu_share: float
    holds: bool
    reason: str  # why it does not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found. CPU of a request is taken as a + b·tokens."""

    stamps: Literal["kernel", "user"]
    tokens: int  # of the answers that the ceiling is counted in
    gap_s: float  # between two of them
    steps: tuple[CalibrationStep, ...]
    ceiling: float | None  # requests/s; None where not even the lowest rate held
    server_limited: bool  # the lean server may have been the limit: the client can carry the ceiling, or more
    cpu_s_per_request: float  # a
    cpu_s_per_token: float  # b

    def ceiling_of(self, output_tokens: float) -> float | None:
        """The ceiling for answers of another mean length, by their CPU, requests/s."""
        cost = self.cpu_s_per_request + self.cpu_s_per_token * output_tokens
        if self.ceiling is None or cost <= 0:
            return self.ceiling
        return self.ceiling * (self.cpu_s_per_request + self.cpu_s_per_token * self.tokens) / cost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """calibration.json."""

    format: int = 1
    machine: Machine
    versions: Mapping[str, str]
    calibration: Calibration


def calibration_file() -> Path:
    """Where it is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "loadgen" / "calibration.json"


def check_calibration_file() -> None:
    """Raise `ResultsError` where it cannot be kept, before a minute is spent on it."""
    path = calibration_file()
    with explained(path.parent, "free some, and calibrate again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ResultsError(f"{path.parent} cannot be written: set XDG_CACHE_HOME to a directory that can")


def keep_calibration(found: Calibration) -> None:
    """Keep it for this machine, in place of the one before. Raises `ResultsError`."""
    check_calibration_file()
    path = calibration_file()
    with explained(path, "free some, and calibrate again"):
        write_json(path, _Kept(machine=machine(), versions=versions(), calibration=found))


def stored_calibration() -> Calibration | None:
    """The one of this machine and these versions; `None` where there is none that can be read."""
    try:
        kept = read(calibration_file(), _Kept)
    except ResultsError:
        return None
    return kept.calibration if (kept.machine, dict(kept.versions)) == (machine(), versions()) else None
