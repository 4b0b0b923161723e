"""An experiment on a target, from opening it to the last result: a single run, or a sweep, new or resumed."""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio

from analysis.report.types import CapacityAnswer
from analysis.search import Outcome, RunRequest, Search
from analysis.verdict import RunVerdict
from loadgen.common.errors import TargetError
from loadgen.common.stopping import unless_stopped
from loadgen.experiment.live_sut import open_sut
from loadgen.experiment.preparation import Preparation, prepare_target, resume_target
from loadgen.experiment.prepare import Setup
from loadgen.experiment.progress import Progress
from loadgen.experiment.run_plan import criteria_of
from loadgen.experiment.runner import Runner
from loadgen.experiment.search_loop import Budget, run_search
from loadgen.experiment.sut import Sut
from loadgen.results.answer import assemble, judged_runs
from loadgen.results.manifest import machine, versions
from loadgen.results.store import ExperimentStore, read_ledger
from loadgen.results.types import ExperimentKind, LedgerLine, Manifest, TargetRecord

__all__ = ["opened_runner", "single_run", "sweep"]


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
        ExperimentStore.check_free(directory)
    for line in setup.workload.notes:
        progress.note(line)
    async with AsyncExitStack() as stack:
        opening = open_sut(setup.scenario, progress.note)
        sut = await unless_stopped(stop, lambda: stack.enter_async_context(opening), "while the target was opened")
        if resume:
            ready = await resume_target(setup, sut, directory, progress=progress, stop=stop)
            store = ExperimentStore.open(directory)
        else:
            ready = await prepare_target(setup, sut, progress=progress, stop=stop)
            environment = await unless_stopped(stop, sut.environment, "while the target was asked what it runs on")
            manifest = _manifest(setup, sut, ready, kind=kind, environment=dict(environment))
            store = ExperimentStore.create(directory, manifest)
        try:
            yield Runner(
                scenario=setup.scenario,
                ready=ready,
                sut=sut,
                store=store,
                progress=progress,
                stop=stop,
                booked_s=began_s,
                identity=ready.identity_now,
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
        search = Search.replay(
            setup.spec, setup.seeds, criteria_of(setup.scenario, setup.workload), judged_runs(directory)
        )
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


def _manifest(
    setup: Setup, sut: Sut, ready: Preparation, *, kind: ExperimentKind, environment: dict[str, str]
) -> Manifest:
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
            environment=environment,
            notes=stored.get("note", {}),
            format=ready.workload.format,
            content_unpaired=ready.terms.content_unpaired,
            events_per_read=ready.terms.events_per_read,
        ),
        notes=(*sut.notes, *setup.workload.notes, *ready.notes),
    )
