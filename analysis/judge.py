"""PASS, FAIL or INVALID: of one run, and of a rate over its runs (method, sections 5 and 6).

The order is fixed. A client, workload or target gate that blocks makes the run INVALID. Else a dead target, too many
errors, too low attainment or rising outstanding work make it a FAIL. Else it would PASS, unless an evidence gate
forbids: then it is INVALID with blame `evidence`, because nothing is known of it. A FAIL stays one on thin evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np
import pandas as pd
from scipy.special import gammaincinv

from analysis.cohort import cohort_of, describe, realised_rate, sent_rate
from analysis.crosscheck import server_findings
from analysis.indicator import attains, joint, misses_allowed, misses_by_bound, tpot_undefined
from analysis.records import NS_PER_S, Bools, Floats, derive, numbers, outcome_is
from analysis.schema import ERRORS
from analysis.stationarity import BATCHES, DRIFT_LIMIT, RATE_Z, RUN_Z, Drift, gauge_drift, outstanding_drift, rate_drift
from analysis.telemetry import ServerView
from analysis.text import printable
from analysis.validity import gates, misses
from analysis.verdict import Criteria, Finding, RateVerdict, RunFacts, RunVerdict, Status

__all__ = ["SUMMARISED", "fewest_errors", "judge_rate", "judge_run", "mean_error", "misses_allowed"]

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
    failed = int(np.count_nonzero(outcome_is(cohort, *ERRORS)))
    # of a run that was stopped early nothing is asked of what was still in active: its misses decided
    open_ = 0 if facts.stopped_early else int(np.count_nonzero(outcome_is(cohort, "censored", "aborted")))
    # a run that misses its SLO waits for no answer, so that those it did not wait for accuse nobody
    unanswered = open_ if attains(total, missed, criteria.attain) else 0
    drift = outstanding_drift(
        requests,
        start_ns=facts.warmup_ns,
        end_ns=min(facts.warmup_ns + facts.window_ns, facts.stop_ns),
        rate=facts.rate,
    )
    waiting = _waiting_drift(facts, server)
    limit = RATE_Z if criteria.replicates == 1 else RUN_Z
    status, findings = _decide(
        gates(requests, facts, criteria),
        [
            *_failures(facts, criteria, total, missed),
            *_too_many_errors(criteria, total, failed, unanswered),
            *_rises(drift, waiting, limit),
        ],
    )
    told = () if server is None else tuple(server_findings(requests, server))
    goodput, token_goodput = (None, None) if facts.stopped_early else _goodput(cohort, good, facts)
    # an early stop ends what there is to count
    covered_ns = min(facts.window_ns, facts.stop_ns - facts.warmup_ns) if facts.stopped_early else facts.window_ns
    window = {"warmup_ns": facts.warmup_ns, "window_ns": covered_ns}
    return RunVerdict(
        status=status,
        findings=(*findings, *told, *_notes(cohort, criteria)),
        rate=facts.rate,
        cohort=total,
        misses=missed,
        missed_by=misses_by_bound(cohort, criteria.slo, undecided=not facts.stopped_early),
        errors=failed,
        error_words=_error_words(cohort),
        unresolved=open_,
        attainment=(total - missed) / total if total else 0.0,
        attainment_is_bound=facts.stopped_early,
        drift_ratio=drift.ratio if drift else None,
        drift_z=drift.z if drift else None,
        drift_state=_state(drift, limit),
        waiting_ratio=waiting.ratio if waiting else None,
        waiting_z=waiting.z if waiting else None,
        waiting_state=_state(waiting, limit),
        e2e_error_s=mean_error(cohort["e2e_s"].to_numpy(dtype=np.float64)[outcome_is(cohort, "ok")]),
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

    Drift and errors of all runs together are tested once, when `needed` runs are there: a test after every run would
    multiply its false alarms. INVALID runs are evidence for nothing and are left out of the envelope. Those that only
    evidence gates held back still take part in those two tests, which can fail a rate and pass none: thin evidence
    excuses no overload.
    """
    valid = [verdict for verdict in verdicts if verdict.status != "INVALID"]
    measured = [verdict for verdict in verdicts if verdict.status != "INVALID" or verdict.blame == "evidence"]
    # an early stop cuts the window short, and its slope is not one of the same kind
    whole = [verdict for verdict in measured if not verdict.attainment_is_bound]
    drift, waiting = _together(whole, "drift"), _together(whole, "waiting")
    failed = next((verdict for verdict in valid if verdict.status == "FAIL"), None)
    verdict = RateVerdict(
        rate=rate,
        status="INCOMPLETE",
        runs=len(valid),
        attain_min=min((v.attainment for v in valid), default=None),
        attain_max=max((v.attainment for v in valid), default=None),
        drift_ratio=drift.ratio if drift else None,
        drift_z=drift.z if drift else None,
        waiting_ratio=waiting.ratio if waiting else None,
        waiting_z=waiting.z if waiting else None,
    )
    if failed is not None:
        return replace(verdict, status="FAIL", reason=failed.reason)
    if len(measured) >= needed:
        together = f"in {len(measured)} runs together " if len(measured) > 1 else ""
        for what, rise in _named(drift, waiting):
            if rise.rises(RATE_Z):
                return replace(verdict, status="FAIL", reason=f"{together}{_rise_text(what, rise, RATE_Z)}")
        total, wrong = sum(v.cohort for v in measured), sum(v.errors + v.unresolved for v in measured)
        if wrong > criteria.max_error_rate * total:
            return replace(verdict, status="FAIL", reason=f"{together}{_error_text(wrong, total, criteria)}")
    if len(valid) >= needed:
        return replace(verdict, status="PASS")
    return replace(verdict, reason=f"{len(valid)} of {needed} runs passed so far")


def fewest_errors(count: int) -> float:
    """One-sided 95 % lower confidence bound of a Poisson mean of which `count` events were seen; 0 of none.

    The 5 % quantile of a Gamma law of shape `count` (Garwood's interval).
    """
    return float(gammaincinv(count, 0.05)) if count else 0.0


def mean_error(values: Floats) -> float | None:
    """Standard error of the mean of a correlated series in its order, from the means of 10 batches; same unit.

    `None` for fewer than 20 values.
    """
    if len(values) < 2 * BATCHES:
        return None
    means = [float(batch.mean()) for batch in np.array_split(values, BATCHES)]
    return float(np.std(means, ddof=1)) / math.sqrt(BATCHES)


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


def _failures(facts: RunFacts, criteria: Criteria, total: int, missed: int) -> Iterator[Finding]:
    if facts.target_died:
        yield _failure("target_died", None, None, "the target died with requests in active")
    if not attains(total, missed, criteria.attain):
        attainment, wanted = (total - missed) / total, float(criteria.attain)
        at_most = "at most " if facts.stopped_early else ""
        yield _failure(
            "attainment", attainment, wanted,
            f"{at_most}{_share(attainment)} of requests met the SLO, {_share(wanted)} must: "
            f"{missed} misses of {total}, {misses_allowed(total, criteria.attain)} allowed",
        )  # fmt: skip


def _too_many_errors(criteria: Criteria, total: int, errors: int, unresolved: int) -> Iterator[Finding]:
    """A run of several fails only where its errors cannot be the luck of a rate within ε; one alone by its share."""
    wrong = errors + unresolved
    certain = wrong if criteria.replicates == 1 else fewest_errors(wrong)
    if certain > criteria.max_error_rate * total:
        text = _error_text(wrong, total, criteria)
        if unresolved:
            text += f" ({unresolved} were still unanswered when the load stopped)"
        yield _failure("error_rate", wrong / max(total, 1), float(criteria.max_error_rate), text)


def _rises(drift: Drift | None, waiting: Drift | None, limit: float) -> Iterator[Finding]:
    for what, rise in _named(drift, waiting):
        if rise.rises(limit):
            check = "drift" if rise is drift else "waiting"
            yield _failure(check, rise.ratio, DRIFT_LIMIT, _rise_text(what, rise, limit))


def _named(drift: Drift | None, waiting: Drift | None) -> list[tuple[str, Drift]]:
    both = (("outstanding work", drift), ("the server's waiting queue", waiting))
    return [(what, rise) for what, rise in both if rise is not None]


def _rise_text(what: str, rise: Drift, limit: float) -> str:
    return f"{what} rises by {_share(rise.ratio)} of arrivals, limit {_share(DRIFT_LIMIT)} (z = {rise.z:.3g} > {limit})"


def _error_text(wrong: int, total: int, criteria: Criteria) -> str:
    share, limit = wrong / max(total, 1), float(criteria.max_error_rate)
    return f"{wrong} of {total} requests failed ({_share(share)}), limit {_share(limit)}"


def _state(drift: Drift | None, limit: float) -> Literal["ok", "rising", "undecided"]:
    if drift is None:
        return "undecided"
    return "rising" if drift.rises(limit) else "ok"


def _together(runs: Sequence[RunVerdict], kind: Literal["drift", "waiting"]) -> Drift | None:
    known = [
        Drift(ratio=ratio, z=z)
        for run in runs
        for ratio, z in [(run.drift_ratio, run.drift_z) if kind == "drift" else (run.waiting_ratio, run.waiting_z)]
        if ratio is not None and z is not None
    ]
    return rate_drift(known)


def _waiting_drift(facts: RunFacts, server: ServerView | None) -> Drift | None:
    if server is None or not len(server.waiting):
        return None
    return gauge_drift(
        server.waiting_at_s,
        server.waiting,
        start_s=facts.warmup_ns / NS_PER_S,
        end_s=min(facts.warmup_ns + facts.window_ns, facts.stop_ns) / NS_PER_S,
        rate=facts.rate,
    )


def _notes(cohort: pd.DataFrame, criteria: Criteria) -> Iterator[Finding]:
    """What a reader should know although it decides nothing."""
    if criteria.slo.tpot_s is not None and (single := tpot_undefined(cohort)):
        text = f"{single} requests of one output token have no TPOT; its bound does not apply to them"
        yield Finding(check="tpot_undefined", blame="workload", severity="info", value=single, text=text)


def _error_words(cohort: pd.DataFrame) -> str:
    """The commonest text of the cohort's errors; outcomes that need none have none."""
    said = cohort.loc[outcome_is(cohort, *ERRORS), "error"]
    told = said[said != ""]
    return printable(str(told.value_counts().index[0]), 200) if len(told) else ""


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
