"""The first requests of an experiment, which are no evidence: they warm the target and fix every run's warm-up.

A run may be measured once its server holds what it holds in the long run. That takes as long as the requests in service
stay, and the long ones are in service most of the time: hence three times their mean age E[S²]/E[S], of the residences
S of 200 requests at the lowest rate (method, section 6). Fewer are sent where 200 would take over ten minutes, or where
the user wants fewer in a cohort: a tail that one run is not asked to show need not be waited for. Fewer are named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import anyio

from analysis.cohort import mean_age_s
from analysis.records import NS_PER_S, Floats, numbers, outcome_is
from analysis.slo import Slo
from analysis.units import format_duration
from loadgen.common import defaults
from loadgen.common.errors import Aborted, ClientLimited, TargetUnfit
from loadgen.common.stopping import unless_stopped
from loadgen.experiment.run_plan import options_of
from loadgen.experiment.sut import Sut
from loadgen.plan.seeds import derive as derive_seeds
from loadgen.plan.seeds import salt
from loadgen.plan.types import PlanRequest
from loadgen.scenario.model import Scenario
from loadgen.send.pacing import OnSchedule
from loadgen.workload.workload import Workload

__all__ = ["Warmth", "warm_again", "warm_requests", "warm_target", "warmup_note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """What the first requests fixed for every run, seconds: its warm-up, and the residence its length is held against.

    `residence_s` is E[S²]/E[S] at the lowest rate, where nothing is overloaded; `None` where no answer took any time.
    """

    warmup_s: float
    residence_s: float | None


def warm_requests(scenario: Scenario, lowest_rate: float, *, fixes: bool = True) -> int:
    """How many requests warm the target; with `fixes`, they also fix the warm-up of every run."""
    least = defaults.WARMUP_REQUESTS
    seen = min(defaults.WARMUP_SEEN, max(least, scenario.least_requests)) if fixes else least
    return max(1, min(seen, int(_rate(scenario, lowest_rate) * defaults.WARMUP_MAX_S)))


async def warm_target(
    scenario: Scenario,
    workload: Workload,
    sut: Sut,
    *,
    lowest_rate: float,
    experiment: str,
    stop: anyio.Event,
    fixes: bool = True,
) -> Warmth:
    """Send the first requests, which are no evidence, and see how long they stay.

    The warm-up is the asked one or 3·E[S²]/E[S] of the residences S seen here. Without `fixes` the requests are few,
    and the warm-up is not taken from them. Raises `TargetUnfit` with the server's own words where it does not do the
    work asked, `ClientLimited` where this machine gave no connections for it, and `Aborted`.
    """
    count = warm_requests(scenario, lowest_rate, fixes=fixes)
    warming = _Warming(scenario=scenario, workload=workload, sut=sut, rate=_rate(scenario, lowest_rate), count=count)
    residence_s = mean_age_s(await warming.send(experiment, stop))
    if math.isnan(residence_s):
        return Warmth(warmup_s=scenario.warmup, residence_s=None)
    return Warmth(warmup_s=max(scenario.warmup, defaults.WARMUP_AGES * residence_s), residence_s=residence_s)


async def warm_again(
    scenario: Scenario, workload: Workload, sut: Sut, *, lowest_rate: float, experiment: str, stop: anyio.Event
) -> None:
    """Warm a target whose warm-up is known, with few requests. Raises as `warm_target`."""
    count = warm_requests(scenario, lowest_rate, fixes=False)
    warming = _Warming(scenario=scenario, workload=workload, sut=sut, rate=_rate(scenario, lowest_rate), count=count)
    await warming.send(experiment, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warming:
    """`count` requests at `rate`, all waited for."""

    scenario: Scenario
    workload: Workload
    sut: Sut
    rate: float
    count: int

    async def send(self, experiment: str, stop: anyio.Event) -> Floats:
        """How long the good ones stayed, seconds."""
        doing = "while the target was warmed"
        # nothing that is measured is to be warm, and a closed loop is not to be met by a burst
        workload = replace(self.workload, recorded=None, closed=None)
        seed = derive_seeds(defaults.SEED, "warm-up", 1)[0]
        plan = workload.plan(
            PlanRequest(rate=self.rate, root_seed=seed, window=workload.window(0.0), cohort=self.count)
        )
        await unless_stopped(stop, self.sut.settle, doing)
        output = await self.sut.send_load(
            plan,
            replace(options_of(self.scenario, workload), pacing=OnSchedule(), slo=Slo()),  # every one is waited for
            salt=salt(experiment, "warm-up", self.rate, 0, 0),
            sink=None,
            progress=lambda _: None,
            stop=stop,
        )
        if stop.is_set():
            raise Aborted(f"stopped by the user {doing}")
        due = output.requests[output.requests["scheduled_ns"] < plan.window.window_ns]
        good = outcome_is(due, "ok")
        if not good.all() and output.facts.connections_refused:
            raise ClientLimited(f"{output.facts.connections_refused}, while {self.sut.label} was warmed")
        if not good.any():
            first = due[~good].iloc[0]
            status = f"HTTP {first['http_status']}" if first["http_status"] > 0 else first["outcome"]
            words = str(first["error"]).removeprefix(f"{status}: ")
            said = f": {words}" if words and words != status else ""
            raise TargetUnfit(f"{self.sut.label}: none of {len(due)} warm-up requests succeeded ({status}{said})")
        return (numbers(due, "ended_ns") - numbers(due, "scheduled_ns"))[good] / NS_PER_S


def warmup_note(scenario: Scenario, warmup_s: float, lowest_rate: float) -> str:
    """A line for the user where the warm-up is not the one asked for, or was fixed on few requests; else empty."""
    seen, notes = warm_requests(scenario, lowest_rate), []
    if warmup_s > scenario.warmup:
        notes.append(
            f"warm-up is {format_duration(warmup_s)}: {defaults.WARMUP_AGES} × the mean age of requests in service "
            "while the target was warmed"
        )
    if seen < defaults.WARMUP_SEEN:
        why = (
            f"more would take over {format_duration(defaults.WARMUP_MAX_S)} at {lowest_rate:g} requests/s"
            if seen == int(_rate(scenario, lowest_rate) * defaults.WARMUP_MAX_S)
            else f"--min-requests {scenario.least_requests}"
        )
        notes.append(
            f"the warm-up was fixed on {seen} requests instead of {defaults.WARMUP_SEEN} ({why}): a rare long answer "
            "may fill the server for longer than they showed; --warmup lengthens it"
        )
    return "; ".join(notes)


def _rate(scenario: Scenario, lowest_rate: float) -> float:
    """A closed loop has no rate of its own."""
    return lowest_rate if scenario.closed is None else defaults.CLOSED_WARMUP_RATE
