"""The parts of a run that several processes sent, as the one run that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from loadgen.plan.types import RunPlan
from loadgen.send.address import port_limit
from loadgen.send.api import LiveCounts, RunOutput

__all__ = ["counts_together", "run_of"]


def run_of(
    plan: RunPlan, parts: Sequence[RunOutput], *, lost: int, stopped_early: bool, urls: Sequence[str]
) -> RunOutput:
    """One run of its parts, by index; `lost` processes gave none, and their requests are due all the same.

    Requests and areas add up. Of what a process saw of itself and its clock the worst counts. Raises `RuntimeError`
    where there is no part.
    """
    facts = [part.facts for part in parts]
    if not facts:
        raise RuntimeError("every sending process ended during the run")
    at_ns, window = plan.schedule.at_ns, plan.window
    stop_ns = max(one.stop_ns for one in facts)
    areas = [one.live_area_s for one in facts if one.live_area_s is not None]
    limits = [one.connection_limit for one in facts if one.connection_limit is not None]
    ports = port_limit(urls)
    together = [*([sum(limits)] if limits else []), *([] if ports is None else [ports])]
    requests = pd.concat([part.requests for part in parts], ignore_index=True)
    events = pd.concat([part.events for part in parts], ignore_index=True)
    merged = replace(
        facts[0],
        stop_ns=stop_ns,
        due=int(np.count_nonzero(at_ns < stop_ns)),
        sent=sum(one.sent for one in facts),
        cohort_due=int(np.count_nonzero((at_ns >= window.warmup_ns) & (at_ns < window.end_ns))),
        stopped_early=stopped_early,
        stamps="kernel" if all(one.stamps == "kernel" for one in facts) else "user",
        stamps_moved_s=max(one.stamps_moved_s for one in facts),
        stamps_by_reading=max(one.stamps_by_reading for one in facts),
        heartbeat_p99_s=max(one.heartbeat_p99_s for one in facts),
        heartbeat_max_s=max(one.heartbeat_max_s for one in facts),
        live_area_s=sum(areas) if len(areas) == len(facts) else None,
        peak_in_flight=sum(one.peak_in_flight for one in facts),
        connection_limit=min(together, default=None),
        encode_starved=sum(one.encode_starved for one in facts),
        workers_lost=lost,
        suspended_s=max((one.suspended_s for one in facts), key=abs),
        clock_ratio_error=max(one.clock_ratio_error for one in facts),
        wall_step_s=max((one.wall_step_s for one in facts), key=abs),
        connections_refused=next((one.connections_refused for one in facts if one.connections_refused), ""),
        target_died=any(one.target_died for one in facts),
    )
    return RunOutput(
        requests=requests.sort_values("index", kind="stable", ignore_index=True),
        events=events.sort_values("index", kind="stable", ignore_index=True),
        facts=merged,
    )


def counts_together(counts: Sequence[LiveCounts], elapsed_ns: int) -> LiveCounts:
    """The sum of what the processes count, for a progress display."""
    return LiveCounts(
        elapsed_ns=elapsed_ns,
        due=sum(one.due for one in counts),
        sent=sum(one.sent for one in counts),
        in_flight=sum(one.in_flight for one in counts),
        ok=sum(one.ok for one in counts),
        errors=sum(one.errors for one in counts),
        cohort_decided=sum(one.cohort_decided for one in counts),
        cohort_misses=sum(one.cohort_misses for one in counts),
    )
