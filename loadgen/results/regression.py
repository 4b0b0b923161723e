"""A gate against a baseline on disk: an experiment as `loadgen.results.store` keeps it, and two files more.

    DIR/baseline.json   what was declared before the first run: the baseline's runs with their numbers, rate and margin
        gate.json       the answer

With its own copy of the baseline's numbers a gate can be resumed and shown where the baseline is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analysis.compare.regression import Partner, RegressionAnswer
from analysis.compare.types import VariantRun
from analysis.search import RunRequest
from loadgen.common.documents import read
from loadgen.results.files import explained, write_json

__all__ = ["BaselineRecord", "BaselineRun", "read_baseline", "read_gate", "write_baseline", "write_gate"]

BASELINE_VERSION: Final = 1
_BASELINE, _GATE = "baseline.json", "gate.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun:
    """A run of the baseline that is made again, and what it came to."""

    request: RunRequest
    numbers: VariantRun


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecord:
    """baseline.json. Durations in s, `rate` in requests/s."""

    format: int = BASELINE_VERSION
    partner: Partner
    rate: float
    margin: float
    warmup_s: float
    residence_s: float | None
    content_unpaired: bool  # content follows the attempt of a run, so that no run can be repeated
    runs: tuple[BaselineRun, ...]


def write_baseline(directory: Path, record: BaselineRecord) -> None:
    """Write baseline.json. Raises `ResultsError`."""
    with explained(directory / _BASELINE):
        write_json(directory / _BASELINE, record)


def read_baseline(directory: Path) -> BaselineRecord:
    """What the gate in that directory was declared with. Raises `ResultsError`."""
    return read(directory / _BASELINE, BaselineRecord)


def write_gate(directory: Path, answer: RegressionAnswer) -> None:
    """Write gate.json. Raises `ResultsError`."""
    with explained(directory / _GATE):
        write_json(directory / _GATE, answer)


def read_gate(directory: Path) -> RegressionAnswer | None:
    """The answer of a gate that ended; `None` where none was written. Raises `ResultsError`."""
    path = directory / _GATE
    return read(path, RegressionAnswer) if path.exists() else None
