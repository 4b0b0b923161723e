"""An experiment rehearsed: all of it, many times, in virtual time and in memory, before a live server is asked for it.

Theory of operation. A repeat is the experiment itself (its scenario, plans, simulated server, judge and search) under
another seed; only the results directory is missing, and a run's cost is what it would have taken live: its load until
the end of the run, and what lies between two runs. Repeats are independent, so processes of their own carry them out,
one a core. Beside the experiment as asked, smaller numbers of repeats try other windows and numbers of replicates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import anyio

from analysis.judge import judge_run
from analysis.report.repeats import RehearsalReport, RehearsedPlan, Repeat, plan_row, summarise
from analysis.search import RunRequest, Search
from analysis.units import format_duration
from analysis.verdict import RunFacts
from loadgen.common import defaults
from loadgen.common.documents import widened
from loadgen.common.errors import Aborted, ScenarioError
from loadgen.emulator.profiles import Profile
from loadgen.emulator.virtual import simulate_run
from loadgen.experiment.forecast import BETWEEN_S
from loadgen.experiment.pool import cores_for, spread
from loadgen.experiment.prepare import Setup
from loadgen.experiment.progress import Progress
from loadgen.experiment.run_plan import criteria_of, plan_of, run_options
from loadgen.experiment.runner import RunResult
from loadgen.experiment.search_loop import Budget, run_search
from loadgen.experiment.virtual_sut import VirtualSut
from loadgen.experiment.warmup import warm_target
from loadgen.plan.seeds import derive
from loadgen.plan.types import NS, RunPlan
from loadgen.send.api import RunOutput, SendOptions
from loadgen.workload.workload import seed_book

__all__ = ["MemoryRunner", "Rehearsal", "check_rehearsable", "plan_rehearsal", "rehearse", "repeat", "variations"]

MIN_PER_CELL: Final = 5
_CELL_SHARE: Final = 10  # one in ten repeats for each other window and number of replicates
_WINDOWS: Final = (1, 2, 4)
_SAID_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """An experiment with the simulated server it is rehearsed on."""

    setup: Setup
    profile: Profile
    warmup_s: float
    residence_s: float | None = None  # at the lowest rate


def check_rehearsable(setup: Setup) -> None:
    """Raise `ScenarioError` where the experiment has no virtual time or nothing to repeat."""
    target = setup.scenario.target
    kind = target[0].partition(":")[0]
    if kind != "virtual" or len(target) > 1:
        raise ScenarioError(
            f"--rehearse repeats an experiment in virtual time, not on {target[0]}: choose --target virtual:PROFILE"
        )
    if setup.workload.recorded is not None:
        raise ScenarioError(
            "--rehearse draws new arrivals for every repeat, and a recorded trace has but its own: fit a process to it"
        )


def plan_rehearsal(setup: Setup) -> Rehearsal:
    """Make ready to rehearse. Raises as `check_rehearsable`."""
    check_rehearsable(setup)
    sut = VirtualSut(profile_name=setup.scenario.target[0].partition(":")[2] or defaults.PROFILE)
    warmth = asyncio.run(
        warm_target(
            setup.scenario,
            setup.workload,
            sut,
            lowest_rate=setup.spec.grid[0],
            experiment="rehearsal",
            stop=anyio.Event(),
        )
    )
    return Rehearsal(setup=setup, profile=sut.profile, warmup_s=warmth.warmup_s, residence_s=warmth.residence_s)


@dataclass(slots=True, kw_only=True)
class MemoryRunner:
    """Carries out runs as `Runner` does, without a results directory; its seconds are those of the run's own clock."""

    on: Rehearsal
    early_fail: bool

    def plan(self, request: RunRequest) -> RunPlan:
        """The plan of a run."""
        return plan_of(request, self.on.setup.workload, warmup_s=self.on.warmup_s)

    async def execute(self, request: RunRequest) -> RunResult:
        """Simulate and judge a run."""
        return self.run(request)

    def options(self, request: RunRequest, plan: RunPlan) -> SendOptions:
        """How the load of a run is offered."""
        setup = self.on.setup
        options = run_options(request, plan, setup.scenario, setup.workload, early_fail=self.early_fail)
        return replace(options, events="none")

    def seen(self, request: RunRequest, output: RunOutput) -> None:
        """Called with a run's records before they are judged."""

    def run(self, request: RunRequest) -> RunResult:
        """Simulate and judge a run."""
        scenario, workload = self.on.setup.scenario, self.on.setup.workload
        plan = self.plan(request)
        output = simulate_run(plan, self.on.profile, self.options(request, plan))
        self.seen(request, output)
        sent = len(output.requests)
        criteria = criteria_of(scenario, workload, self.on.residence_s, kind=request.kind)
        return RunResult(
            verdict=judge_run(output.requests, RunFacts(sender=output.facts), criteria),
            seconds=output.facts.stop_ns / NS + BETWEEN_S,
            requests=sent,
            tokens=int(plan.input_tokens[:sent].sum() + plan.output_tokens[:sent].sum()),
        )


def repeat(on: Rehearsal, seed: int) -> Repeat:
    """The whole experiment once, with every seed derived from `seed`, within its budget of live time and requests."""
    setup = on.setup
    scenario = setup.scenario.model_copy(update={"seeds": None, "seed": seed})
    search = Search(setup.spec, seed_book(scenario, setup.spec), criteria_of(scenario, setup.workload))
    budget = Budget.of(scenario)
    runner = MemoryRunner(on=on, early_fail=setup.spec.early_fail)
    outcome = asyncio.run(run_search(search, runner, budget))
    return Repeat(
        outcome=outcome,
        runs=len(search.history),
        seconds=budget.spent_s,
        requests=budget.requests,
        tokens=budget.tokens,
    )


def variations(on: Rehearsal) -> list[Rehearsal]:
    """The experiment with windows once, twice and four times as long, and half, all and twice the replicates.

    The experiment as asked is not among them.
    """
    setup, made = on.setup, []
    scenario, spec = setup.scenario, setup.spec
    for longer in _WINDOWS:
        for runs in sorted({-(-spec.runs // 2), spec.runs, 2 * spec.runs}):
            if (longer, runs) == (1, spec.runs):
                continue
            cohort = None if scenario.cohort is None else scenario.cohort * longer
            changed = {"runs": runs, "window": scenario.window * longer, "cohort": cohort}
            workload = replace(setup.workload, window_s=setup.workload.window_s * longer, cohort=cohort)
            other = replace(
                setup,
                scenario=scenario.model_copy(update=changed),
                workload=workload,
                spec=replace(spec, runs=runs, explore=min(spec.explore, runs)),
            )
            made.append(replace(on, setup=other))
    return made


def rehearse(
    on: Rehearsal,
    repeats: int,
    *,
    progress: Progress,
    processes: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RehearsalReport:
    """Repeat the experiment and its variations; what that says.

    Variations are left out below 50 repeats: fewer than five of each would say nothing. `processes` is by default
    what that is worth, at most one a core; 1 stays in this process. Raises `LoadgenError` as the runs do, and
    `Aborted` for Ctrl-C and where `stopped`, asked after each repeat, says so.
    """
    each = repeats // _CELL_SHARE
    rehearsals = [on, *(variations(on) if each >= MIN_PER_CELL else ())]
    counts = [repeats, *[each] * (len(rehearsals) - 1)]
    master = defaults.SEED if on.setup.scenario.seed is None else on.setup.scenario.seed
    seeds = derive(master, "rehearsal", repeats)  # the same for every variation: luck is shared, differences stand out
    jobs = [(place, seed) for place, count in enumerate(counts) for seed in seeds[:count]]
    # the longest first, so that no core is left alone with one of them at the end
    jobs.sort(key=lambda job: -_weight(rehearsals[job[0]]))
    cores = cores_for(len(jobs), processes)
    progress.note(
        f"rehearsing {on.profile.description}: {repeats} times as asked"
        + (
            f", {each} times each with {len(rehearsals) - 1} other windows and replicates"
            if len(rehearsals) > 1
            else ""
        )
    )
    done: list[list[Repeat]] = [[] for _ in rehearsals]
    began = said = time.monotonic()
    count = 0
    try:
        with closing(spread(_job, rehearsals, jobs, cores)) as finished:
            for count, (place, result) in enumerate(finished, 1):
                done[place].append(result)
                if stopped():
                    raise KeyboardInterrupt
                now = time.monotonic()
                if now - said >= _SAID_EVERY_S:
                    said = now
                    left_s = (now - began) / count * (len(jobs) - count)
                    progress.note(f"{count} of {len(jobs)} rehearsed, at most {format_duration(max(left_s, 1))} left")
    except KeyboardInterrupt:
        raise Aborted(f"stopped by the user, with {count} of {len(jobs)} repeats made; they are not kept") from None
    return _report(on, rehearsals, done)


def _report(on: Rehearsal, rehearsals: Sequence[Rehearsal], done: Sequence[Sequence[Repeat]]) -> RehearsalReport:
    scenario, grid = on.setup.scenario, on.setup.spec.grid
    cells = [
        RehearsedPlan(
            window_s=None if s.setup.scenario.cohort is not None else s.setup.scenario.window,
            cohort=s.setup.scenario.cohort,
            runs=s.setup.spec.runs,
            repeats=tuple(repeats),
        )
        for s, repeats in zip(rehearsals, done, strict=True)
    ]
    cells.sort(key=lambda cell: (cell.window_s or cell.cohort or 0, cell.runs))
    return widened(
        summarise(done[0], grid, require=scenario.require),
        RehearsalReport,
        simulated=True,
        target=scenario.target[0],
        profile=on.profile.description,
        slo=str(scenario.objective),
        placeholder_slo=scenario.objective.placeholder,
        attain=scenario.attain,
        width=scenario.width,
        warmup_s=on.warmup_s,
        window_s=None if scenario.cohort is not None else scenario.window,
        cohort=scenario.cohort,
        runs=on.setup.spec.runs,
        explore=on.setup.spec.explore,
        plans=tuple(plan_row(cell, grid) for cell in cells) if len(cells) > 1 else (),
    )


def _weight(on: Rehearsal) -> float:
    return (on.setup.workload.cohort or on.setup.workload.window_s) * on.setup.spec.runs


def _job(rehearsals: Sequence[Rehearsal], job: tuple[int, int]) -> tuple[int, Repeat]:
    place, seed = job
    return place, repeat(rehearsals[place], seed)
