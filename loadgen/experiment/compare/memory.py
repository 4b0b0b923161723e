"""A comparison rehearsed: both phases in virtual time and in memory, on simulated variants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from analysis.compare.answer import compared
from analysis.compare.types import Comparison, VariantRun
from analysis.search import Bill, Outcome, RunRequest
from analysis.verdict import RunVerdict
from loadgen.experiment.compare.evidence import at_points, capacities_of, declared, ending, numbers_of
from loadgen.experiment.compare.phases import Measured, run_phases
from loadgen.experiment.compare.setup import ComparisonSetup, VariantSetup
from loadgen.experiment.rehearse import MemoryRunner, Rehearsal, plan_rehearsal
from loadgen.experiment.runner import RunResult
from loadgen.experiment.search_loop import Budget
from loadgen.send.api import RunOutput

__all__ = ["RehearsedComparison", "rehearse_comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedComparison:
    """What a comparison came to in virtual time: the searches, the paired runs that count by point, and the answer.

    The answer has no conditions and no lone requests. `cost` is what it would have taken live.
    """

    measured: Measured
    runs: tuple[VariantRun, ...]
    answer: Comparison
    cost: Bill


def rehearse_comparison(setup: ComparisonSetup) -> RehearsedComparison:
    """Carry out both phases once, within the scenario's budget of live time and requests.

    Raises `ScenarioError` for a variant that is not `virtual:PROFILE`.
    """
    plans = {one.name: plan_rehearsal(one.setup) for one in setup}
    # one warm-up for all, as every rate and variant must have (method, section 6)
    warmup_s = max(plan.warmup_s for plan in plans.values())
    bench = _MemoryBench(
        runners={
            one.name: _Runner(on=replace(plans[one.name], warmup_s=warmup_s), early_fail=setup.searches, variant=one)
            for one in setup
        }
    )
    budget = Budget.of(setup.scenario)
    measured = asyncio.run(run_phases(setup, bench, budget))
    runs = bench.counting(measured)
    outcome, reason = ending(measured)
    return RehearsedComparison(
        measured=measured,
        runs=tuple(runs),
        answer=compared(
            declared(setup),
            outcome=outcome,
            reason=reason,
            conditions={},
            seeds=setup.seeds if measured.phase is None else measured.phase.seeds,
            lost=measured.lost,
            capacities=capacities_of(setup, measured),
            lone={},
            runs=runs,
            notes=(),
        ),
        cost=Bill(
            runs=sum(len(one.searched) + len(one.paired) for one in bench.runners.values()),
            hours=budget.spent_s / 3600,
            requests=budget.requests,
            tokens=budget.tokens,
        ),
    )


@dataclass(slots=True, kw_only=True)
class _Runner(MemoryRunner):
    """Keeps the numbers of paired runs, and every verdict."""

    on: Rehearsal
    variant: VariantSetup
    kept: dict[str, VariantRun] = field(default_factory=dict)  # by the run's key
    searched: list[tuple[RunRequest, RunVerdict]] = field(default_factory=list)
    paired: list[tuple[RunRequest, RunVerdict]] = field(default_factory=list)
    _output: RunOutput | None = None

    def seen(self, request: RunRequest, output: RunOutput) -> None:
        self._output = output

    async def execute(self, request: RunRequest) -> RunResult:
        """Simulate and judge a run."""
        done = self.run(request)
        if request.kind != "paired":
            self.searched.append((request, done.verdict))
            return done
        assert self._output is not None
        plan = self.plan(request)
        self.paired.append((replace(request, variant=self.variant.name), done.verdict))
        self.kept[request.key] = numbers_of(
            self._output.requests,
            request,
            done.verdict,
            self.variant,
            window=plan.window,
            schedule_sha256=plan.schedule.sha256,
            workload_sha256=plan.workload_sha256,
        )
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryBench:
    """See `Bench`."""

    runners: dict[str, _Runner]

    async def executor(self, name: str) -> _Runner:
        return self.runners[name]

    def searched(self, name: str) -> Sequence[tuple[RunRequest, RunVerdict]]:
        return self.runners[name].searched

    def paired(self, name: str) -> Sequence[tuple[RunRequest, RunVerdict]]:
        return self.runners[name].paired

    def ended(self, name: str, outcome: Outcome) -> None:
        """Nothing is written."""

    def counting(self, measured: Measured) -> list[VariantRun]:
        """The paired runs that count, once for each point they belong to."""
        return at_points(measured.phase, lambda job, request, _: self.runners[job.variant].kept[request.key])
