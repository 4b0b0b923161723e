"""The first requests of an experiment, which are no evidence: they warm the target and fix every run's warm-up."""

from __future__ import annotations

from dataclasses import replace

import anyio
import numpy as np

from analysis.cohort import nearest_rank
from analysis.records import derive, outcome_is
from analysis.slo import Slo
from analysis.units import format_duration
from loadgen import defaults
from loadgen.errors import Aborted, ClientLimited, TargetUnfit
from loadgen.offer import Offering
from loadgen.plan.seeds import derive as derive_seeds
from loadgen.plan.seeds import salt
from loadgen.planned import options_of
from loadgen.scenario import Scenario
from loadgen.workload import Workload

__all__ = ["warm_target", "warmup_note"]


async def warm_target(
    scenario: Scenario,
    workload: Workload,
    offering: Offering,
    *,
    lowest_rate: float,
    experiment: str,
    stop: anyio.Event,
) -> float:
    """Send the first requests, which are no evidence; the warm-up of every run of the experiment, seconds.

    32 requests at the lowest rate, or what it brings in a minute. The warm-up is the asked one or 3 × p95 E2E seen here
    (method, section 6). Raises `TargetUnfit` with the server's own words where it does not do the work asked,
    `ClientLimited` where this machine gave no connections for it, and `Aborted`.
    """
    workload = replace(workload, recorded=None)  # nothing that is measured is to be warm
    if workload.closed is not None:  # it has no rate of its own, and is not to be met by a burst
        workload, lowest_rate = replace(workload, closed=None), defaults.CLOSED_WARMUP_RATE
    cohort = max(1, min(defaults.WARMUP_REQUESTS, int(lowest_rate * defaults.WARMUP_MAX_S)))
    seed = derive_seeds(defaults.SEED, "warm-up", 1)[0]
    plan = workload.plan(lowest_rate, seed, workload.window(0.0), cohort=cohort)
    await offering.settle()
    output = await offering.offer(
        plan,
        replace(options_of(scenario, workload), closed=None, slo=Slo()),  # every one is waited for, however slow
        salt=salt(experiment, "warm-up", lowest_rate, 0, 0),
        sink=None,
        progress=lambda _: None,
        stop=stop,
    )
    if stop.is_set():
        raise Aborted("stopped by the user while the target was warmed")
    due = output.requests[output.requests["scheduled_ns"] < plan.window.window_ns]
    good = outcome_is(due, "ok")
    if not good.all() and output.facts.connections_refused:
        raise ClientLimited(f"{output.facts.connections_refused}, while {offering.label} was warmed")
    if not good.any():
        first = due[~good].iloc[0]
        status = f"HTTP {first['http_status']}" if first["http_status"] > 0 else first["outcome"]
        said = f": {first['error']}" if first["error"] else ""
        raise TargetUnfit(f"{offering.label}: none of {len(due)} warm-up requests succeeded ({status}{said})")
    e2e_s = derive(due)["e2e_s"].to_numpy(dtype=float)[good]
    return max(scenario.warmup, 3 * nearest_rank(np.sort(e2e_s), 0.95))


def warmup_note(scenario: Scenario, warmup_s: float) -> str:
    """A line for the user where the warm-up is not the one asked for; else an empty string."""
    if warmup_s <= scenario.warmup:
        return ""
    return f"warm-up is {format_duration(warmup_s)}: 3 × the p95 E2E seen while warming the target"
