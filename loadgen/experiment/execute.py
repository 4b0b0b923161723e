"""An experiment on a target, from opening it to the last result: a single run, or a sweep, new or resumed."""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from analysis.report.types import CapacityAnswer
from analysis.search import Outcome, RunRequest
from analysis.verdict import RunVerdict
from loadgen.common.errors import ResultsError, TargetError
from loadgen.common.stopping import unless_stopped
from loadgen.experiment.calibrate import strain
from loadgen.experiment.live_sut import open_sut
from loadgen.experiment.preparation import Preparation, prepare_target, resume_target
from loadgen.experiment.prepare import Setup
from loadgen.experiment.progress import Progress
from loadgen.experiment.runner import Runner
from loadgen.experiment.search_loop import Budget, run_search
from loadgen.experiment.sut import Sut
from loadgen.experiment.warmup import Warmth
from loadgen.experiment.workers.count import sending_processes
from loadgen.plan.seeds import stream
from loadgen.results.answer import assemble, judged_runs
from loadgen.results.calibration import stored_calibration
from loadgen.results.files import check_free
from loadgen.results.manifest import machine, versions
from loadgen.results.store import ExperimentStore, read_experiment, read_ledger
from loadgen.results.types import ExperimentKind, LedgerLine, Manifest, TargetRecord

__all__ = ["Prepared", "check_kind", "manifest_of", "opened_runner", "prepared_target", "single_run", "sweep"]

_SAMPLE = 2000  # requests whose lengths are drawn for their mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A target that is open, and what is constant for all runs on it."""

    sut: Sut
    ready: Preparation


@asynccontextmanager
async def prepared_target(
    setup: Setup,
    *,
    resume: Path | None,
    progress: Progress,
    stop: anyio.Event,
    address: tuple[str, ...] = (),
    fixed: Warmth | None = None,
) -> AsyncIterator[Prepared]:
    """The target opened and prepared; with `resume`, as the experiment in that directory began with it.

    `address` takes the place of the scenario's URLs, for a server that was started elsewhere; `fixed` is a warm-up that
    was fixed elsewhere. Raises `TargetError`,
    `ResultsError`, `ClientLimited` and `Aborted`. Writes nothing.
    """
    scenario = setup.scenario.model_copy(update={"target": address}) if address else setup.scenario
    async with AsyncExitStack() as stack:
        opening = open_sut(scenario, progress.note)
        sut = await unless_stopped(stop, lambda: stack.enter_async_context(opening), "while the target was opened")
        if resume is not None:
            ready = await resume_target(setup, sut, resume, progress=progress, stop=stop)
        else:
            ready = await prepare_target(setup, sut, progress=progress, stop=stop, fixed=fixed)
        yield Prepared(sut=sut, ready=ready)


async def manifest_of(setup: Setup, prepared: Prepared, *, kind: ExperimentKind, stop: anyio.Event) -> Manifest:
    """What experiment.json will say of an experiment on that target."""
    sut, ready = prepared.sut, prepared.ready
    environment = await unless_stopped(stop, sut.environment, "while the target was asked what it runs on")
    stored = setup.scenario.stored()
    return Manifest(
        kind=kind,
        id=ready.experiment_id,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        scenario=stored,
        scenario_sha256=setup.scenario.sha256,
        seeds=setup.seeds,
        warmup_s=ready.warmup_s,
        residence_s=ready.residence_s,
        versions=versions(),
        machine=machine(),
        target=TargetRecord(
            label=sut.label,
            simulated=sut.simulated,
            model=sut.model,
            identity=ready.identity,
            environment=dict(environment),
            notes=stored.get("note", {}),
            format=ready.workload.format,
            content_unpaired=ready.terms.content_unpaired,
            events_per_read=ready.terms.events_per_read,
        ),
        notes=(*sut.notes, *setup.workload.notes, *ready.notes),
    )


@asynccontextmanager
async def opened_runner(
    setup: Setup,
    directory: Path,
    *,
    kind: ExperimentKind,
    resume: bool,
    progress: Progress,
    stop: anyio.Event,
    began_s: float | None = None,
) -> AsyncIterator[Runner]:
    """The target opened and prepared, and the experiment's directory owned, as a runner.

    `began_s` is when the command started, on the monotonic clock; by default now. Raises `TargetError`, `ResultsError`,
    `ClientLimited` and `Aborted` before anything is on the disk.
    """
    began_s = time.monotonic() if began_s is None else began_s
    if not resume:
        check_free(directory)
    for line in setup.workload.notes:
        progress.note(line)
    if said := _strain(setup):
        progress.note(said)
    opening = prepared_target(setup, resume=directory if resume else None, progress=progress, stop=stop)
    async with opening as prepared:
        if resume:
            store = ExperimentStore.open(directory)
        else:
            store = ExperimentStore.create(directory, await manifest_of(setup, prepared, kind=kind, stop=stop))
        with closing(store):
            yield Runner(
                scenario=setup.scenario,
                ready=prepared.ready,
                sut=prepared.sut,
                store=store,
                progress=progress,
                stop=stop,
                booked_s=began_s,
                identity=prepared.ready.identity_now,
            )


def _strain(setup: Setup) -> str:
    """Whether the highest rate is too much for this machine, as far as it was calibrated."""
    if setup.scenario.target[0].partition(":")[0] == "virtual" or (calibration := stored_calibration()) is None:
        return ""
    drawn = setup.workload.lengths.draw(stream(0, "lengths"), _SAMPLE)
    processes = sending_processes(setup.scenario, lambda _: None)
    tokens = float(drawn.output_tokens.mean())
    return strain(calibration, rate=setup.spec.grid[-1], output_tokens=tokens, processes=processes)


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


def check_kind(directory: Path, kind: ExperimentKind) -> None:
    """Raise `ResultsError` where a command would go on with an experiment of another one."""
    found = read_experiment(directory).kind
    if found != kind:
        name = "gate" if found == "regression" else found
        more = f"go on with loadgen {name} --resume {directory}" if name in ("sweep", "gate") else "it cannot go on"
        raise ResultsError(f"--resume {directory}: holds the results of loadgen {name}; {more}")


async def sweep(
    setup: Setup,
    directory: Path,
    *,
    resume: bool,
    progress: Progress,
    stop: anyio.Event,
    began_s: float | None = None,
    kind: Literal["sweep", "gate"] = "sweep",
) -> tuple[Outcome, CapacityAnswer]:
    """Search, tabulate or test a required rate; the outcome, and the answer as written to capacity.json.

    `began_s` is when the command started, on the monotonic clock: the time budget counts from there. The answer is
    written also where the target is gone, which raises `TargetError` after that.
    """
    started_s = time.monotonic() if began_s is None else began_s
    search = setup.search()
    ledger: list[LedgerLine] = []
    if resume:
        check_kind(directory, kind)
        search = setup.searched(judged_runs(directory), directory)
        search.retry()  # the client may be well again
        ledger = read_ledger(directory)
        progress.note(f"resuming {directory}: {len(ledger)} sealed runs carried over")
    opened = opened_runner(setup, directory, kind=kind, resume=resume, progress=progress, stop=stop, began_s=started_s)
    async with opened as runner:
        runner.early_fail = setup.spec.early_fail
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
