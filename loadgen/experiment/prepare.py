"""Before anything is sent: a scenario with all that is read and derived from it, and the stored one that is resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.search import RunRequest, Search, SearchSpec, SeedBook
from analysis.verdict import RunVerdict
from loadgen.common.errors import ResultsError, ScenarioError
from loadgen.experiment.run_plan import criteria_of
from loadgen.results.comparison import comparison_of
from loadgen.results.store import holds_experiment, read_experiment
from loadgen.scenario.model import Scenario, differences
from loadgen.scenario.overrides import Value
from loadgen.workload.workload import Workload, search_spec, seed_book

__all__ = ["Setup", "pinned", "prepare", "resumed_scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A scenario with everything that was read and derived from it, before anything is sent."""

    scenario: Scenario
    workload: Workload
    spec: SearchSpec
    seeds: SeedBook

    def search(self) -> Search:
        """A fresh search of this experiment."""
        return Search(self.spec, self.seeds, criteria_of(self.scenario, self.workload))

    def searched(self, runs: Iterable[tuple[RunRequest, RunVerdict]], where: object) -> Search:
        """The search after these runs of the ledger at `where`. Raises `ResultsError` for runs it did not ask for."""
        try:
            return Search.replay(self.spec, self.seeds, criteria_of(self.scenario, self.workload), runs)
        except ValueError as error:
            raise ResultsError(f"{where}: the ledger was changed by hand: {error}; restore it") from None


def prepare(scenario: Scenario) -> Setup:
    """Read and check all that a scenario names. Raises `ScenarioError`."""
    spec = search_spec(scenario)
    if scenario.sessions == "dependent" or scenario.speed is not None or scenario.replicates == "once":
        raise ScenarioError(
            "--sessions dependent, --speed and --replicates once belong to loadgen replay: turns that wait for answers "
            "are no open loop and have no capacity, and here --rate sets the speed"
        )
    workload = Workload.of(scenario)
    return Setup(scenario=pinned(scenario, workload), workload=workload, spec=spec, seeds=seed_book(scenario, spec))


def pinned(scenario: Scenario, workload: Workload) -> Scenario:
    """The scenario with the fingerprints of the files it reads, which its hash covers.

    Raises `ScenarioError` where it has one and the file is another now.
    """
    read = {"trace_sha256": workload.trace_sha256, "lengths_sha256": workload.lengths_sha256}
    for key, now in read.items():
        asked = getattr(scenario, key)
        if asked is not None and asked != now:
            raise ScenarioError(
                f"{key}: the file holds other requests than it did ({str(now)[:12]}, wanted {asked[:12]}): restore it, "
                "or begin a new experiment without this key"
            )
    return scenario.model_copy(update=read)


def resumed_scenario(directory: Path, overrides: Mapping[str, Value]) -> Scenario:
    """The scenario of a stored experiment under new options.

    Raises `ScenarioError` naming every option that would change what was measured so far.
    """
    if not holds_experiment(directory):
        raise ResultsError(f"--resume {directory}: holds no experiment (no experiment.json in it)")
    if (comparison := comparison_of(directory)) is not None:
        raise ScenarioError(
            f"--resume {directory}: a variant goes on with its comparison: loadgen compare --resume {comparison}"
        )
    experiment = read_experiment(directory)
    stored = Scenario.restore(experiment.scenario)
    now = Scenario.restore({**experiment.scenario, **overrides})
    # these two change no run, but which runs are asked for
    asked = [
        f"{key}: {getattr(stored, key)} → {getattr(now, key)}"
        for key in ("require", "search")
        if getattr(stored, key) != getattr(now, key)
    ]
    if changed := [*differences(stored, now), *asked]:
        raise ScenarioError(
            f"--resume {directory}: not the same experiment ({'; '.join(changed)}); "
            f"drop these options to go on, or choose another --out"
        )
    if experiment.scenario_sha256 != stored.sha256:
        raise ScenarioError(f"--resume {directory}: its scenario was changed by hand since it was started")
    return now
