"""Makes the answer of a sweep from its outcome and its ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from analysis.diagnose import diagnose, in_lines
from analysis.replicas import pooled
from analysis.report.buckets import Bucket
from analysis.report.cause import cause, missed_by
from analysis.report.required import requirement
from analysis.report.types import AdditionalStatistics, CapacityAnswer, Conditions, Proof, RateRow, RunRow, Span
from analysis.search import Outcome, RunRequest
from analysis.search.intervals import mean_crossing, spread, window_to_agree
from analysis.slo import Slo
from analysis.verdict import RateVerdict, RunVerdict

__all__ = ["LATENCIES", "PERCENTILES", "answer"]

LATENCIES: Final = ("client_queue_s", "ttft_s", "tpot_s", "e2e_s")
PERCENTILES: Final = ("p50", "p95", "p99")

Run = tuple[RunRequest, RunVerdict]


def answer(
    *,
    conditions: Conditions,
    outcome: Outcome,
    runs: Sequence[Run],
    buckets: Callable[[Sequence[str]], list[Bucket]],
    notes: Sequence[str] = (),
    slo: Slo | None = None,
    require: float | None = None,
) -> CapacityAnswer:
    """Assemble the answer.

    `conditions` is all that λ* is a property of (SLO, q, ε, window, R, workload, target); `runs` the whole ledger;
    `buckets(keys)` the latencies per (input, output) bucket of the valid runs of those keys. Rates in requests/s, times
    in s. With `slo` the bracket's failing end is diagnosed; with `require` the answer says whether that rate is kept.
    """
    return CapacityAnswer(
        outcome=outcome.name,
        reason=outcome.reason,
        capacity=outcome.capacity,
        proved=outcome.proved,
        bracket=(outcome.lower, outcome.upper),
        upper_stands=outcome.upper_stands,
        support=outcome.support,
        undecided=outcome.undecided,
        proof=Proof(
            passes=outcome.proof_passes,
            # blocks of one history are not independent trials
            pass_share_lower_bound=outcome.proof if conditions.replicates == "replicate" else None,
        ),
        inversions=outcome.inversions,
        conditions=conditions,
        rates=_rates(outcome.rates, "explore", runs, buckets, slo),
        proofs=_rates(outcome.proofs, "prove", runs, buckets, slo),
        beside=_additional(outcome, runs, conditions),
        diagnosis="" if slo is None else _diagnosis(outcome, runs, slo),
        findings=outcome.findings,
        notes=tuple(notes),
        runs=tuple(_run(request, verdict) for request, verdict in runs),
        requirement=None if require is None else requirement(outcome, require, conditions),
    )


def _rates(
    verdicts: Sequence[RateVerdict],
    kind: str,
    runs: Sequence[Run],
    buckets: Callable[[Sequence[str]], list[Bucket]],
    slo: Slo | None,
) -> tuple[RateRow, ...]:
    rows = []
    for verdict in verdicts:
        own = [run for request, run in runs if request.kind == kind and request.rate == verdict.rate]
        valid = [run for request, run in runs if request.key in verdict.keys and run.status != "INVALID"]
        rows.append(
            RateRow(
                rate=verdict.rate,
                check=verdict.status,
                reason=verdict.reason,
                cause=cause(valid, slo, verdict.reason) if verdict.status == "FAIL" else "",
                missed_by=missed_by(valid),
                runs=verdict.runs,
                invalid_runs=sum(run.status == "INVALID" for run in own),
                realised_rate=_range([run.realised_rate for run in valid]),
                sent_rate=_range([run.sent_rate for run in valid]),
                attainment=_range([verdict.attain_min, verdict.attain_max]),
                floor=verdict.attain_min,
                floor_is_bound=any(r.attainment_is_bound and r.attainment == verdict.attain_min for r in valid),
                cohort=sum(run.cohort for run in valid),
                errors=sum(run.errors for run in valid),
                drift_ratio=verdict.drift_ratio,
                drift_z=verdict.drift_z,
                goodput=_range([run.goodput for run in valid]),
                token_goodput=_range([run.token_goodput for run in valid]),
                worst={
                    metric: {p: _worst(valid, metric, p) for p in (*PERCENTILES, *(f"{p}_all" for p in PERCENTILES))}
                    for metric in (*LATENCIES, "send_lag_s")
                },
                buckets=tuple(buckets(verdict.keys)),
                balance=pooled([run.balance for run in valid if run.balance is not None]),
            )
        )
    return tuple(rows)


def _diagnosis(outcome: Outcome, runs: Sequence[Run], slo: Slo) -> str:
    """Why the smallest failing rate fails, beside the largest passing one; empty where none failed by its runs."""
    failed = [run for request, run in runs if request.rate == outcome.upper and run.status == "FAIL"]
    if outcome.upper is not None and not failed:  # the runs passed, their slopes together did not
        failed = [run for request, run in runs if request.rate == outcome.upper and run.status == "PASS"]
    passed = [run for request, run in runs if request.rate == outcome.lower and run.status == "PASS"]
    return in_lines(diagnose(failed, passed, slo))


def _worst(runs: Sequence[RunVerdict], metric: str, percentile: str) -> float | None:
    values = [run.summary[metric][percentile] for run in runs if percentile in run.summary.get(metric, {})]
    return max(values, default=None)


def _range(values: Sequence[float | None]) -> Span | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _additional(outcome: Outcome, runs: Sequence[Run], conditions: Conditions) -> AdditionalStatistics:
    """What stands beside λ*, never as the verdict (method, section 1): of the search's runs, all in equal windows."""
    search = [run for request, run in runs if request.kind in ("explore", "prove") and run.status != "INVALID"]
    crossing = mean_crossing(search, Fraction(conditions.attain))
    at = outcome.capacity if outcome.capacity is not None else outcome.lower
    sd = spread(run.attainment for run in search if run.rate == at)
    window_s, measured_s, width = None, conditions.window_s, conditions.width
    if crossing is not None and sd is not None and at is not None and measured_s is not None:
        window_s = window_to_agree(window_s=measured_s, sd=sd, slope=crossing.slope, width=width, runs=conditions.runs)
        if window_s <= measured_s:
            # they agree as it is; or, where almost every request is good at λ*, σ there is not the σ at the crossing
            window_s = measured_s if crossing.rate <= at * (1 + width) else None
    return AdditionalStatistics(
        mean_crossing_rate=crossing.rate if crossing else None,
        mean_crossing_is_bound=crossing is not None and crossing.is_bound,
        between_run_sd=sd,
        between_run_sd_at=at,
        window_to_agree_s=window_s if window_s is not None and math.isfinite(window_s) else None,
    )


def _run(request: RunRequest, run: RunVerdict) -> RunRow:
    return RunRow(
        key=request.key,
        variant=request.variant,
        kind=request.kind,
        rate=request.rate,
        replicate=request.replicate,
        block=request.block,
        seed=request.seed,
        attempt=request.attempt,
        status=run.status,
        attainment=run.attainment,
        attainment_is_bound=run.attainment_is_bound,
        cohort=run.cohort,
        misses=run.misses,
        missed_by=run.missed_by,
        errors=run.errors,
        outcomes=run.outcomes,
        findings=tuple(finding for finding in run.findings if finding.severity != "info"),
    )
