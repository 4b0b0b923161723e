"""Stored results as a baseline: which of their runs are made again, and what those came to (docs/gate.md).

A baseline is a sweep, a gate, or one variant of a comparison, that ended. Only runs to their end count: a run that an
early FAIL stopped saw another window. Of a rate's runs the paired ones are taken, else the fresh ones that proved it,
else the exploring ones: exploring runs are there to find rates, and may be few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow.parquet as pq

from analysis.compare.gate import LEAST_PAIRS
from analysis.compare.runs import variant_run
from analysis.compare.types import VariantRun, VariantSpec
from loadgen.common.errors import ResultsError
from loadgen.results.comparison import holds_comparison, read_comparison_answer
from loadgen.results.regression import read_gate
from loadgen.results.store import (
    holds_experiment,
    read_answer,
    read_experiment,
    read_whole_ledger,
    run_directory,
)
from loadgen.results.types import LedgerLine, Manifest
from loadgen.scenario.model import Scenario

__all__ = ["BASELINE", "NOW", "Stored", "measured_run", "open_stored"]

BASELINE, NOW = "baseline", "now"  # the two sides of a pair
_KINDS: Final = ("paired", "prove", "explore")  # which runs of a rate are taken, the first of these that there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A baseline's settings, and the runs at each rate that can be made again."""

    directory: Path
    manifest: Manifest
    scenario: Scenario
    runs: dict[float, tuple[LedgerLine, ...]]
    own_rate: float | None  # a sweep's proved rate, a gate's rate

    def pick(self, text: str | None, count: int | None) -> tuple[LedgerLine, ...]:
        """The runs at the rate (as the tables print it; `None`: the baseline's own), the first `count` of them.

        Raises `ResultsError` where there is no such rate, or fewer runs than a gate needs.
        """
        rates = ", ".join(f"{rate:.4g}" for rate in sorted(self.runs)) or "none"
        if text is None:
            chosen = self.own_rate if self.own_rate in self.runs else None
            if chosen is None and len(self.runs) == 1:
                (chosen,) = self.runs
            if chosen is None:
                raise self._refused(f"it has no proved rate: name one of its rates by --rate ({rates})")
        else:
            asked = _rate(text)
            chosen = next((rate for rate in self.runs if f"{rate:.4g}" == f"{asked:.4g}"), None)
            if chosen is None:
                raise self._refused(f"no run to its end at --rate {text}; its rates are {rates}")
        lines = self.runs[chosen]
        there, wanted = len(lines), len(lines) if count is None else count
        at = f"at {chosen:.4g} requests/s"
        if there < LEAST_PAIRS:
            raise self._refused(
                f"only {there} of its runs {at} went to {'its' if there == 1 else 'their'} end, and a gate needs "
                f"{LEAST_PAIRS} or more: measure a baseline with more "
                f"--runs, as in loadgen gate --rate {chosen:.4g} --runs 10"
            )
        if wanted < LEAST_PAIRS:
            raise self._refused(f"--runs {count}: a gate needs {LEAST_PAIRS} pairs of runs or more")
        if wanted > there:
            raise self._refused(f"--runs {count}: it has {there} runs that went to their end {at}")
        return lines[:wanted]

    def _refused(self, why: str) -> ResultsError:
        return ResultsError(f"--baseline {self.directory}: {why}")


def open_stored(directory: Path) -> Stored:
    """The results in a directory as a baseline.

    Raises `ResultsError` in one line where they cannot be one: nothing there, a comparison as a whole, a single run,
    an experiment that goes on or has not ended, a ledger that was cut off.
    """
    said = f"--baseline {directory}"
    if not directory.is_dir():
        raise ResultsError(f"{said}: there is no such directory")
    if holds_comparison(directory):
        names = ", ".join(sorted(str(one) for one in directory.glob("variants/*") if one.is_dir()))
        raise ResultsError(f"{said} holds a comparison: name one variant of it ({names})")
    if not holds_experiment(directory):
        one_run = (directory / "run.json").exists()
        hint = "the directory of one run: name that of its experiment" if one_run else "no results (no experiment.json)"
        raise ResultsError(f"{said} holds {hint}")
    manifest = read_experiment(directory)
    if manifest.kind in ("run", "replay"):
        raise ResultsError(
            f"{said} holds a single {manifest.kind}, and a gate needs {LEAST_PAIRS} runs or more: measure a baseline "
            "with loadgen gate --rate"
        )
    ledger = read_whole_ledger(directory)
    own_rate = _ended(directory, manifest, ledger)
    return Stored(
        directory=directory,
        manifest=manifest,
        scenario=Scenario.restore(manifest.scenario),
        runs=_usable(ledger),
        own_rate=own_rate,
    )


def measured_run(directory: Path, line: LedgerLine, scenario: Scenario, *, variant: str, replicate: int) -> VariantRun:
    """The numbers of one sealed run, as a side of pair `replicate`. Raises `ResultsError`."""
    path = run_directory(directory, line.run) / "requests.parquet"
    try:
        table: pd.DataFrame = pq.read_table(path).to_pandas()
        return variant_run(
            table,
            VariantSpec(name=variant),
            slo=scenario.objective,
            warmup_ns=line.window.warmup_ns,
            window_ns=line.window.window_ns,
            label=f"{line.run.rate:.4g}/s",
            rate=line.run.rate,
            replicate=replicate,
            seed=line.run.seed,
            status=line.verdict.status,
            schedule_sha256=line.schedule_sha256,
            workload_sha256=line.workload_sha256,
        )
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {error}: restore the file") from None


def _ended(directory: Path, manifest: Manifest, ledger: Sequence[LedgerLine]) -> float | None:
    """The baseline's own rate. Raises `ResultsError` where its answer is missing, or does not belong to its ledger."""
    command = "gate" if manifest.kind == "regression" else manifest.kind
    unfinished = f"--baseline {directory} has not ended: go on with loadgen {command} --resume {directory}"
    cut = f"--baseline {directory}: verdicts.jsonl has other runs than its answer: it is cut off; restore the file"
    if manifest.kind == "regression":
        gated = read_gate(directory)
        if gated is None or gated.outcome != "COMPLETE":
            raise ResultsError(unfinished)
        if gated.sealed != len(ledger):
            raise ResultsError(cut)
        return gated.rate
    comparison = directory.parent.parent
    compared = directory.parent.name == "variants" and holds_comparison(comparison)
    if compared and read_comparison_answer(comparison) is None:
        raise ResultsError(
            f"--baseline {directory}: its comparison has not ended: go on with loadgen compare --resume {comparison}"
        )
    answer = read_answer(directory)
    if answer is None:
        if compared:  # of listed rates nothing was searched
            return None
        raise ResultsError(unfinished)
    if len(answer.runs) != sum(line.run.kind != "paired" for line in ledger):
        raise ResultsError(cut)
    return answer.proved


def _usable(ledger: Sequence[LedgerLine]) -> dict[float, tuple[LedgerLine, ...]]:
    found: dict[float, dict[tuple[int, int, int], LedgerLine]] = {}
    kinds: dict[float, int] = {}
    for line in ledger:
        run, verdict = line.run, line.verdict
        whole = not verdict.attainment_is_bound and (verdict.blame is None or verdict.blame == "evidence")
        if run.kind not in _KINDS or not whole:
            continue
        rank = _KINDS.index(run.kind)
        if rank > kinds.get(run.rate, len(_KINDS)):
            continue
        if rank < kinds.get(run.rate, len(_KINDS)):
            found[run.rate] = {}
        kinds[run.rate] = rank
        found[run.rate][run.seed, run.replicate, run.block] = line  # of runs of one seed the last
    return {rate: tuple(lines.values()) for rate, lines in found.items()}


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ResultsError(f"--rate {text}: with --baseline it is one of the rates that were measured there") from None
