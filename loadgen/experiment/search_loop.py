"""The main job: carry out a search's runs until it has an outcome, within what the user allows it to cost.

The search (analysis.search) decides and knows nothing of servers; the runner (loadgen.experiment.runner) acts and
decides nothing. This module is the loop between them. The ledger holds all verdicts of an experiment, so resuming it is
replaying the ledger into a new search and entering the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from analysis.search import Outcome, RunRequest, Search
from analysis.units import format_duration
from loadgen.common.errors import Aborted, ClientLimited
from loadgen.experiment.runner import RunResult
from loadgen.plan.types import RunPlan
from loadgen.results.types import LedgerLine
from loadgen.scenario.model import Scenario

__all__ = ["Budget", "RunExecutor", "run_search"]


@dataclass(slots=True, kw_only=True)
class Budget:
    """What the search may cost, and what it has cost so far (an earlier, interrupted part included).

    Time is wall time since the command started, so that probing, warming and settling count; without a `clock` (in
    virtual time) it is the seconds of the runs.
    """

    max_time_s: float | None
    max_requests: int | None
    max_tokens: int | None
    clock: Callable[[], float] | None = None  # seconds since the command started
    earlier_s: float = 0.0  # of interrupted parts
    requests: int = 0
    tokens: int = 0
    _runs_s: float = 0.0  # of this part
    _gap_s: float = 0.0  # the longest between two runs so far: settling, the user's command
    _ended_s: float | None = None  # when the last run did; before the first, when the first was asked for

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        ledger: Sequence[LedgerLine] = (),
        clock: Callable[[], float] | None = None,
    ) -> Budget:
        """The scenario's budget, less what the ledger's runs of every variant took with all that went before each."""
        return cls(
            max_time_s=scenario.max_time,
            max_requests=scenario.max_requests,
            max_tokens=scenario.max_tokens,
            clock=clock,
            earlier_s=sum(line.elapsed_s for line in ledger),
            requests=sum(line.requests for line in ledger),
            tokens=sum(line.tokens for line in ledger),
        )

    @property
    def spent_s(self) -> float:
        """Time spent so far, seconds."""
        return self.earlier_s + (self._runs_s if self.clock is None else self.clock())

    def refusal(self, plan: Callable[[], RunPlan]) -> str:
        """Why the run of that plan would go beyond the budget; empty if it does not. Without a limit no plan is made.

        A run counts with its warm-up and window and with as much between it and the one before as there was so far; not
        with the tail that it needs only where answers are late.
        """
        if self.clock is not None and self._ended_s is None:
            self._ended_s = self.clock()
        if self.max_time_s is None and self.max_requests is None and self.max_tokens is None:
            return ""
        return self._beyond(plan())

    def _beyond(self, plan: RunPlan) -> str:
        due = int(plan.schedule.at_ns.searchsorted(plan.window.end_ns))
        tokens = int(plan.input_tokens[:due].sum() + plan.output_tokens[:due].sum())
        run_s = plan.window.end_ns / 1e9 + self._gap_s
        if self.max_time_s is not None and self.spent_s + run_s > self.max_time_s:
            return (
                f"--max-time {format_duration(self.max_time_s)}: {format_duration(self.spent_s)} are spent and the "
                f"next run takes {format_duration(run_s)}"
            )
        for option, limit, spent, next_run in (
            ("--max-requests", self.max_requests, self.requests, due),
            ("--max-tokens", self.max_tokens, self.tokens, tokens),
        ):
            if limit is not None and spent + next_run > limit:
                return f"{option} {limit}: {spent} are spent and the next run asks for {next_run}"
        return ""

    def spend(self, done: RunResult) -> None:
        """Book a run, which has just ended."""
        self._runs_s += done.seconds
        if self.clock is not None:
            now_s = self.clock()
            self._gap_s = max(self._gap_s, now_s - (self._ended_s or 0.0) - done.seconds)
            self._ended_s = now_s
        self.requests += done.requests
        self.tokens += done.tokens


class RunExecutor(Protocol):
    """What carries runs out: `Runner` on a target, or a rehearsal in memory."""

    def plan(self, request: RunRequest) -> RunPlan:
        """The plan of a run."""
        ...

    async def execute(self, request: RunRequest) -> RunResult:
        """Do the run."""
        ...


async def run_search(search: Search, runner: RunExecutor, budget: Budget) -> Outcome:
    """Run until the search has an outcome; the bracket so far where the budget, the user or a want of ports ends it.

    Raises `TargetError` and `ResultsError` as `Runner.execute` does; all sealed runs stay in the ledger.
    """
    while True:
        asked = search.ask()
        if isinstance(asked, Outcome):
            return asked
        if refusal := budget.refusal(partial(runner.plan, asked)):
            return search.stop("BUDGET_EXHAUSTED", refusal)
        try:
            done = await runner.execute(asked)
        except Aborted as stopped:
            return search.stop("ABORTED", str(stopped))
        except ClientLimited as limited:
            return search.stop("CLIENT_LIMITED", str(limited))
        budget.spend(done)
        search.tell(asked, done.verdict)
