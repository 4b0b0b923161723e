"""The table and sentences of a gate against a baseline (see analysis.compare.regression), as plain cells."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import Final

from analysis.compare.gate import GateEndpoint, in_percent
from analysis.compare.regression import RegressionAnswer
from analysis.compare.types import Endpoint, VariantRun
from analysis.report.tables import Table
from analysis.units import format_duration

__all__ = ["regression_sentences", "regression_table"]

_ROWS: Final[dict[Endpoint, str]] = {
    "attainment": "attainment",
    "token_goodput": "tokens/s",
    "log_ttft": "TTFT, ms",
    "log_e2e": "E2E, ms",
}


def regression_table(answer: RegressionAnswer) -> Table:
    """One row an endpoint: both means, how much worse it is with its one-sided 95 % bounds, and the test."""
    tested = answer.tested
    return Table(
        title=f"Pairs of runs at {answer.rate:.4g} requests/s: worse by points (attainment) or per cent, with "
        "one-sided 95 % bounds",
        columns=("endpoint", "baseline", "now", "worse by", "bounds", "Holm p", "check"),
        rows=() if tested is None else tuple(_row(answer, one) for one in tested.endpoints),
        left=frozenset({"endpoint", "check"}),
    )


def regression_sentences(answer: RegressionAnswer) -> list[str]:
    """What was compared, and what every output of the experiment carries."""
    conditions, baseline = answer.conditions, answer.baseline
    seeds = f"the same {len(answer.runs)} seeds, schedules and workloads (hashes checked)"
    out = f"; {answer.left_out} of {answer.pairs} pairs were left out: no valid run" if answer.left_out else ""
    window_s = conditions.window_s
    measured = f"{conditions.cohort} requests" if window_s is None else format_duration(window_s)
    simulated = " (SIMULATED, no real server)" if conditions.simulated else ""
    return [
        f"Baseline: {baseline.directory}, measured {baseline.created} on {baseline.target}; {seeds}{out}.",
        "WORSE needs a one-sided paired t test at 5 % (Holm-adjusted over the endpoints) and a mean difference of the "
        "margin or more; NOT WORSE needs every upper bound below the margin.",
        f"Valid for: {conditions.target}{simulated}, model {conditions.model}; {conditions.slo} for "
        f"{conditions.attain_text} of requests; windows of {measured} after {format_duration(conditions.warmup_s)} "
        f"warm-up; {conditions.workload}; {conditions.arrivals} arrivals.",
        *answer.notes,
    ]


def _row(answer: RegressionAnswer, one: GateEndpoint) -> tuple[str, ...]:
    endpoint = one.difference.endpoint
    known = one.at_least is not None and one.at_most is not None
    below = one.at_most is not None and one.at_most < answer.margin
    identical = one.difference.identical
    return (
        _ROWS[endpoint],
        _level(answer.baseline_runs, endpoint),
        _level(answer.runs, endpoint),
        f"{in_percent(endpoint, one.worse):+.2f}",
        "..".join(f"{in_percent(endpoint, end):+.2f}" for end in (one.at_least, one.at_most) if end is not None)
        if known
        else "–",
        "–" if one.p_holm is None else f"{one.p_holm:.2g}",
        "WORSE" if one.alarm else "identical" if identical else "not worse" if below else "cannot tell",
    )


def _level(runs: Iterable[VariantRun], endpoint: Endpoint) -> str:
    """The mean over the runs, in the endpoint's own unit."""
    match endpoint:
        case "attainment":
            return f"{fmean(run.attainment for run in runs):.2%}"
        case "token_goodput":
            return f"{fmean(run.token_goodput_per_s for run in runs):.4g}"
        case _:
            logs = (run.log_ttft if endpoint == "log_ttft" else run.log_e2e for run in runs)
            known = [value for value in logs if value is not None]
            return f"{1e3 * math.exp(fmean(known)):.4g}" if known else "–"
