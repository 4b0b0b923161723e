"""The library's functions for gates: one rate and nothing else, or against a baseline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import anyio

from loadgen.experiment.execute import sweep
from loadgen.experiment.gate.against import GateSetup, regress
from loadgen.experiment.gate.one_rate import at_one_rate
from loadgen.experiment.library import check_system
from loadgen.experiment.measured import Experiment
from loadgen.experiment.prepare import Setup, prepare
from loadgen.experiment.progress import Progress, ProgressEvent
from loadgen.experiment.work import Work
from loadgen.scenario.model import Scenario

__all__ = ["gate", "gate_sync", "prepare_gate"]


def prepare_gate(scenario: Scenario) -> Setup:
    """Read and check all that a gate of the scenario's one rate needs. Raises `ScenarioError`."""
    return prepare(at_one_rate(scenario))


def gate(
    scenario: Scenario | Setup | GateSetup,
    directory: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[ProgressEvent], object] | None = None,
    began_s: float | None = None,
) -> Work[Experiment]:
    """Test the scenario's one rate and nothing else: R fresh runs, up to the first FAIL, which is repeated.

    The answer's `requirement` is the verdict. A `Setup` is one of `prepare_gate`. With a `GateSetup` the runs of a
    baseline are made again, all to their end, and the result's `gate` is the answer. Directory, resuming and errors are
    as in `sweep`; raises at once `ScenarioError` for several rates and for the placeholder SLO.
    """
    directory = Path(directory)
    began_s = time.monotonic() if began_s is None else began_s
    setup = prepare_gate(scenario) if isinstance(scenario, Scenario) else scenario
    check_system(setup.scenario)

    async def start(events: Progress, stop: anyio.Event) -> Experiment:
        if isinstance(setup, GateSetup):
            await regress(setup, directory, resume=resume, progress=events, stop=stop, began_s=began_s)
            return Experiment(directory)
        outcome, _ = await sweep(
            setup, directory, resume=resume, progress=events, stop=stop, began_s=began_s, kind="gate"
        )
        return Experiment(directory, outcome)

    return Work(start, progress)


def gate_sync(
    scenario: Scenario | Setup | GateSetup,
    directory: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[ProgressEvent], object] | None = None,
    began_s: float | None = None,
) -> Experiment:
    """As `gate`, to its end, on an event loop of its own."""
    return gate(scenario, directory, resume=resume, progress=progress, began_s=began_s).result()
