"""Before anything is sent: a scenario with all that is read and derived from it, and the stored one that is resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.search import Search, SearchSpec, SeedBook
from loadgen.common.errors import ResultsError, ScenarioError
from loadgen.experiment.run_plan import criteria_of
from loadgen.results.store import read_json
from loadgen.scenario.model import Scenario, differences
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


<<<<<<< HEAD
def adapted(setup: Setup, sut: Sut) -> Setup:
    """The setup with requests as the target takes them."""
    if sut.format is None:
        return setup
    return replace(setup, workload=replace(setup.workload, format=sut.format))


def _check_format(setup: Setup, directory: Path) -> None:
    """Raises `ResultsError` where the target takes requests otherwise than when the experiment began."""
    before = read_json(directory / "experiment.json")["target"].get("format")
    now = orjson.loads(orjson.dumps(asdict(setup.workload.format)))
    if before is not None and before != now:
        changed = ", ".join(f"{k} {before.get(k)} → {v}" for k, v in now.items() if before.get(k) != v)
        raise ResultsError(f"--resume {directory}: the request format changed ({changed}): start a new experiment")


def _began_on(sut: Sut, now: Mapping[str, str], directory: Path, progress: Progress) -> dict[str, str]:
    """The identity of the target that the experiment began on. Raises `ResultsError` where another one answers now.

    One that only restarted meanwhile may go on: which process it was is noted, and each run's is held against the last.
    """
    began: dict[str, str] = read_json(directory / "experiment.json")["target"].get("identity", now)
    if other := sut.changed(began, now, restarted=True):
        raise ResultsError(
            f"--resume {directory}: not the target that was measured ({other}): begin a new experiment, or restore it"
        )
    if again := sut.changed(began, now):
        progress.note(f"since the experiment began: {again}")
    return began


def check_context(workload: Workload, sut: Sut) -> None:
    """Raises `ScenarioError` where the workload has requests that the target's context cannot hold."""
    limit = sut.max_model_len
    if limit is not None and workload.recorded is None and limit < workload.lengths.total_max < MAX_TOKENS:
        raise ScenarioError(
            f"requests of up to {workload.lengths.total_max} tokens (input and output) do not fit into the {limit} of "
            f"{sut.label} (max_model_len), which would cut the answers short: shorten --input or --output"
        )
    text = None if sut.format is None else sut.format.text
    if text is not None and workload.lengths.input_max < text.overhead_tokens:
        raise ScenarioError(
            f"inputs of at most {workload.lengths.input_max} tokens are less than the {text.overhead_tokens} that "
            f"special tokens and chat template of {sut.label} take: lengthen --input"
        )
    if limit is not None and workload.longest_tokens > limit:
        raise ScenarioError(
            f"the trace has requests of up to {workload.longest_tokens} tokens and {sut.label} takes {limit}: "
            f"pass --max-model-len {limit} --on-invalid drop (or clip); loadgen trace describe says how many they are"
        )


=======
>>>>>>> main
def resumed_scenario(directory: Path, overrides: dict[str, Any]) -> Scenario:
    """The scenario of a stored experiment under new options.

    Raises `ScenarioError` naming every option that would change what was measured so far.
    """
    if not (directory / "experiment.json").exists():
        raise ResultsError(f"--resume {directory}: holds no experiment (no experiment.json in it)")
    experiment = read_json(directory / "experiment.json")
    try:
        stored = Scenario.restore(experiment["scenario"])
        recorded = experiment["scenario_sha256"]
    except KeyError as error:
        raise ResultsError(f"{directory}/experiment.json has no {error}: not an experiment of this version") from None
    now = Scenario.restore({**experiment["scenario"], **overrides})
    if now.sha256 != stored.sha256:
        raise ScenarioError(
            f"--resume {directory}: not the same experiment ({'; '.join(differences(stored, now))}); "
            f"drop these options to go on, or choose another --out"
        )
    if recorded != stored.sha256:
        raise ScenarioError(f"--resume {directory}: its scenario was changed by hand since it was started")
    return now
