"""A whole experiment from scenario to answer: opened or resumed, carried out, and closed in every way it can end."""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import anyio

from analysis.report.types import CapacityAnswer
from analysis.search import Outcome, RunRequest, Search, SearchSpec, SeedBook
from analysis.verdict import RunVerdict
from loadgen.common.errors import ResultsError, ScenarioError, TargetError
from loadgen.experiment.live_sut import open_sut
from loadgen.experiment.progress import Progress
from loadgen.experiment.run_plan import criteria_of
from loadgen.experiment.runner import Runner
from loadgen.experiment.search_loop import Budget, run_search
from loadgen.experiment.sut import Sut
from loadgen.experiment.warmup import Warmth, warm_target, warmup_note
from loadgen.plan.lengths import MAX_TOKENS
from loadgen.results.answer import assemble, told
from loadgen.results.manifest import machine, versions
from loadgen.results.store import ExperimentStore, holds_experiment, read_experiment, read_ledger
from loadgen.results.types import Experiment, LedgerLine, TargetRecord
from loadgen.scenario.model import Scenario, differences
from loadgen.workload.workload import Workload, search_spec, seed_book

__all__ = [
    "Setup",
    "adapted",
    "check_context",
    "opened_runner",
    "pinned",
    "prepare",
    "resumed_scenario",
    "single_run",
    "sweep",
]


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


def adapted(setup: Setup, sut: Sut) -> Setup:
    """The setup with requests as the target takes them."""
    if sut.format is None:
        return setup
    return replace(setup, workload=replace(setup.workload, format=sut.format))


def _check_format(setup: Setup, directory: Path) -> None:
    """Raises `ResultsError` where the target takes requests otherwise than when the experiment began."""
    before, now = read_experiment(directory).target.format, setup.workload.format
    if before != now:
        pairs = ((one.name, getattr(before, one.name), getattr(now, one.name)) for one in fields(now))
        changed = ", ".join(f"{name} {old} → {new}" for name, old, new in pairs if old != new)
        raise ResultsError(
            f"--resume {directory}: the target takes requests otherwise than before ({changed}): begin a new experiment"
        )


def _began_on(sut: Sut, now: Mapping[str, str], directory: Path, progress: Progress) -> dict[str, str]:
    """The identity of the target that the experiment began on. Raises `ResultsError` where another one answers now.

    One that only restarted meanwhile may go on: which process it was is noted, and each run's is held against the last.
    """
    began = dict(read_experiment(directory).target.identity)
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


def resumed_scenario(directory: Path, overrides: dict[str, Any]) -> Scenario:
    """The scenario of a stored experiment under new options.

    Raises `ScenarioError` naming every option that would change what was measured so far.
    """
    if not holds_experiment(directory):
        raise ResultsError(f"--resume {directory}: holds no experiment (no experiment.json in it)")
    experiment = read_experiment(directory)
    stored = Scenario.restore(experiment.scenario)
    now = Scenario.restore({**experiment.scenario, **overrides})
    if now.sha256 != stored.sha256:
        raise ScenarioError(
            f"--resume {directory}: not the same experiment ({'; '.join(differences(stored, now))}); "
            f"drop these options to go on, or choose another --out"
        )
    if experiment.scenario_sha256 != stored.sha256:
        raise ScenarioError(f"--resume {directory}: its scenario was changed by hand since it was started")
    return now


@asynccontextmanager
async def opened_runner(
    setup: Setup,
    directory: Path,
    *,
    kind: Literal["sweep", "run", "replay"],
    resume: bool,
    progress: Progress,
    stop: anyio.Event,
    began_s: float | None = None,
) -> AsyncIterator[Runner]:
    """The target opened and warmed, and the experiment's directory owned, as a runner.

    `began_s` is when the command started, on the monotonic clock; by default now. Raises `TargetError`, `ResultsError`,
    `ClientLimited` and `Aborted` before anything is on the disk.
    """
    began_s = time.monotonic() if began_s is None else began_s
    if not resume:
        ExperimentStore.check_free(directory)
    for line in setup.workload.notes:
        progress.note(line)
    async with open_sut(setup.scenario, progress.note) as sut:
        check_context(setup.workload, sut)
        setup = adapted(setup, sut)
        identity = began_on = dict(await sut.identity())
        if resume:
            _check_format(setup, directory)
            began_on = _began_on(sut, identity, directory, progress)
        experiment_id = read_experiment(directory).id if resume else secrets.token_hex(8)
        progress.note(f"{sut.label}: ready, model {sut.model}")
        # a resumed part must not meet the prefixes that the interrupted one left in the target's cache
        part = f"{experiment_id}/{secrets.token_hex(4)}" if resume else experiment_id
        # a replay that is to be measured from its first request on
        at_once = setup.scenario.replicates == "once" and setup.scenario.warmup == 0
        warmth = await warm_target(
            setup.scenario, setup.workload, sut, lowest_rate=setup.spec.grid[0], experiment=part, stop=stop,
            fixes=not resume and not at_once,
        )  # fmt: skip
        if at_once:
            warmth = replace(warmth, warmup_s=0.0)
        if resume:
            store = ExperimentStore.open(directory)
            fixed = read_experiment(directory)
            warmth = Warmth(warmup_s=fixed.warmup_s, residence_s=fixed.residence_s)
        note = "" if at_once else warmup_note(setup.scenario, warmth.warmup_s, setup.spec.grid[0])
        if note:
            progress.note(note)
        if not resume:
            manifest = await _manifest(
                setup, sut, kind=kind, experiment_id=experiment_id, warmth=warmth, identity=identity,
                note=note,
            )  # fmt: skip
            store = ExperimentStore.create(directory, manifest)
        try:
            yield Runner(
                scenario=setup.scenario,
                workload=setup.workload,
                sut=sut,
                store=store,
                progress=progress,
                stop=stop,
                experiment=part,
                warmup_s=warmth.warmup_s,
                residence_s=warmth.residence_s,
                booked_s=began_s,
                began_on=began_on,
                identity=identity,
            )
        finally:
            store.close()


async def single_run(
    setup: Setup, directory: Path, *, kind: Literal["run", "replay"], progress: Progress, stop: anyio.Event
) -> RunVerdict:
    """One run and nothing else. Raises what `opened_runner` and `Runner.execute` raise."""
    async with opened_runner(setup, directory, kind=kind, resume=False, progress=progress, stop=stop) as runner:
        (seed,), rate = setup.seeds.roots, setup.spec.grid[0]
        closed = setup.scenario.closed
        name = f"rate={rate:.3f}" if closed is None else f"closed={closed}"
        request = RunRequest(
            kind="explore",
            rate=rate,
            rate_index=0,
            replicate=0,
            block=-1,
            seed=seed,
            attempt=0,
            key=f"{name}-seed={seed}",
        )
        return (await runner.execute(request)).verdict


async def sweep(
    setup: Setup,
    directory: Path,
    *,
    resume: bool,
    progress: Progress,
    stop: anyio.Event,
    began_s: float | None = None,
) -> tuple[Outcome, CapacityAnswer]:
    """Search or tabulate; the outcome, and the answer as written to capacity.json.

    `began_s` is when the command started, on the monotonic clock: the time budget counts from there. The answer is
    written also where the target is gone, which raises `TargetError` after that.
    """
    started_s = time.monotonic() if began_s is None else began_s
    search = setup.search()
    ledger: list[LedgerLine] = []
    if resume:
        search = Search.replay(setup.spec, setup.seeds, criteria_of(setup.scenario, setup.workload), told(directory))
        search.retry()  # the client may be well again
        ledger = read_ledger(directory)
        progress.note(f"resuming {directory}: {len(ledger)} sealed runs carried over")
    opened = opened_runner(
        setup, directory, kind="sweep", resume=resume, progress=progress, stop=stop, began_s=started_s
    )
    async with opened as runner:
        runner.early_fail = not setup.spec.tabulate
        budget = Budget.of(setup.scenario, ledger, clock=lambda: time.monotonic() - started_s)
        try:
            outcome = await run_search(search, runner, budget)
        except TargetError as error:
            ended = search.stop("UNSTABLE_TARGET", str(error))
            runner.store.answer(assemble(directory, setup.scenario, setup.spec, ended))
            raise
        answer = assemble(directory, setup.scenario, setup.spec, outcome)
        runner.store.answer(answer)
        return outcome, answer


async def _manifest(
    setup: Setup,
    sut: Sut,
    *,
    kind: Literal["sweep", "run", "replay"],
    experiment_id: str,
    warmth: Warmth,
    identity: Mapping[str, str],
    note: str,
) -> Experiment:
    stored = setup.scenario.stored()
    return Experiment(
        kind=kind,
        id=experiment_id,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        scenario=stored,
        scenario_sha256=setup.scenario.sha256,
        seeds=setup.seeds,
        warmup_s=warmth.warmup_s,
        residence_s=warmth.residence_s,
        versions=versions(),
        machine=machine(),
        target=TargetRecord(
            label=sut.label,
            simulated=sut.simulated,
            model=sut.model,
            identity=identity,
            environment=dict(await sut.environment()),
            notes=stored.get("note", {}),
            format=setup.workload.format,
            events_per_read=sut.events_per_read,
        ),
        notes=(*sut.notes, *setup.workload.notes, *((note,) if note else ())),
    )
