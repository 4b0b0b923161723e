"""A gate against a baseline: the same runs on another build, and the paired difference (docs/gate.md).

Theory of operation. Settings, seeds, rates and warm-up are the baseline's; only the target may be another. The
scenario that is stored is the baseline's with that target, so a gate can be the baseline of the next one, and blocks
of a trace are cut as they were. What must agree is checked before anything is written: settings, model, request format,
and the hashes of every schedule and workload. Then the runs are a fold over the ledger (`analysis.compare.reruns`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from analysis.compare.phase import PairedEnd
from analysis.compare.regression import Partner, RegressionAnswer, RegressionOutcome, regression
from analysis.compare.reruns import Reruns
from analysis.units import parse_share
from loadgen.common.errors import Aborted, ClientLimited, ResultsError, ScenarioError, TargetError
from loadgen.experiment.execute import check_kind, manifest_of, prepared_target
from loadgen.experiment.gate.alike import check_same, other_conditions
from loadgen.experiment.gate.baseline import BASELINE, NOW, Stored, measured_run, open_stored
from loadgen.experiment.prepare import Setup, prepare, resumed_scenario
from loadgen.experiment.progress import Progress
from loadgen.experiment.runner import Runner
from loadgen.experiment.search_loop import Budget
from loadgen.experiment.warmup import Warmth
from loadgen.results.answer import conditions, notes
from loadgen.results.files import check_free
from loadgen.results.regression import BaselineRecord, BaselineRun, read_baseline, write_baseline, write_gate
from loadgen.results.store import ExperimentStore, read_experiment, read_ledger
from loadgen.results.types import LedgerLine
from loadgen.scenario.file import load_scenario
from loadgen.scenario.model import Scenario, differences
from loadgen.scenario.overrides import Value

__all__ = ["GateSetup", "answered", "prepare_gate_against", "regress", "resumed_gate"]

# which runs were made: the baseline's are made again, whatever a scenario says
_CHOSEN: Final = (
    "rate", "runs", "explore", "all_runs", "confirm", "width", "seeds", "seed", "seeding", "require", "search",
    "min_requests",
)  # fmt: skip
# where the target is and how it is reached and watched; its model is asked of it
_ELSEWHERE: Final = (
    "target", "model", "ca_file", "cert_file", "key_file", "insecure", "metrics_url", "scrape_interval",
    "restart_command", "between_command", "prewarm",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSetup:
    """A gate against a baseline before anything is sent."""

    setup: Setup
    baseline: BaselineRecord
    stored: Stored | None = None  # None: resumed, when it was checked already

    @property
    def scenario(self) -> Scenario:
        """The settings: the baseline's, on another target."""
        return self.setup.scenario


def prepare_gate_against(
    baseline: str | Path,
    overrides: Mapping[str, Value],
    *,
    scenario: str | None = None,
    rate: str | None = None,
    runs: int | None = None,
    margin: str = "5%",
) -> GateSetup:
    """The runs of stored results at one of their rates, to be made again under options that name another target.

    Every setting is the baseline's; those of a `scenario` file, and `overrides`, must agree with it. `rate` is one of
    its rates as tables print it, by default its proved one; `runs` takes the first of them. Raises `ResultsError` for
    what cannot be a baseline, naming all settings that differ, and `ScenarioError`.
    """
    stored = open_stored(Path(baseline))
    try:
        limit = float(parse_share(margin))
    except ValueError as error:
        raise ScenarioError(f"--margin: {error}") from None
    if limit <= 0:
        raise ScenarioError(f"--margin {margin}: must be above 0, such as 5%")
    lines = stored.pick(rate, runs)
    before = stored.scenario
    known = {**stored.manifest.scenario, **overrides}
    now = Scenario.restore(known) if scenario is None else load_scenario(scenario, overrides)
    differing = [one for one in differences(before, now) if one.partition(":")[0] not in (*_CHOSEN, *_ELSEWHERE)]
    if differing:
        raise other_conditions(stored, differing)
    same = {key: getattr(before, key) for key in _CHOSEN if getattr(now, key) != getattr(before, key)}
    setup = prepare(now.model_copy(update=same))
    manifest = stored.manifest
    record = BaselineRecord(
        partner=Partner(directory=str(baseline), created=manifest.created, target=manifest.target.label),
        rate=lines[0].run.rate,
        margin=limit,
        warmup_s=manifest.warmup_s,
        residence_s=manifest.residence_s,
        content_unpaired=manifest.target.content_unpaired,
        runs=tuple(
            BaselineRun(
                request=line.run,
                numbers=measured_run(stored.directory, line, before, variant=BASELINE, replicate=k),
            )
            for k, line in enumerate(lines)
        ),
    )
    return GateSetup(setup=setup, baseline=record, stored=stored)


def resumed_gate(directory: Path, overrides: Mapping[str, Value]) -> Setup | GateSetup:
    """The gate in that directory, of either kind, under new options.

    Raises as `resumed_scenario`, and `ResultsError`.
    """
    setup = prepare(resumed_scenario(directory, overrides))
    if read_experiment(directory).kind != "regression":
        return setup
    return GateSetup(setup=setup, baseline=read_baseline(directory))


async def regress(
    gate: GateSetup, directory: Path, *, resume: bool, progress: Progress, stop: anyio.Event, began_s: float
) -> RegressionAnswer:
    """Make the runs, or those still to be made, and write gate.json.

    Raises `ResultsError`, `TargetError`, `ClientLimited` and `Aborted` before anything is on the disk; the target that
    goes later raises `TargetError` after the answer was written.
    """
    setup, record = gate.setup, gate.baseline
    if resume:
        check_kind(directory, "regression")
    else:
        check_free(directory)
    fixed = Warmth(warmup_s=record.warmup_s, residence_s=record.residence_s)
    opening = prepared_target(setup, resume=directory if resume else None, progress=progress, stop=stop, fixed=fixed)
    async with opening as opened:
        terms = replace(opened.ready.terms, content_unpaired=record.content_unpaired)
        prepared = replace(opened, ready=replace(opened.ready, terms=terms))
        if resume:
            store = ExperimentStore.open(directory)
        else:
            if gate.stored is not None:
                check_same(gate.stored, record, prepared)
            store = ExperimentStore.create(directory, await manifest_of(setup, prepared, kind="regression", stop=stop))
        with closing(store):
            if not resume:
                write_baseline(directory, record)
            if opened.ready.terms.content_unpaired:
                progress.note("the cache of this target cannot be proved cold: restart it if a gate ran on it before")
            ledger = read_ledger(directory)
            reruns = _replayed(record, ledger)
            if ledger:
                progress.note(f"resuming {directory}: {len(ledger)} sealed runs carried over")
            runner = Runner(
                scenario=setup.scenario,
                ready=prepared.ready,
                sut=prepared.sut,
                store=store,
                progress=progress,
                stop=stop,
                booked_s=began_s,
                identity=prepared.ready.identity_now,
            )
            budget = Budget.of(setup.scenario, ledger, clock=lambda: time.monotonic() - began_s)
            try:
                ended = await _make(reruns, runner, budget)
            except TargetError as error:
                write_gate(directory, answered(directory, setup, ("UNSTABLE_TARGET", str(error))))
                raise
            answer = answered(directory, setup, ended)
            write_gate(directory, answer)
            return answer


def answered(directory: Path, setup: Setup, ended: tuple[RegressionOutcome, str] | None = None) -> RegressionAnswer:
    """The answer of the gate in a directory from its sealed runs; without `ended`, how far they go.

    Raises `ResultsError`.
    """
    record, ledger, manifest = read_baseline(directory), read_ledger(directory), read_experiment(directory)
    reruns = _replayed(record, ledger)
    outcome, reason = ended or _so_far(reruns, directory)
    lines = {line.run.key: line for line in ledger}
    counting = [(k, lines[request.key]) for k, request, _ in reruns.counting()]
    try:
        return regression(
            outcome=outcome,
            reason=reason,
            margin=record.margin,
            pairs=len(record.runs),
            left_out=reruns.left_out,
            sealed=len(ledger),
            rate=record.rate,
            baseline=record.partner,
            conditions=conditions(setup.scenario, setup.spec, manifest),
            runs=[measured_run(directory, line, setup.scenario, variant=NOW, replicate=k) for k, line in counting],
            baseline_runs=[record.runs[k].numbers for k, _ in counting],
            notes=notes(setup.scenario, manifest),
        )
    except ValueError as error:
        raise ResultsError(f"{directory}: {error}: measure again") from None


def _so_far(reruns: Reruns, directory: Path) -> tuple[RegressionOutcome, str]:
    asked = reruns.ask()
    if isinstance(asked, PairedEnd):
        return asked.name, asked.reason
    return "UNFINISHED", f"go on with: loadgen gate --resume {directory}"


async def _make(reruns: Reruns, runner: Runner, budget: Budget) -> tuple[RegressionOutcome, str]:
    while True:
        asked = reruns.ask()
        if isinstance(asked, PairedEnd):
            return asked.name, asked.reason
        if refusal := budget.refusal(partial(runner.plan, asked)):
            return "BUDGET_EXHAUSTED", refusal
        try:
            done = await runner.execute(asked)
        except Aborted as stopped:
            return "ABORTED", str(stopped)
        except ClientLimited as limited:
            return "CLIENT_LIMITED", str(limited)
        budget.spend(done)
        reruns.tell(asked, done.verdict)


def _replayed(record: BaselineRecord, ledger: Sequence[LedgerLine]) -> Reruns:
    requests = [run.request for run in record.runs]
    pairs = [(line.run, line.verdict) for line in ledger]
    return Reruns.replay(requests, pairs, again=not record.content_unpaired)
