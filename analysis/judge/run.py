"""PASS, FAIL or INVALID: the verdict on one run (method, sections 5 and 6).

The order is fixed. A client, workload or target gate that blocks makes the run INVALID. Else a dead target, too many
errors, too low attainment or rising outstanding work make it a FAIL. Else it would PASS, unless an evidence gate
forbids: then it is INVALID with blame `evidence`, because nothing is known of it. A FAIL stays one on thin evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal

import numpy as np
import pandas as pd
from scipy.special import gammaincinv

from analysis.cohort import cohort_of, describe, realised_rate, sent_rate
from analysis.indicator import attains, joint, misses_allowed, misses_by_bound, tpot_undefined
from analysis.judge.text import error_text, named, rise_text, share
from analysis.records import NS_PER_S, Bools, Floats, derive, numbers, outcome_is
from analysis.replicas import balance_of
from analysis.schema import ERRORS
from analysis.server_metrics.crosscheck import server_findings
from analysis.server_metrics.types import ServerView
from analysis.stationarity import BATCHES, DRIFT_LIMIT, RATE_Z, RUN_Z, Drift, gauge_drift, outstanding_drift
from analysis.text import printable
from analysis.validity import gates, misses
from analysis.verdict import Criteria, Finding, RunFacts, RunVerdict, SenderFacts, Status

__all__ = ["SUMMARISED", "fewest_errors", "judge_run", "mean_error"]

SUMMARISED: Final = ("client_queue_s", "ttft_s", "tpot_s", "e2e_s", "ttft_from_sent_s", "send_lag_s")


def judge_run(
    requests: pd.DataFrame, facts: RunFacts, criteria: Criteria, server: ServerView | None = None
) -> RunVerdict:
    """The verdict on one run from its request table (REQUEST_COLUMNS; derived columns are made here).

    `server` is what the target's metrics said during the run; its waiting gauge takes the drift test too. A run that
    was stopped early has no goodput, because its cohort was never decided.
    """
    requests, sender = derive(requests), facts.sender
    cohort = cohort_of(requests, warmup_ns=sender.warmup_ns, window_ns=sender.window_ns)
    good = joint(cohort, criteria.slo)
    total, missed = misses(cohort, sender, good)
    failed = int(np.count_nonzero(outcome_is(cohort, *ERRORS)))
    # of a run that was stopped early nothing is asked of what was still in flight: its misses decided
    open_ = 0 if sender.stopped_early else int(np.count_nonzero(outcome_is(cohort, "censored", "aborted")))
    # a run that misses its SLO does not wait for answers, so unanswered requests are no errors there
    unanswered = open_ if attains(total, missed, criteria.attain) else 0
    drift = outstanding_drift(
        requests,
        start_ns=sender.warmup_ns,
        end_ns=min(sender.warmup_ns + sender.window_ns, sender.stop_ns),
        rate=sender.rate,
    )
    waiting = _waiting_drift(sender, server)
    limit = RATE_Z if criteria.replicates == 1 else RUN_Z
    status, findings = _decide(
        gates(requests, facts, criteria),
        [
            *_failures(facts, criteria, total, missed),
            *_too_many_errors(criteria, total, failed, unanswered),
            *_rises(drift, waiting, limit),
        ],
    )
    seen = () if server is None else tuple(server_findings(requests, server))
    goodput, token_goodput = (None, None) if sender.stopped_early else _goodput(cohort, good, sender)
    # an early stop ends what there is to count
    covered_ns = min(sender.window_ns, sender.stop_ns - sender.warmup_ns) if sender.stopped_early else sender.window_ns
    window = {"warmup_ns": sender.warmup_ns, "window_ns": covered_ns}
    return RunVerdict(
        status=status,
        findings=(*findings, *seen, *_notes(cohort, criteria)),
        rate=sender.rate,
        cohort=total,
        misses=missed,
        missed_by=misses_by_bound(cohort, criteria.slo, undecided=not sender.stopped_early),
        errors=failed,
        error_words=_error_words(cohort),
        unresolved=open_,
        attainment=(total - missed) / total if total else 0.0,
        attainment_is_bound=sender.stopped_early,
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
        balance=balance_of(requests, sender, criteria.slo),
    )


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
        yield _failure("target_died", None, None, "the target died with requests in flight")
    if not attains(total, missed, criteria.attain):
        attainment, wanted = (total - missed) / total, float(criteria.attain)
        at_most = "at most " if facts.sender.stopped_early else ""
        yield _failure(
            "attainment", attainment, wanted,
            f"{at_most}{share(attainment)} of requests met the SLO, {share(wanted)} must: "
            f"{missed} misses of {total}, {misses_allowed(total, criteria.attain)} allowed",
        )  # fmt: skip


def _too_many_errors(criteria: Criteria, total: int, errors: int, unresolved: int) -> Iterator[Finding]:
    """A run of several fails only where its errors cannot be the luck of a rate within ε; one alone by its share."""
    wrong = errors + unresolved
    certain = wrong if criteria.replicates == 1 else fewest_errors(wrong)
    if certain > criteria.max_error_rate * total:
        text = error_text(wrong, total, criteria)
        if unresolved:
            text += f" ({unresolved} were still unanswered when the load stopped)"
        yield _failure("error_rate", wrong / max(total, 1), float(criteria.max_error_rate), text)


def _rises(drift: Drift | None, waiting: Drift | None, limit: float) -> Iterator[Finding]:
    for what, rise in named(drift, waiting):
        if rise.rises(limit):
            check = "drift" if rise is drift else "waiting"
            yield _failure(check, rise.ratio, DRIFT_LIMIT, rise_text(what, rise, limit))


def _state(drift: Drift | None, limit: float) -> Literal["ok", "rising", "undecided"]:
    if drift is None:
        return "undecided"
    return "rising" if drift.rises(limit) else "ok"


def _waiting_drift(sender: SenderFacts, server: ServerView | None) -> Drift | None:
    if server is None or not len(server.waiting):
        return None
    return gauge_drift(
        server.waiting_at_s,
        server.waiting,
        start_s=sender.warmup_ns / NS_PER_S,
        end_s=min(sender.warmup_ns + sender.window_ns, sender.stop_ns) / NS_PER_S,
        rate=sender.rate,
    )


def _notes(cohort: pd.DataFrame, criteria: Criteria) -> Iterator[Finding]:
    """What a reader should know although it decides nothing."""
    if criteria.slo.tpot_s is not None and (single := tpot_undefined(cohort)):
        text = f"{single} requests of one output token have no TPOT; its bound does not apply to them"
        yield Finding(check="tpot_undefined", blame="workload", severity="info", value=single, text=text)


def _error_words(cohort: pd.DataFrame) -> str:
    """The commonest text of the cohort's errors; outcomes that need none have none."""
    texts = cohort.loc[outcome_is(cohort, *ERRORS), "error"]
    texts = texts[texts != ""]
    return printable(str(texts.value_counts().index[0]), 200) if len(texts) else ""


def _goodput(cohort: pd.DataFrame, good: Bools, sender: SenderFacts) -> tuple[float, float]:
    """Joint-good requests, and their output tokens, per second of window."""
    window_s = sender.window_ns / NS_PER_S
    tokens = np.maximum(numbers(cohort, "output_tokens"), 0)[good]
    return int(np.count_nonzero(good)) / window_s, int(tokens.sum()) / window_s


def _summary(cohort: pd.DataFrame) -> dict[str, dict[str, float]]:
    ok = outcome_is(cohort, "ok")
    return {name: describe(cohort[name].to_numpy(dtype=np.float64), ok) for name in SUMMARISED}


def _failure(check: str, value: float | None, limit: float | None, text: str) -> Finding:
    return Finding(check=check, blame="server", severity="block", value=value, limit=limit, text=text)
