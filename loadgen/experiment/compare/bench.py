"""Live variants and their results directories: what carries out the runs of a comparison.

Theory of operation. A new comparison prepares every variant before a result is written: each is opened, asked what it
can do and warmed; what must be equal for all is checked or made equal. Then each variant gets an experiment directory
of its own. Variants that are up together stay open. Launched ones that share their GPUs are up one at a time, and one
that is started again is prepared as a resumed experiment prepares its target. A resumed comparison opens a variant when
its first run is asked for. The time between two runs is booked once, whichever variants made them.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from analysis.search import Outcome, RunRequest
from analysis.units import format_duration
from analysis.verdict import RunVerdict
from loadgen.common.errors import TargetError
from loadgen.common.stopping import unless_stopped
from loadgen.experiment.compare.alike import check_alike
from loadgen.experiment.compare.setup import ComparisonSetup, VariantSetup
from loadgen.experiment.execute import Prepared, manifest_of, prepared_target
from loadgen.experiment.progress import Note, Progress, ProgressEvent
from loadgen.experiment.runner import Runner, RunResult
from loadgen.plan.types import RunPlan
from loadgen.results.answer import assemble
from loadgen.results.comparison import (
    ComparisonManifest,
    check_comparison_free,
    create_comparison,
    forget_comparison_answer,
    log_file,
    variant_directory,
)
from loadgen.results.manifest import machine, versions
from loadgen.results.store import ExperimentStore, read_ledger
from loadgen.results.types import LedgerLine, Manifest
from loadgen.target.launcher import Launched, LaunchSpec, check_launch, launched

__all__ = ["LiveBench", "launch_spec"]

Judged = tuple[RunRequest, RunVerdict]


def launch_spec(variant: VariantSetup) -> LaunchSpec | None:
    """How the variant's server is started; `None` where it is up already."""
    own = variant.settings
    if own.launch is None:
        return None
    return LaunchSpec(
        name=own.name,
        command=own.launch,
        env=own.env,
        cwd=own.cwd,
        ready_timeout_s=variant.setup.scenario.ready_timeout,
    )


@dataclass(slots=True, kw_only=True)
class _Up:
    """A variant whose target is open."""

    stack: AsyncExitStack
    prepared: Prepared
    server: Launched | None
    runner: Runner | None = None


@dataclass(slots=True, kw_only=True)
class LiveBench:
    """See `Bench`; a context manager that ends with every target closed and every launched server stopped."""

    setup: ComparisonSetup
    directory: Path
    progress: Progress
    stop: anyio.Event
    booked_s: float  # until when time is in a ledger, on the monotonic clock; the command's start
    _up: dict[str, _Up] = field(default_factory=dict)
    _stores: dict[str, ExperimentStore] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            for name in list(self._up):
                await self.close(name)
        finally:
            for store in self._stores.values():
                store.close()

    async def create(self) -> None:
        """Prepare every variant, then begin their experiments.

        Raises `ResultsError`, `UsageError`, `TargetError`, `ClientLimited` and `Aborted`; then no result is there.
        """
        check_comparison_free(self.directory)
        for variant in self.setup:
            if (spec := launch_spec(variant)) is not None:
                check_launch(spec)
        manifests = {}
        # where one is up at a time, the last to be prepared is the first to be measured
        last_first = not self.setup.together and not self.setup.searches
        for variant in reversed(self.setup.variants) if last_first else self.setup.variants:
            up = await self._open(variant, resume=False)
            manifests[variant.name] = await manifest_of(variant.setup, up.prepared, kind="sweep", stop=self.stop)
        for line in check_alike(self.setup, manifests):
            self.progress.note(line)
        # one warm-up and one rule for content in all runs, so that pairs meet the same window and workload
        warmup_s = max(one.warmup_s for one in manifests.values())
        unpaired = any(one.target.content_unpaired for one in manifests.values())
        self.progress.note(f"warm-up of all variants: {format_duration(warmup_s)}")
        for name, one in manifests.items():
            target = replace(one.target, content_unpaired=unpaired)
            manifest = replace(one, warmup_s=warmup_s, target=target)
            self._stores[name] = ExperimentStore.create(variant_directory(self.directory, name), manifest)
            if (up_now := self._up.get(name)) is not None:
                up_now.prepared = _under(up_now.prepared, manifest)
        create_comparison(
            self.directory,
            ComparisonManifest(
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                scenario=self.setup.scenario.stored(),
                comparison=self.setup.settings,
                sha256=self.setup.sha256,
                seeds=self.setup.seeds,
                spares=self.setup.spares,
                versions=versions(),
                machine=machine(),
            ),
        )

    def reopen(self) -> None:
        """Own the experiments of a comparison that goes on. Raises `ResultsError`."""
        for variant in self.setup:
            store = ExperimentStore.open(variant_directory(self.directory, variant.name))
            self._stores[variant.name] = store
        forget_comparison_answer(self.directory)

    async def executor(self, name: str) -> _Executor:
        """See `Bench`."""
        variant = self.setup[name]
        up = self._up.get(name) or await self._open(variant, resume=True)
        if up.runner is None:
            up.runner = Runner(
                scenario=variant.setup.scenario,
                ready=up.prepared.ready,
                sut=up.prepared.sut,
                store=self._stores[name],
                progress=self._of(name),
                stop=self.stop,
                early_fail=self.setup.searches,
                identity=up.prepared.ready.identity_now,
            )
        return _Executor(bench=self, name=name, runner=up.runner, server=up.server)

    def ledger(self, name: str) -> list[LedgerLine]:
        """The variant's sealed runs."""
        return read_ledger(variant_directory(self.directory, name))

    def searched(self, name: str) -> Sequence[Judged]:
        """See `Bench`."""
        return [(line.run, line.verdict) for line in self.ledger(name) if line.run.kind != "paired"]

    def paired(self, name: str) -> Sequence[Judged]:
        """See `Bench`; with the variant's own name, which its directory says."""
        lines = [line for line in self.ledger(name) if line.run.kind == "paired"]
        return [(replace(line.run, variant=name), line.verdict) for line in lines]

    def ended(self, name: str, outcome: Outcome) -> None:
        """Write the variant's capacity.json."""
        setup = self.setup[name].setup
        answer = assemble(variant_directory(self.directory, name), setup.scenario, setup.spec, outcome)
        self._stores[name].answer(answer)

    async def _open(self, variant: VariantSetup, *, resume: bool) -> _Up:
        name, spec = variant.name, launch_spec(variant)
        if not self.setup.together:
            for other in list(self._up):
                await self.close(other)
        progress = self._of(name)
        async with AsyncExitStack() as stack:
            server: Launched | None = None
            address: tuple[str, ...] = ()
            if spec is not None:
                starting = launched(spec, log=log_file(self.directory, name), note=self.progress.note)
                server = await unless_stopped(
                    self.stop, lambda: stack.enter_async_context(starting), f"while {name} was started"
                )
                address = (server.url,)
            before = variant_directory(self.directory, name) if resume else None
            opening = prepared_target(variant.setup, resume=before, progress=progress, stop=self.stop, address=address)
            if server is None:
                prepared = await stack.enter_async_context(opening)
            else:
                prepared = await server.until_ready(lambda: stack.enter_async_context(opening))
            self._up[name] = _Up(stack=stack.pop_all(), prepared=prepared, server=server)
        return self._up[name]

    async def close(self, name: str) -> None:
        """Close the variant's target, and stop its server if it was launched."""
        up = self._up.pop(name, None)
        if up is None:
            return
        try:
            await up.stack.aclose()
        except TargetError as error:  # such as a server that cannot be stopped: its runs are sealed
            self.progress.note(str(error))

    def _of(self, name: str) -> Progress:
        """Progress whose lines name the variant."""

        def tell(event: ProgressEvent) -> None:
            if isinstance(event, Note):
                self.progress.tell(replace(event, text=f"{name}: {event.text}"))
            else:
                self.progress.tell(replace(event, run=replace(event.run, title=f"{name}: {event.run.title}")))

        return Progress(tell)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Executor:
    """A variant's runner, which books time for the whole bench."""

    bench: LiveBench
    name: str
    runner: Runner
    server: Launched | None

    def plan(self, request: RunRequest) -> RunPlan:
        """The plan of a run."""
        return self.runner.plan(request)

    async def execute(self, request: RunRequest) -> RunResult:
        """Do the run; a target that is gone is closed. Raises as `Runner.execute`, and when a launched server dies."""
        self.runner.booked_s = self.bench.booked_s
        try:
            if self.server is None:
                done = await self.runner.execute(request)
            else:
                done = await self.server.while_it_lives(lambda: self.runner.execute(request))
        except TargetError:
            await self.bench.close(self.name)
            raise
        self.bench.booked_s = self.runner.booked_s
        return done


def _under(prepared: Prepared, manifest: Manifest) -> Prepared:
    """A target prepared under what the experiment's manifest says."""
    ready = prepared.ready
    terms = replace(ready.terms, content_unpaired=manifest.target.content_unpaired)
    return replace(prepared, ready=replace(ready, warmup_s=manifest.warmup_s, terms=terms))
