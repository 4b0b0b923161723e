"""A comparison on disk: what was declared, an experiment for each variant, and the answer.

    DIR/comparison.json        the settings, their hash, the seeds of the pairs, versions, machine
        variants/NAME/         an experiment as `loadgen.results.store` keeps it; its ledger also has the paired runs
        variants/NAME.log      what a launched server wrote
        answer.json            what the comparison found

comparison.json is written last, when every variant is prepared: a directory without it holds no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from analysis.compare.types import Comparison
from loadgen.common.documents import read
from loadgen.common.errors import ResultsError
from loadgen.results.files import check_free, explained, write_json
from loadgen.results.types import Machine
from loadgen.scenario.comparison import ComparisonSettings

__all__ = [
    "ComparisonManifest",
    "check_comparison_free",
    "comparison_of",
    "create_comparison",
    "forget_comparison_answer",
    "holds_comparison",
    "log_file",
    "read_comparison",
    "read_comparison_answer",
    "variant_directory",
    "write_comparison_answer",
]

COMPARISON_VERSION: Final = 1
_MANIFEST, _ANSWER, _VARIANTS = "comparison.json", "answer.json", "variants"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonManifest:
    """comparison.json: what is constant in a comparison."""

    format: int = COMPARISON_VERSION
    created: str  # UTC, ISO 8601
    scenario: Mapping[str, Any]  # the settings that all variants share and that differ from the defaults
    comparison: ComparisonSettings  # the variants, and what is asked of the difference between them
    sha256: str
    seeds: tuple[int, ...]  # of the paired phase
    spares: tuple[int, ...]
    versions: Mapping[str, str]
    machine: Machine


def check_comparison_free(directory: Path) -> None:
    """Raise `ResultsError` unless a comparison may be made there: logs of servers that did not get ready may remain."""
    with explained(directory):
        variants = directory / _VARIANTS
        left = list(directory.iterdir()) if directory.is_dir() else []
        if left == [variants] and variants.is_dir() and all(one.suffix == ".log" for one in variants.iterdir()):
            return
    check_free(directory)


def create_comparison(directory: Path, manifest: ComparisonManifest) -> None:
    """Write comparison.json. Raises `ResultsError`."""
    with explained(directory):
        write_json(directory / _MANIFEST, manifest)


def holds_comparison(directory: Path) -> bool:
    """Whether a comparison was begun there."""
    return (directory / _MANIFEST).exists()


def read_comparison(directory: Path) -> ComparisonManifest:
    """What was declared. Raises `ResultsError`."""
    if not holds_comparison(directory):
        raise ResultsError(f"{directory} holds no comparison (no {_MANIFEST} in it)")
    return read(directory / _MANIFEST, ComparisonManifest)


def read_comparison_answer(directory: Path) -> Comparison | None:
    """What the comparison found; `None` while it has not ended. Raises `ResultsError`."""
    path = directory / _ANSWER
    return read(path, Comparison) if path.exists() else None


def write_comparison_answer(directory: Path, answer: Comparison) -> None:
    """Write answer.json. Raises `ResultsError`."""
    with explained(directory / _ANSWER):
        write_json(directory / _ANSWER, answer)


def forget_comparison_answer(directory: Path) -> None:
    """Remove answer.json, which is not the answer once more is measured. Raises `ResultsError`."""
    with explained(directory / _ANSWER):
        (directory / _ANSWER).unlink(missing_ok=True)


def variant_directory(directory: Path, name: str) -> Path:
    """The experiment of a variant."""
    return directory / _VARIANTS / name


def comparison_of(directory: Path) -> Path | None:
    """The comparison of which `directory` is a variant's experiment, if it is one."""
    variants = directory.absolute().parent
    if variants.name != _VARIANTS or not holds_comparison(variants.parent):
        return None
    return directory.parent.parent if len(directory.parts) > 1 else variants.parent


def log_file(directory: Path, name: str) -> Path:
    """What the launched server of a variant wrote; its directory is made. Raises `ResultsError`."""
    path = directory / _VARIANTS / f"{name}.log"
    with explained(directory):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path
