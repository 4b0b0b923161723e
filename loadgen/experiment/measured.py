"""An experiment that was measured: its answer, and its runs as pandas frames that are read when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.compare.regression import RegressionAnswer
from analysis.report.types import CapacityAnswer
from analysis.search import Outcome
from loadgen.common.errors import ResultsError
from loadgen.experiment.gate.against import answered
from loadgen.experiment.prepare import prepare
from loadgen.experiment.replay import replayed
from loadgen.results import frames
from loadgen.results.answer import assemble, judged_runs, notes
from loadgen.results.comparison import comparison_of
from loadgen.results.regression import read_gate
from loadgen.results.store import holds_experiment, read_answer, read_experiment, read_ledger
from loadgen.results.types import LedgerLine, Manifest
from loadgen.scenario.model import Scenario

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Experiment", "load"]


def load(directory: str | Path) -> Experiment:
    """The experiment in a results directory, finished or not. Raises `ResultsError` where there is none.

    Its contents are read when they are first asked for; what raises then is `ResultsError`, too.
    """
    directory = Path(directory)
    if not holds_experiment(directory):
        if (directory / "comparison.json").exists():
            raise ResultsError(
                f"{directory} holds a comparison: read it with load_compared, or a directory in variants/"
            )
        raise ResultsError(f"{directory} holds no experiment (no experiment.json in it)")
    return Experiment(directory)


class Experiment:
    """A results directory. Times in its frames are seconds (`_s`) or nanoseconds from the run's first instant (`_ns`).

    docs/terminology.md says what each column means.
    """

    def __init__(self, directory: Path, outcome: Outcome | None = None) -> None:
        self.directory = directory
        self._outcome = outcome

    def __repr__(self) -> str:
        return f"<loadgen.Experiment {str(self.directory)!r}>"

    @cached_property
    def manifest(self) -> Manifest:
        """experiment.json: scenario, seeds, versions, machine and target."""
        return read_experiment(self.directory)

    @property
    def kind(self) -> str:
        """`sweep`, `run`, `replay`, `gate` (of one rate) or `regression` (a gate against a baseline)."""
        return self.manifest.kind

    @cached_property
    def scenario(self) -> Scenario:
        """The settings it was measured with."""
        return Scenario.restore(self.manifest.scenario)

    @property
    def notes(self) -> list[str]:
        """Lines that every report of this experiment has to carry."""
        return notes(self.scenario, self.manifest)

    @cached_property
    def answer(self) -> CapacityAnswer:
        """What capacity.json holds: capacity, bracket, rates, reasons and conditions.

        Of a sweep that has not ended: what its sealed runs add up to so far. Raises `ResultsError` for a single run.
        """
        self._sweep_only("answer")
        if (stored := read_answer(self.directory)) is not None:
            return stored
        setup = prepare(self.scenario)
        return assemble(self.directory, setup.scenario, setup.spec, self.outcome)

    @cached_property
    def outcome(self) -> Outcome:
        """How the sweep ended; `UNFINISHED` where it has not, or not in this process. Raises as `answer`."""
        self._sweep_only("outcome")
        if self._outcome is not None:
            return self._outcome
        setup = prepare(self.scenario)
        search = setup.searched(judged_runs(self.directory), self.directory)
        comparison = comparison_of(self.directory)
        again = f"{self.kind} --resume {self.directory}" if comparison is None else f"compare --resume {comparison}"
        return search.stop("UNFINISHED", f"go on with: loadgen {again}")

    @cached_property
    def gate(self) -> RegressionAnswer:
        """What gate.json holds: whether the target is worse than the baseline; unfinished, how far the runs go.

        Raises `ResultsError` for what is no gate against a baseline.
        """
        if self.kind != "regression":
            raise ResultsError(f"{self.directory}: a {self.kind} has no baseline: read its answer or its runs")
        return read_gate(self.directory) or answered(self.directory, prepare(self.scenario))

    @cached_property
    def ledger(self) -> Sequence[LedgerLine]:
        """The sealed runs in order, as verdicts.jsonl has them; of a replay with what only a replay has to say."""
        lines = read_ledger(self.directory)
        if self.kind == "replay":
            return [replayed(self.directory, line) for line in lines]
        return lines

    @cached_property
    def rates(self) -> pd.DataFrame:
        """A row for each rate that was explored and each that was proved: verdict, attainment, errors, worst latencies.

        Raises as `answer`.
        """
        return frames.rates(self.answer)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each sealed run, in order: its key, rate, seed, verdict, what it saw, and its percentiles."""
        return frames.runs(self.directory)

    @cached_property
    def replicas(self) -> pd.DataFrame:
        """A row for each sealed run and URL of its target, where it has several: requests, attainment, in flight."""
        return frames.replicas(self.directory)

    def requests(
        self,
        *,
        rate: float | None = None,
        run: str | None = None,
        cohort: bool = False,
        columns: list[str] | None = None,
    ) -> pd.DataFrame:
        """The requests of the runs at a rate (requests/s), of the run of that key, or of all runs, a row each.

        With `cohort` only those due in the measured window, which the verdict is about. `columns` are those to read;
        `run` and `rate` stand before them. Raises `ResultsError` where there is no such run or column.
        """
        return frames.requests(self.directory, self._runs(rate, run), cohort=cohort, columns=columns)

    def events(self, *, rate: float | None = None, run: str | None = None) -> pd.DataFrame:
        """The token events of those runs, a row each: `run`, `rate`, the request's `index`, `at_ns`, `tokens`.

        Raises `ResultsError` where there is no such run, or where it kept no events (`--events`).
        """
        return frames.events(self.directory, self._runs(rate, run))

    def _runs(self, rate: float | None, run: str | None) -> pd.DataFrame:
        chosen = self.runs
        if rate is not None:
            chosen = chosen[chosen["rate"] == rate]
        if run is not None:
            chosen = chosen[chosen["run"] == run]
        if chosen.empty:
            asked = " and ".join(
                f"{name} {value}" for name, value in (("rate", rate), ("run", run)) if value is not None
            )
            there = ", ".join(f"{one:g}" for one in sorted(set(self.runs["rate"]))) or "none"
            raise ResultsError(f"{self.directory}: no sealed run of {asked or 'any rate'}; its rates are {there}")
        return chosen

    def _sweep_only(self, what: str) -> None:
        if self.kind == "regression":
            raise ResultsError(f"{self.directory}: a gate against a baseline has no {what} of a sweep: read its gate")
        if self.kind not in ("sweep", "gate"):
            raise ResultsError(f"{self.directory}: a single {self.kind} has no {what} of a sweep: read its runs")
