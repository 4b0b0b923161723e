"""The two phases of a comparison, on whatever carries out runs: a search for each variant, then the paired runs.

Theory of operation. `Bench` gives an executor for a variant, starting its server where it must; it is asked for one
variant at a time. What the phases know is a fold over the runs of each variant's ledger, so resuming a comparison is
replaying the ledgers and entering the same code. A variant whose target is gone leaves the comparison; what it showed
before is kept, and the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from analysis.compare.phase import PairedEnd, PairedPhase
from analysis.compare.types import ComparisonOutcome
from analysis.search import VARIANT, Outcome, RunRequest, Search
from analysis.verdict import RunVerdict
from loadgen.common.errors import Aborted, ClientLimited, TargetError
from loadgen.experiment.compare.setup import ComparisonSetup, VariantSetup
from loadgen.experiment.run_plan import criteria_of
from loadgen.experiment.search_loop import Budget, RunExecutor, run_search

__all__ = ["Bench", "Measured", "run_phases"]

Judged = tuple[RunRequest, RunVerdict]


class Bench(Protocol):
    """What carries out the runs of each variant: live servers and results directories, or memory."""

    async def executor(self, name: str) -> RunExecutor:
        """The variant's executor, its server up. Raises `TargetError`, `ResultsError`, `ClientLimited`, `Aborted`."""
        ...

    def searched(self, name: str) -> Sequence[Judged]:
        """The runs of the variant's search so far."""
        ...

    def paired(self, name: str) -> Sequence[Judged]:
        """The variant's paired runs so far."""
        ...

    def ended(self, name: str, outcome: Outcome) -> None:
        """The variant's search ended like this."""
        ...


@dataclass(slots=True, kw_only=True)
class Measured:
    """What both phases came to."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of the searches that were begun
    lost: dict[str, str] = field(default_factory=dict)  # variant -> why its target is gone
    phase: PairedPhase | None = None  # None: it was not begun
    stopped: tuple[ComparisonOutcome, str] | None = None  # the outcome and the reason for which nothing more was run


async def run_phases(setup: ComparisonSetup, bench: Bench, budget: Budget) -> Measured:
    """Carry out what is still to be done of both phases.

    Raises `ResultsError` where the disk refuses; all sealed runs stay in the ledgers.
    """
    measured = Measured()
    if setup.searches:
        # the target that was prepared last is still up where only one can be
        for variant in setup if setup.together else reversed(setup.variants):
            await _search(variant, bench, budget, measured)
            if measured.stopped is not None:
                return measured
    await _pair(setup, bench, budget, measured)
    return measured


async def _search(variant: VariantSetup, bench: Bench, budget: Budget, measured: Measured) -> None:
    setup, name = variant.setup, variant.name
    search = Search.replay(setup.spec, setup.seeds, criteria_of(setup.scenario, setup.workload), bench.searched(name))
    search.retry()
    outcome = search.ask()
    if isinstance(outcome, RunRequest):
        try:
            outcome = await run_search(search, await bench.executor(name), budget)
        except TargetError as error:
            measured.lost[name] = str(error)
            outcome = search.stop("UNSTABLE_TARGET", str(error))
        except Aborted as error:
            outcome = search.stop("ABORTED", str(error))
        except ClientLimited as error:
            outcome = search.stop("CLIENT_LIMITED", str(error))
    measured.outcomes[name] = outcome
    bench.ended(name, outcome)
    if outcome.name in ("ABORTED", "BUDGET_EXHAUSTED"):
        measured.stopped = outcome.name, f"{name}: {outcome.reason}"


async def _pair(setup: ComparisonSetup, bench: Bench, budget: Budget, measured: Measured) -> None:
    while True:
        here = {name: outcome for name, outcome in measured.outcomes.items() if name not in measured.lost}
        plan = setup.plan(here, without=measured.lost)
        if len(plan.variants) < 2:
            if measured.phase is not None:
                measured.stopped = "UNSTABLE_TARGET", "fewer than two variants are left to be compared"
            return
        runs = [run for name in plan.variants for run in bench.paired(name)]
        phase = measured.phase = PairedPhase.replay(plan, plan.own(runs))
        if not await _execute(phase, bench, budget, measured):
            return


async def _execute(phase: PairedPhase, bench: Bench, budget: Budget, measured: Measured) -> bool:
    """Whether a target was lost on the way, so that the others' phase is another one."""
    while True:
        asked = phase.ask()
        if isinstance(asked, PairedEnd):
            if asked.name != "COMPLETE":
                measured.stopped = asked.name, asked.reason
            return False
        own = replace(asked, variant=VARIANT)  # in its own directory
        try:
            executor = await bench.executor(asked.variant)
            if refusal := budget.refusal(partial(executor.plan, own)):
                measured.stopped = "BUDGET_EXHAUSTED", refusal
                return False
            done = await executor.execute(own)
        except TargetError as error:
            measured.lost[asked.variant] = str(error)
            return True
        except Aborted as error:
            measured.stopped = "ABORTED", str(error)
            return False
        except ClientLimited as error:
            measured.stopped = "CLIENT_LIMITED", f"{asked.variant}: {error}"
            return False
        budget.spend(done)
        phase.tell(asked, done.verdict)
