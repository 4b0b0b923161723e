"""The library's functions, each a thin step from a scenario to a measurement; the command line calls nothing else."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread

from analysis.report.repeats import RehearsalReport
from analysis.search import Outcome
from loadgen.common.errors import ScenarioError, UsageError
from loadgen.experiment import rehearse as rehearsing
from loadgen.experiment.execute import single_run
from loadgen.experiment.execute import sweep as measure_rates
from loadgen.experiment.measured import Experiment
from loadgen.experiment.prepare import Setup, prepare
from loadgen.experiment.progress import Progress, ProgressEvent
from loadgen.experiment.replay import prepare_replay
from loadgen.experiment.work import Work
from loadgen.scenario.model import Scenario

__all__ = [
    "check_system",
    "rehearse",
    "rehearse_sync",
    "replay",
    "replay_sync",
    "run",
    "run_sync",
    "sweep",
    "sweep_sync",
]

Callback = Callable[[ProgressEvent], object]


def sweep(
    scenario: Scenario | Setup,
    directory: str | Path,
    *,
    resume: bool = False,
    progress: Callback | None = None,
    began_s: float | None = None,
) -> Work[Experiment]:
    """Find the largest arrival rate at which every replicate keeps the SLO, or measure each rate of a list.

    Results go to `directory`, a new one; with `resume` to that of the experiment that goes on (`resumed_scenario` gives
    its scenario). `progress` receives every event. The time budget counts from `began_s` on the monotonic clock, by
    default from now.

    Raises at once `ScenarioError` for what cannot be measured and `UsageError` where the system cannot time a load.
    The work raises `TargetError` for a server that is gone or unfit (capacity.json is written if it was measured),
    `ResultsError` for the directory, `ClientLimited` and `Aborted` where that happens before the first run; later, they
    are the outcome of the answer.
    """
    setup = scenario if isinstance(scenario, Setup) else prepare(scenario)
    if setup.scenario.closed is not None:
        raise ScenarioError("--closed has no arrival rate to search: use loadgen run --closed N")
    check_system(setup.scenario)
    began_s = time.monotonic() if began_s is None else began_s

    async def start(events: Progress, stop: anyio.Event) -> Experiment:
        outcome: Outcome
        outcome, _ = await measure_rates(
            setup, Path(directory), resume=resume, progress=events, stop=stop, began_s=began_s
        )
        return Experiment(Path(directory), outcome)

    return Work(start, progress)


def run(scenario: Scenario, directory: str | Path, *, progress: Callback | None = None) -> Work[Experiment]:
    """Send one rate once, or `closed` requests at a time, and judge the run. `directory` and errors as in `sweep`.

    The work raises `Aborted` where it was stopped: then there is no verdict.
    """
    changes: dict[str, Any] = {"runs": 1}
    if scenario.closed is not None:
        changes["rate"] = "1"
    scenario = scenario.model_copy(update=changes)
    if ".." in scenario.rate or "," in scenario.rate:
        raise ScenarioError(f"--rate {scenario.rate}: run offers one rate, such as --rate 6; sweep takes more")
    return _single(prepare(scenario), directory, "run", progress)


def replay(scenario: Scenario, directory: str | Path, *, progress: Callback | None = None) -> Work[Experiment]:
    """Send a trace's requests at their own instants and judge the run; `arrivals` of the scenario is `trace:FILE`.

    `directory` and errors as in `run`; raises `traces.errors.TraceError` for the trace.
    """
    if not scenario.recorded:
        raise ScenarioError("a replay needs a trace: arrivals = trace:FILE")
    return _single(prepare_replay(scenario), directory, "replay", progress)


def _single(
    setup: Setup, directory: str | Path, kind: Literal["run", "replay"], progress: Callback | None
) -> Work[Experiment]:
    check_system(setup.scenario)

    async def start(events: Progress, stop: anyio.Event) -> Experiment:
        await single_run(setup, Path(directory), kind=kind, progress=events, stop=stop)
        return Experiment(Path(directory))

    return Work(start, progress)


def rehearse(scenario: Scenario | Setup, repeats: int, *, progress: Callback | None = None) -> Work[RehearsalReport]:
    """Repeat a sweep in virtual time: where its answer lands and what it costs, as `loadgen sweep --rehearse --json`.

    Nothing is written to the disk. Processes share the repeats, so a script that calls this needs the usual
    `if __name__ == "__main__":`. Raises at once `ScenarioError` where the target is not `virtual:PROFILE`; the work
    raises `Aborted` where it was stopped, after the repeat that is under way.
    """
    setup = _rehearsed(scenario)

    async def start(events: Progress, stop: anyio.Event) -> RehearsalReport:
        loop = asyncio.get_running_loop()
        notes = Progress(lambda event: loop.call_soon_threadsafe(events.tell, event))

        def repeat() -> RehearsalReport:
            return rehearsing.rehearse(rehearsing.plan_rehearsal(setup), repeats, progress=notes, stopped=stop.is_set)

        return await anyio.to_thread.run_sync(repeat)

    return Work(start, progress)


def sweep_sync(
    scenario: Scenario | Setup,
    directory: str | Path,
    *,
    resume: bool = False,
    progress: Callback | None = None,
    began_s: float | None = None,
) -> Experiment:
    """As `sweep`, to its end, on an event loop of its own."""
    return sweep(scenario, directory, resume=resume, progress=progress, began_s=began_s).result()


def run_sync(scenario: Scenario, directory: str | Path, *, progress: Callback | None = None) -> Experiment:
    """As `run`, to its end, on an event loop of its own."""
    return run(scenario, directory, progress=progress).result()


def replay_sync(scenario: Scenario, directory: str | Path, *, progress: Callback | None = None) -> Experiment:
    """As `replay`, to its end, on an event loop of its own."""
    return replay(scenario, directory, progress=progress).result()


def rehearse_sync(scenario: Scenario | Setup, repeats: int, *, progress: Callback | None = None) -> RehearsalReport:
    """As `rehearse`, to its end, in this thread, so that Ctrl-C ends it at once (`Aborted`)."""
    return rehearsing.rehearse(rehearsing.plan_rehearsal(_rehearsed(scenario)), repeats, progress=Progress(progress))


def check_system(scenario: Scenario) -> None:
    """Raise `UsageError` where load cannot be timed: the timers and stamps of a run are Linux's."""
    simulated = scenario.target[0].partition(":")[0] == "virtual"
    if not simulated and not sys.platform.startswith("linux"):
        name = {"darwin": "macOS"}.get(sys.platform, sys.platform)
        raise UsageError(
            f"{name} cannot time a load as loadgen does on Linux: run this on Linux, in a container or a virtual "
            "machine; --target virtual, trace and show work here too"
        )


def _rehearsed(scenario: Scenario | Setup) -> Setup:
    setup = scenario if isinstance(scenario, Setup) else prepare(scenario)
    rehearsing.check_rehearsable(setup)
    return setup
