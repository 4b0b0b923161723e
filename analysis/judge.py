"""PASS, FAIL or INVALID: of one run, and of a rate over its runs (method, sections 5 and 6).

The order is fixed. A client, workload or target gate that blocks makes the run INVALID. Else a dead target, too many
errors, too low attainment or rising outstanding work make it a FAIL. Else it would PASS, unless an evidence gate
forbids: then it is INVALID with blame `evidence`, because nothing is known of it. A FAIL stays one on thin evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from analysis.cohort import cohort_of, describe, realised_rate, sent_rate
from analysis.crosscheck import server_findings
from analysis.indicator import attains, joint, misses_allowed, tpot_undefined
from analysis.records import NS_PER_S, Bools, derive, numbers, outcome_is
from analysis.schema import ERRORS
from analysis.stationarity import (
    DRIFT_LIMIT,
    SIGNIFICANCE,
    Drift,
    mean_residence_s,
    outstanding_drift,
    rate_drift,
)
from analysis.stationarity import drift as gauge_drift
from analysis.telemetry import ServerView
from analysis.units import format_duration
from analysis.validity import gates, misses
from analysis.verdict import Criteria, Finding, RateVerdict, RunFacts, RunVerdict, Status

__all__ = ["SUMMARISED", "judge_rate", "judge_run", "misses_allowed"]

SUMMARISED: Final = ("client_queue_s", "ttft_s", "tpot_s", "e2e_s", "ttft_from_sent_s", "send_lag_s")


def judge_run(
    requests: pd.DataFrame, facts: RunFacts, criteria: Criteria, server: ServerView | None = None
) -> RunVerdict:
    """The verdict on one run from its request table (REQUEST_COLUMNS; derived columns are made here).

    `server` is what the target told while the run was on: its waiting gauge takes the drift test too. Goodput is left
    out of a run that was stopped early, whose cohort was never decided.
    """
    requests = derive(requests)
    cohort = cohort_of(requests, warmup_ns=facts.warmup_ns, window_ns=facts.window_ns)
    good = joint(cohort, criteria.slo)
    total, missed = misses(cohort, facts, good)
    errors = int(np.count_nonzero(outcome_is(cohort, *ERRORS)))
    drift = outstanding_drift(
        requests,
        start_ns=facts.warmup_ns,
        end_ns=min(facts.warmup_ns + facts.window_ns, facts.stop_ns),
        rate=facts.rate,
        replicates=criteria.replicates,
    )
    waiting = _waiting_drift(requests, facts, criteria, server)
    status, findings = _decide(
        gates(requests, facts, criteria), list(_failures(facts, criteria, total, missed, errors, drift, waiting))
    )
    told = () if server is None else tuple(server_findings(requests, server))
    goodput, token_goodput = (None, None) if facts.stopped_early else _goodput(cohort, good, facts)
    # an early stop ends what there is to count
    covered_ns = min(facts.window_ns, facts.stop_ns - facts.warmup_ns) if facts.stopped_early else facts.window_ns
    window = {"warmup_ns": facts.warmup_ns, "window_ns": covered_ns}
    return RunVerdict(
        status=status,
        findings=(*findings, *told, *_notes(cohort, criteria, drift)),
        rate=facts.rate,
        cohort=total,
        misses=missed,
        errors=errors,
        attainment=(total - missed) / total if total else 0.0,
        attainment_is_bound=facts.stopped_early,
        drift_ratio=drift.ratio if drift else None,
        drift_state=drift.state if drift else "undecided",
        waiting_ratio=waiting.ratio if waiting else None,
        waiting_state=waiting.state if waiting else "undecided",
        realised_rate=realised_rate(cohort, **window),
        sent_rate=sent_rate(requests, **window),
        goodput=goodput,
        token_goodput=token_goodput,
        summary=_summary(cohort),
        outcomes={str(name): int(count) for name, count in cohort["outcome"].value_counts().items()},
        server={} if server is None else server.metrics,
    )


def judge_rate(rate: float, verdicts: Sequence[RunVerdict], criteria: Criteria, needed: int) -> RateVerdict:
    """All that the runs at one rate say together: FAIL at the first FAIL, PASS from `needed` passes on.

    INVALID runs are evidence for nothing and are left out of the envelope. Those that only evidence gates held back
    still take part in the drift test, which can fail a rate and pass none: thin evidence excuses no overload.
    """
    valid = [verdict for verdict in verdicts if verdict.status != "INVALID"]
    measured = [verdict for verdict in verdicts if verdict.status != "INVALID" or verdict.blame == "evidence"]
    # an early stop cuts the window short, and its slope is not one of the same kind
    whole = [verdict for verdict in measured if not verdict.attainment_is_bound]
    drift = rate_drift([v.drift_ratio for v in whole if v.drift_ratio is not None])
    waiting = rate_drift([v.waiting_ratio for v in whole if v.waiting_ratio is not None])
    failed = next((verdict for verdict in valid if verdict.status == "FAIL"), None)
    verdict = RateVerdict(
        rate=rate,
        status="INCOMPLETE",
        runs=len(valid),
        attain_min=min((v.attainment for v in valid), default=None),
        attain_max=max((v.attainment for v in valid), default=None),
        drift_ratio=drift.ratio if drift else None,
        drift_p=drift.p if drift else None,
        waiting_ratio=waiting.ratio if waiting else None,
        waiting_p=waiting.p if waiting else None,
    )
    if failed is not None:
        return replace(verdict, status="FAIL", reason=failed.reason)
    for what, rise in (("outstanding work", drift), ("the server's waiting queue", waiting)):
        if rise is not None and rise.rising:
            return replace(
                verdict,
                status="FAIL",
                reason=f"{what} rises in {len(measured)} runs by {_share(rise.ratio)} of arrivals, "
                f"{_share(DRIFT_LIMIT)} allowed (p = {rise.p:.2g})",
            )
    if len(valid) >= needed:
        return replace(verdict, status="PASS")
    return replace(verdict, reason=f"{len(valid)} of {needed} runs passed so far")


def _decide(gated: list[Finding], failures: list[Finding]) -> tuple[Status, list[Finding]]:
    blocking = {finding.blame for finding in gated if finding.severity == "block"}
    if blocking & {"client", "workload", "target"}:
        return "INVALID", [*_lowered(gated, "evidence"), *_lowered(failures, "server")]
    if failures:
        return "FAIL", [*failures, *_lowered(gated, "evidence")]
    return ("INVALID" if "evidence" in blocking else "PASS"), gated


def _lowered(findings: list[Finding], blame: str) -> list[Finding]:
    """Findings of `blame` did not decide: warnings, behind those that did."""
    lowered = [replace(f, severity="warning") if f.blame == blame and f.severity == "block" else f for f in findings]
    return sorted(lowered, key=lambda finding: finding.severity != "block")


def _failures(
    facts: RunFacts,
    criteria: Criteria,
    total: int,
    missed: int,
    errors: int,
    drift: Drift | None,
    waiting: Drift | None,
) -> Iterator[Finding]:
    if facts.target_died:
        yield _failure("target_died", None, None, "the target died with requests in flight")
    if errors > criteria.max_error_rate * total:
        share, limit = errors / max(total, 1), float(criteria.max_error_rate)
        yield _failure(
            "error_rate", share, limit, f"{errors} of {total} requests failed, {_share(limit)} may"
        )  # fmt: skip
    if not attains(total, missed, criteria.attain):
        attainment, wanted = (total - missed) / total, float(criteria.attain)
        at_most = "at most " if facts.stopped_early else ""
        yield _failure(
            "attainment", attainment, wanted,
            f"{at_most}{_share(attainment)} of requests met the SLO, {_share(wanted)} must: "
            f"{missed} misses of {total}, {misses_allowed(total, criteria.attain)} allowed",
        )  # fmt: skip
    for check, what, rise in (("drift", "outstanding work", drift), ("waiting", "the server's waiting queue", waiting)):
        if rise is not None and rise.state == "rising":
            yield _failure(
                check, rise.ratio, DRIFT_LIMIT,
                f"{what} rises by {_share(rise.ratio)} of arrivals, {_share(DRIFT_LIMIT)} allowed "
                f"(p = {rise.p:.2g} < {SIGNIFICANCE:g}/{criteria.replicates})",
            )  # fmt: skip


def _waiting_drift(
    requests: pd.DataFrame, facts: RunFacts, criteria: Criteria, server: ServerView | None
) -> Drift | None:
    if server is None or not len(server.waiting):
        return None
    start_ns, end_ns = facts.warmup_ns, min(facts.warmup_ns + facts.window_ns, facts.stop_ns)
    residence_s = mean_residence_s(requests, start_ns=start_ns, end_ns=end_ns)
    if np.isnan(residence_s):
        return None
    return gauge_drift(
        server.waiting_at_s,
        server.waiting,
        start_s=start_ns / NS_PER_S,
        end_s=end_ns / NS_PER_S,
        rate=facts.rate,
        residence_s=residence_s,
        replicates=criteria.replicates,
    )


def _notes(cohort: pd.DataFrame, criteria: Criteria, drift: Drift | None) -> Iterator[Finding]:
    """What a reader should know although it decides nothing."""
    if drift is not None and drift.state == "undecided":
        text = (
            "one run cannot tell whether outstanding work rises; it could in a window of "
            f"{format_duration(drift.needed_window_s)}"
        )
        yield Finding(
            check="drift", blame="server", severity="info", value=drift.ratio, limit=DRIFT_LIMIT, text=text
        )  # fmt: skip
    if criteria.slo.tpot_s is not None and (single := tpot_undefined(cohort)):
        text = f"{single} requests of one output token have no TPOT; its bound does not apply to them"
        yield Finding(check="tpot_undefined", blame="workload", severity="info", value=single, text=text)


def _goodput(cohort: pd.DataFrame, good: Bools, facts: RunFacts) -> tuple[float, float]:
    """Joint-good requests, and their output tokens, per second of window."""
    window_s = facts.window_ns / NS_PER_S
    tokens = np.maximum(numbers(cohort, "output_tokens"), 0)[good]
    return int(np.count_nonzero(good)) / window_s, int(tokens.sum()) / window_s


def _summary(cohort: pd.DataFrame) -> dict[str, dict[str, float]]:
    ok = outcome_is(cohort, "ok")
    return {name: describe(cohort[name].to_numpy(dtype=np.float64), ok) for name in SUMMARISED}


def _failure(check: str, value: float | None, limit: float | None, text: str) -> Finding:
    return Finding(check=check, blame="server", severity="block", value=value, limit=limit, text=text)


def _share(share: float) -> str:
    return f"{100 * share:.4g} %"
