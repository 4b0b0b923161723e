"""What one run of an experiment is: its promise, its plan, and how its load is offered."""

from __future__ import annotations

import math
from dataclasses import replace

from analysis.judge import misses_allowed
from analysis.search import Kind, RunRequest
from analysis.units import parse_share
from analysis.verdict import Criteria
from loadgen.common import defaults
from loadgen.plan.types import NS, PlanRequest, RunPlan
from loadgen.scenario.model import Scenario
from loadgen.send.api import Drain, SendOptions
from loadgen.send.pacing import DependentSessions, FixedConcurrency, OnSchedule, Pacing
from loadgen.workload.workload import Workload

__all__ = ["criteria_of", "options_of", "plan_of", "run_options"]


def criteria_of(
    scenario: Scenario, workload: Workload, residence_s: float | None = None, *, kind: Kind = "explore"
) -> Criteria:
    """The promise a run of that kind is held against; `residence_s` as measured at the lowest rate.

    No cohort is too small for a sentinel, which passes no rate.
    """
    return Criteria(
        slo=scenario.objective,
        attain=parse_share(scenario.attain),
        max_error_rate=parse_share(scenario.max_error_rate),
        min_requests=0 if kind == "sentinel" else scenario.least_requests,
        replicates=scenario.runs,
        residence_s=residence_s,
        timeout_s=workload.timeout_s,
        output_tokens_max=workload.lengths.output_max,
        forced=workload.format.stop == "forced",
        exact_inputs=workload.format.exact,
        blocks=scenario.cache == "keep",
    )


def options_of(scenario: Scenario, workload: Workload) -> SendOptions:
    """How the load is offered, without an early end."""
    return SendOptions(
        transport=scenario.transport,
        stamps=scenario.stamps,
        timeout_s=workload.timeout_s,
        max_concurrency=scenario.max_concurrency,
        pacing=_pacing(scenario),
        routing=scenario.routing,
        prewarm=scenario.prewarm,
        slo=scenario.objective,
        events=scenario.kept_events,
    )


def _pacing(scenario: Scenario) -> Pacing:
    if scenario.closed is not None:
        return FixedConcurrency(scenario.closed)
    return DependentSessions() if scenario.sessions == "dependent" else OnSchedule()


def plan_of(request: RunRequest, workload: Workload, *, warmup_s: float, content_unpaired: bool = False) -> RunPlan:
    """The plan of a run; a sentinel's window is just long enough for 200 requests."""
    # sentinels share a seed and must not meet one another's prompts either: their ordinal takes part
    again = request.attempt if request.kind != "sentinel" else 1000 * request.replicate + request.attempt
    key = (request.rate, again) if content_unpaired else None
    cohort, window = workload.cohort, workload.window(warmup_s)
    if request.kind == "sentinel" and cohort is not None:
        cohort = min(cohort, defaults.SENTINEL_REQUESTS)
    elif request.kind == "sentinel" and workload.recorded is None:
        enough_ns = round(defaults.SENTINEL_REQUESTS / request.rate * NS)
        window = replace(window, window_ns=min(window.window_ns, enough_ns))
    return workload.plan(
        PlanRequest(
            rate=request.rate,
            root_seed=request.seed,
            window=window,
            content_key=key,
            cohort=cohort,
            replicate=0 if request.kind == "sentinel" else request.replicate,
            block=request.block,
        )
    )


def run_options(
    request: RunRequest, plan: RunPlan, scenario: Scenario, workload: Workload, *, early_fail: bool
) -> SendOptions:
    """How the load of a run is offered, which with `early_fail` may end once it cannot pass any more."""
    at_ns = plan.schedule.at_ns
    cohort = int(((at_ns >= plan.window.warmup_ns) & (at_ns < plan.window.end_ns)).sum())
    misses = misses_allowed(cohort, parse_share(scenario.attain))
    errors = math.floor(cohort * parse_share(scenario.max_error_rate))
    options = replace(options_of(scenario, workload), drain=Drain(unanswered=errors, misses=misses))
    if not early_fail or request.kind in ("sentinel", "paired"):
        return options
    return replace(
        options,
        early_fail_misses=misses,
        early_fail_after_ns=plan.window.warmup_ns + round(plan.window.window_ns * defaults.EARLY_FAIL_SHARE),
    )
