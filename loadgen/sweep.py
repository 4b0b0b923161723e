"""The main job: carry out a search's runs until it has an outcome, within what the user allows it to cost.

The search (analysis.search) decides and knows nothing of servers; the runner (loadgen.run) acts and decides nothing.
This module is the loop between them. What an experiment was told lies in its ledger, so going on after an interruption
is replaying the ledger into a new search and entering the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from analysis.search import Outcome, RunRequest, Search
from analysis.units import format_duration
from loadgen.errors import Aborted
from loadgen.plan.types import RunPlan
from loadgen.run import Done
from loadgen.scenario import Scenario

__all__ = ["Budget", "Carrier", "carry_out"]


@dataclass(slots=True, kw_only=True)
class Budget:
    """What the search may cost, and what it has cost so far (an earlier, interrupted part included)."""

    max_time_s: float | None
    max_requests: int | None
    max_tokens: int | None
    spent_s: float = 0.0
    requests: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, scenario: Scenario, ledger: Sequence[dict[str, object]] = ()) -> Budget:
        """The scenario's budget, less what the ledger's runs took."""

        def total(key: str) -> float:
            return sum(value for line in ledger if isinstance(value := line.get(key), int | float))

        return cls(
            max_time_s=scenario.max_time,
            max_requests=scenario.max_requests,
            max_tokens=scenario.max_tokens,
            spent_s=total("seconds"),
            requests=int(total("requests")),
            tokens=int(total("tokens")),
        )

    def refusal(self, plan: Callable[[], RunPlan]) -> str:
        """Why the run of that plan would go beyond the budget; empty if it does not. Without a limit no plan is made.

        A run counts with its warm-up and window, not with the tail that it needs only where answers are late.
        """
        if self.max_time_s is None and self.max_requests is None and self.max_tokens is None:
            return ""
        return self._beyond(plan())

    def _beyond(self, plan: RunPlan) -> str:
        due = int(plan.schedule.at_ns.searchsorted(plan.window.end_ns))
        tokens = int(plan.input_tokens[:due].sum() + plan.output_tokens[:due].sum())
        run_s = plan.window.end_ns / 1e9
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

    def spend(self, done: Done) -> None:
        """Book a run."""
        self.spent_s += done.seconds
        self.requests += done.requests
        self.tokens += done.tokens


class Carrier(Protocol):
    """What carries runs out: `Runner` on a target, or a rehearsal in memory."""

    def plan(self, request: RunRequest) -> RunPlan:
        """The plan of a run."""
        ...

    async def execute(self, request: RunRequest) -> Done:
        """Do the run."""
        ...


async def carry_out(search: Search, runner: Carrier, budget: Budget) -> Outcome:
    """Run until the search has an outcome; the bracket so far where the budget or the user ends it.

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
        budget.spend(done)
        search.tell(asked, done.verdict)
