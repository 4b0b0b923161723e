"""The one step between an open target and its first run: how it takes requests, who it is, and how long a run warms up.

What this step finds is constant for the experiment: every run uses it, the results directory keeps it, and a resumed
experiment reads it from there. Resuming only sees whether the same target is there and takes the same requests, and
warms it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import anyio

from loadgen.common.errors import ResultsError, ScenarioError
from loadgen.common.stopping import unless_stopped
from loadgen.experiment.prepare import Setup
from loadgen.experiment.progress import Progress
from loadgen.experiment.sut import RequestTerms, Sut
from loadgen.experiment.warmup import Warmth, warm_again, warm_target, warmup_note
from loadgen.plan.lengths import MAX_TOKENS
from loadgen.plan.types import RequestFormat
from loadgen.results.store import read_experiment
from loadgen.workload.workload import Workload

__all__ = ["Preparation", "check_context", "prepare_target", "resume_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is constant for all runs of an experiment on one target."""

    experiment_id: str
    workload: Workload  # with requests as the target takes them
    terms: RequestTerms  # as surveyed before the first run
    warmup_s: float
    residence_s: float | None  # E[S²]/E[S] at the lowest rate
    identity: Mapping[str, str]  # of the target when the experiment began
    identity_now: Mapping[str, str]  # when this part of it began
    part: str  # in every cache salt; another one after each resume
    notes: tuple[str, ...] = ()


async def prepare_target(
    setup: Setup, sut: Sut, *, progress: Progress, stop: anyio.Event, fixed: Warmth | None = None
) -> Preparation:
    """Prepare an experiment on an open target. Writes nothing; with `fixed` its runs warm up as was fixed elsewhere.

    Raises `ScenarioError` where the context cannot hold the requests, what `warm_target` raises, and `Aborted`.
    """
    scenario, lowest_rate = setup.scenario, setup.spec.grid[0]
    workload = _adapted(setup.workload, sut)
    identity = await _identity(sut, progress, stop)
    experiment_id = secrets.token_hex(8)
    # a replay that is to be measured from its first request on
    at_once = scenario.replicates == "once" and scenario.warmup == 0
    if fixed is None:
        warmth = await warm_target(
            scenario, workload, sut, lowest_rate=lowest_rate, experiment=experiment_id, stop=stop, fixes=not at_once
        )
    else:
        warmth = fixed
        await warm_again(scenario, workload, sut, lowest_rate=lowest_rate, experiment=experiment_id, stop=stop)
    warmup_s = 0.0 if at_once else warmth.warmup_s
    note = "" if at_once or fixed is not None else warmup_note(scenario, warmup_s, lowest_rate)
    if note:
        progress.note(note)
    return Preparation(
        experiment_id=experiment_id,
        workload=workload,
        terms=sut.terms,
        warmup_s=warmup_s,
        residence_s=warmth.residence_s,
        identity=identity,
        identity_now=identity,
        part=experiment_id,
        notes=(note,) if note else (),
    )


async def resume_target(
    setup: Setup, sut: Sut, directory: Path, *, progress: Progress, stop: anyio.Event
) -> Preparation:
    """The preparation that the experiment in `directory` began with, and its target warm again.

    Raises `ResultsError` where another target answers, or the request format changed, what `warm_again` raises, and
    `Aborted`.
    """
    scenario, lowest_rate = setup.scenario, setup.spec.grid[0]
    stored = read_experiment(directory)
    workload = _adapted(setup.workload, sut)
    identity_now = await _identity(sut, progress, stop)
    _check_format(stored.target.format, workload.format, directory)
    identity = _began_on(stored.target.identity, identity_now, sut, directory, progress)
    experiment_id = stored.id
    # must not meet the prefixes that the interrupted part left in the target's cache
    part = f"{experiment_id}/{secrets.token_hex(4)}"
    await warm_again(scenario, workload, sut, lowest_rate=lowest_rate, experiment=part, stop=stop)
    if note := warmup_note(scenario, stored.warmup_s, lowest_rate):
        progress.note(note)
    return Preparation(
        experiment_id=experiment_id,
        workload=workload,
        terms=replace(
            sut.terms,
            content_unpaired=stored.target.content_unpaired,
            events_per_read=stored.target.events_per_read,
        ),
        warmup_s=stored.warmup_s,
        residence_s=stored.residence_s,
        identity=identity,
        identity_now=identity_now,
        part=part,
    )


def check_context(workload: Workload, sut: Sut) -> None:
    """Raises `ScenarioError` where the workload has requests that the target's context cannot hold."""
    limit = sut.max_model_len
    if limit is not None and workload.recorded is None and limit < workload.lengths.total_max < MAX_TOKENS:
        raise ScenarioError(
            f"requests of up to {workload.lengths.total_max} tokens (input and output) do not fit into the {limit} of "
            f"{sut.label} (max_model_len), which would cut the answers short: shorten --input or --output"
        )
    text = None if sut.terms.format is None else sut.terms.format.text
    if text is not None and workload.lengths.input_max < text.overhead_tokens:
        raise ScenarioError(
            f"inputs of at most {workload.lengths.input_max} tokens are less than the {text.overhead_tokens} that "
            f"special tokens and chat template of {sut.label} take: lengthen --input"
        )
    if limit is not None and workload.longest_tokens > limit:
        raise ScenarioError(
            f"the trace has requests of up to {workload.longest_tokens} tokens and {sut.label} takes {limit}: "
            f"pass --max-model-len {limit} --on-invalid drop (or clip); loadgen trace describe says how many they are"
        )


def _adapted(workload: Workload, sut: Sut) -> Workload:
    check_context(workload, sut)
    return workload if sut.terms.format is None else replace(workload, format=sut.terms.format)


async def _identity(sut: Sut, progress: Progress, stop: anyio.Event) -> dict[str, str]:
    identity = dict(await unless_stopped(stop, sut.identity, "while the target was asked who it is"))
    progress.note(f"{sut.label}: ready, model {sut.model}")
    return identity


def _check_format(before: RequestFormat, now: RequestFormat, directory: Path) -> None:
    if before != now:
        pairs = ((one.name, getattr(before, one.name), getattr(now, one.name)) for one in fields(now))
        changed = ", ".join(f"{name} {old} → {new}" for name, old, new in pairs if old != new)
        raise ResultsError(f"--resume {directory}: the request format changed ({changed}): begin a new experiment")


def _began_on(
    began: Mapping[str, str], now: Mapping[str, str], sut: Sut, directory: Path, progress: Progress
) -> Mapping[str, str]:
    """The identity that the experiment began with.

    One that only restarted meanwhile may go on: which process it was is noted, and each run's is held against the last.
    """
    if other := sut.changed(began, now, restarted=True):
        raise ResultsError(
            f"--resume {directory}: not the target that was measured ({other}): begin a new experiment, or restore it"
        )
    if again := sut.changed(began, now):
        progress.note(f"since the experiment began: {again}")
    return began
