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

from analysis.cohort import describe, mask, realised_rate, sent_rate
from analysis.indicator import attains, joint, misses_allowed, tpot_undefined
from analysis.records import NS_PER_S, Bools, derive, numbers, outcome_is
from analysis.schema import ERRORS
from analysis.stationarity import DRIFT_LIMIT, SIGNIFICANCE, Drift, outstanding_drift, rate_drift
from analysis.units import format_duration
from analysis.validity import gates, misses
from analysis.verdict import Criteria, Finding, RateVerdict, RunFacts, RunVerdict, Status

__all__ = ["SUMMARISED", "judge_rate", "judge_run", "misses_allowed"]

SUMMARISED: Final = ("client_queue_s", "ttft_s", "tpot_s", "e2e_s", "ttft_from_sent_s", "send_lag_s")


def judge_run(requests: pd.DataFrame, facts: RunFacts, criteria: Criteria) -> RunVerdict:
    """The verdict on one run from its request table (REQUEST_COLUMNS; derived columns are made here).

    Goodput is left out of a run that was stopped early, whose cohort was never decided.
    """
    requests = derive(requests)
    cohort = requests[mask(requests, warmup_ns=facts.warmup_ns, window_ns=facts.window_ns)]
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
    status, findings = _decide(
        gates(requests, facts, criteria), list(_failures(facts, criteria, total, missed, errors, drift))
    )
    goodput, token_goodput = (None, None) if facts.stopped_early else _goodput(cohort, good, facts)
    return RunVerdict(
        status=status,
        findings=(*findings, *_notes(cohort, criteria, drift)),
        rate=facts.rate,
        cohort=total,
        misses=missed,
        errors=errors,
        attainment=(total - missed) / total if total else 0.0,
        attainment_is_bound=facts.stopped_early,
        drift_ratio=drift.ratio if drift else None,
        drift_state=drift.state if drift else "undecided",
        realised_rate=realised_rate(cohort),
        sent_rate=sent_rate(cohort),
        goodput=goodput,
        token_goodput=token_goodput,
        summary=_summary(cohort),
        outcomes={str(name): int(count) for name, count in cohort["outcome"].value_counts().items()},
    )


def judge_rate(rate: float, verdicts: Sequence[RunVerdict], criteria: Criteria, needed: int) -> RateVerdict:
    """All that the runs at one rate say together: FAIL at the first FAIL, PASS from `needed` passes on.

    INVALID runs are evidence for nothing and are left out of the envelope. Those that only evidence gates held back
    still take part in the drift test, which can fail a rate and pass none: thin evidence excuses no overload.
    """
    valid = [verdict for verdict in verdicts if verdict.status != "INVALID"]
    measured = [verdict for verdict in verdicts if verdict.status != "INVALID" or verdict.blame == "evidence"]
    # an early stop cuts the window short, and its slope is not one of the same kind
    drift = rate_drift([v.drift_ratio for v in measured if v.drift_ratio is not None and not v.attainment_is_bound])
    failed = next((verdict for verdict in valid if verdict.status == "FAIL"), None)
    verdict = RateVerdict(
        rate=rate,
        status="INCOMPLETE",
        runs=len(valid),
        attain_min=min((v.attainment for v in valid), default=None),
        attain_max=max((v.attainment for v in valid), default=None),
        drift_ratio=drift.ratio if drift else None,
        drift_p=drift.p if drift else None,
    )
    if failed is not None:
        return replace(verdict, status="FAIL", reason=failed.reason)
    if drift is not None and drift.rising:
        return replace(
            verdict,
            status="FAIL",
            reason=f"outstanding work rises in {len(measured)} runs by {_share(drift.ratio)} of arrivals, "
            f"{_share(DRIFT_LIMIT)} allowed (p = {drift.p:.2g})",
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
    facts: RunFacts, criteria: Criteria, total: int, missed: int, errors: int, drift: Drift | None
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
    if drift is not None and drift.state == "rising":
        yield _failure(
            "drift", drift.ratio, DRIFT_LIMIT,
            f"outstanding work rises by {_share(drift.ratio)} of arrivals, {_share(DRIFT_LIMIT)} allowed "
            f"(p = {drift.p:.2g} < {SIGNIFICANCE:g}/{criteria.replicates})",
        )  # fmt: skip


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
