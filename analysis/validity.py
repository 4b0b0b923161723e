"""The gates a run passes before its verdict means anything, each with its blame (method, section 5).

*client*, *workload* and *target* gates make a run INVALID before any PASS or FAIL; *evidence* gates only forbid a
PASS. A gate that holds says nothing: `gates` returns what blocks, and what a reader should know although it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from analysis.answers import read_findings, still_answering, usage_findings
from analysis.cohort import PERCENTILES, cohort_of, mean_age_s, nearest_rank
from analysis.indicator import attains, joint
from analysis.lengths import _cut_at as _cut_at  # scripts import it from here (adr/0021)
from analysis.lengths import length_findings
from analysis.records import NS_PER_S, Bools, numbers, outcome_is
from analysis.slo import Slo
from analysis.stationarity import area_s, correlation_time_s
from analysis.units import format_duration
from analysis.verdict import Blame, Criteria, Finding, RunFacts, SenderFacts, Severity, TargetFacts

__all__ = ["gates", "lag_limit_s", "misses", "residence_s"]

LAG_MAX_FACTOR: Final = 10
STAMPS_MOVED_MAX_S: Final = 0.0001
STAMPS_BY_READING_MAX: Final = 0.01  # of reads
HEARTBEAT_MAX_S: Final = 0.1
SUSPENDED_MAX_S: Final = 0.01
WALL_STEP_WARN_S: Final = 0.01
CLOCK_RATIO_MAX: Final = 0.001
AREA_ERROR_MAX: Final = 0.001
WORKLOAD_ERRORS_MAX: Final = 0.001
FOREIGN_SHARE_MAX: Final = 0.01  # of the requests sent, that others may have sent meanwhile
RESIDENCES: Final = 3
CORRELATION_TIMES: Final = 3
ANSWER_CHARS: Final = 200


def gates(requests: pd.DataFrame, facts: RunFacts, criteria: Criteria) -> list[Finding]:
    """All findings about the run's validity, blocking ones first, in the order client, workload, target, evidence.

    `requests` is the whole run's table with the derived columns. Virtual time (`simulated`) has no client to gate.
    Evidence findings are given as blocking; it is for the judge, who knows of a FAIL, to lower them.
    """
    sender = facts.sender
    cohort = cohort_of(requests, warmup_ns=sender.warmup_ns, window_ns=sender.window_ns)
    found: list[Finding] = []
    if not sender.simulated:
        found += _promise_kept(requests, sender)
        found += _send_lag(requests, cohort, sender, criteria)
        found += _machine(sender, facts.target, lag_limit_s(criteria.slo))
        found += _conservation(requests, sender)
    found += _workload(cohort, facts, criteria)
    found += _target(facts)
    found += _evidence(requests, cohort, sender, criteria)
    return sorted(found, key=lambda finding: finding.severity != "block")


def lag_limit_s(slo: Slo) -> float:
    """g = clamp(1 % of min(B_f, B_e), 2 ms, 10 ms), the p99 a client may be late by; 10 ms without such a bound."""
    bounds = [bound for bound in (slo.ttft_s, slo.e2e_s) if bound is not None]
    return min(max(0.01 * min(bounds, default=1.0), 0.002), 0.010)


def misses(cohort: pd.DataFrame, sender: SenderFacts, good: Bools) -> tuple[int, int]:
    """(N, misses) of the cohort: the integers that attainment is decided on.

    Of a run that was stopped early, N is what the schedule brings, and a request that was cancelled before it was
    decided is not a miss: attainment is an upper bound then.
    """
    if not sender.stopped_early:
        return len(good), int(np.count_nonzero(~good))
    certain = (cohort["certain_miss"] != "").to_numpy(dtype=np.bool_)
    undecided = outcome_is(cohort, "censored", "aborted") & ~certain
    return sender.cohort_due, int(np.count_nonzero(~good & ~undecided))


def residence_s(cohort: pd.DataFrame) -> float | None:
    """E[S²]/E[S] of the time S from scheduled to ended of the ok requests, or of all that ended where none is ok.

    That is the mean age of what is in service: how far back a run must reach for its start to be forgotten. A long
    tail of slow requests counts in it as it does in the server, where a median would miss it. Seconds.
    """
    ended = numbers(cohort, "ended_ns")
    among = outcome_is(cohort, "ok") & (ended >= 0)
    among = among if among.any() else ended >= 0
    return mean_age_s((ended - numbers(cohort, "scheduled_ns"))[among] / NS_PER_S) if among.any() else None


def _promise_kept(requests: pd.DataFrame, sender: SenderFacts) -> Iterator[Finding]:
    if sender.sent < sender.due:
        yield _block(
            "sent", "client", sender.sent, sender.due,
            f"{sender.due - sender.sent} of {sender.due} requests due before the stop were never sent",
        )  # fmt: skip
    recorded = int(np.count_nonzero(numbers(requests, "scheduled_ns") < sender.stop_ns))
    if recorded != sender.due:
        yield _block(
            "records", "client", recorded, sender.due,
            f"{recorded} records for {sender.due} requests due before the stop: the log is not whole",
        )  # fmt: skip
    if sender.encode_starved:
        yield _block(
            "encode", "client", sender.encode_starved, 0,
            f"the bodies of {sender.encode_starved} requests were not encoded in time",
        )  # fmt: skip


def _send_lag(
    requests: pd.DataFrame, cohort: pd.DataFrame, sender: SenderFacts, criteria: Criteria
) -> Iterator[Finding]:
    limit = lag_limit_s(criteria.slo)
    lag = np.sort(requests["send_lag_s"].to_numpy(dtype=np.float64))
    lag = lag[~np.isnan(lag)]
    if not lag.size:
        return
    for name, value, bound in (
        ("p99", nearest_rank(lag, PERCENTILES["p99"]), limit),
        ("max", float(lag[-1]), LAG_MAX_FACTOR * limit),
    ):
        if value > bound:
            yield _block(
                f"send_lag_{name}", "client", value, bound,
                f"requests left late: {name} of the send lag is {_ms(value)}, allowed {_ms(bound)}",
            )  # fmt: skip
    yield from _flips(cohort, sender, criteria)


def _flips(cohort: pd.DataFrame, sender: SenderFacts, criteria: Criteria) -> Iterator[Finding]:
    """Would the verdict be another one if the client had not been late?"""
    lag = np.nan_to_num(np.maximum(cohort["send_lag_s"].to_numpy(dtype=np.float64), 0.0))
    lag_ns = np.rint(lag * NS_PER_S).astype(np.int64)
    punctual = cohort.assign(scheduled_ns=numbers(cohort, "scheduled_ns") + lag_ns)
    good, freed = joint(cohort, criteria.slo), joint(punctual, criteria.slo)
    flips = int(np.count_nonzero(freed & ~good))
    if not flips:
        return
    changed = attains(*misses(cohort, sender, good), criteria.attain) != attains(
        *misses(cohort, sender, freed), criteria.attain
    )
    outcome = "without that the verdict would change" if changed else "the verdict stays"
    yield Finding(
        check="lag_flips", blame="client", severity="block" if changed else "info", value=flips,
        text=f"{flips} requests miss only because the client was late; {outcome}",
    )  # fmt: skip


def _machine(sender: SenderFacts, target: TargetFacts, limit: float) -> Iterator[Finding]:
    for name, value, bound in (
        ("p99", sender.heartbeat_p99_s, limit),
        ("max", sender.heartbeat_max_s, HEARTBEAT_MAX_S),
    ):
        if value > bound:  # the kernel's stamps do not depend on it, and send lag has a gate of its own
            yield Finding(
                check=f"heartbeat_{name}", blame="client", severity="block" if sender.stamps == "user" else "warning",
                value=value, limit=bound,
                text=f"the event loop was blocked: {name} of its heartbeat is late by {_ms(value)}, "
                f"allowed {_ms(bound)}",
            )  # fmt: skip
    if sender.stamps_moved_s > STAMPS_MOVED_MAX_S:
        yield _block(
            "stamps_moved", "client", sender.stamps_moved_s, STAMPS_MOVED_MAX_S,
            f"the clock of the kernel's stamps was set by {_ms(sender.stamps_moved_s)} during the run",
        )  # fmt: skip
    if sender.stamps_by_reading > STAMPS_BY_READING_MAX:
        yield _block(
            "stamps_missing", "client", sender.stamps_by_reading, STAMPS_BY_READING_MAX,
            f"the kernel gave no usable stamp for {sender.stamps_by_reading:.1%} of reads: use --stamps user",
        )  # fmt: skip
    if refused := sender.connections_refused or target.not_asked:
        yield _block("connections", "client", None, None, refused)
    elif sender.connection_limit is not None and sender.peak_in_flight >= sender.connection_limit:
        yield _block(
            "connections", "client", sender.peak_in_flight, sender.connection_limit,
            f"{sender.peak_in_flight} requests in flight reached the limit of {sender.connection_limit} connections; "
            f"allow twice as many, by `ulimit -n {2 * sender.connection_limit + 100}` or another machine",
        )  # fmt: skip
    if sender.workers_lost:
        yield _block("workers", "client", sender.workers_lost, 0, f"{sender.workers_lost} sending workers died")
    if sender.suspended_s > SUSPENDED_MAX_S:
        yield _block(
            "suspend", "client", sender.suspended_s, SUSPENDED_MAX_S,
            f"the machine slept for {format_duration(sender.suspended_s)} during the run",
        )  # fmt: skip
    if sender.clock_ratio_error > CLOCK_RATIO_MAX:
        yield _block(
            "clock", "client", sender.clock_ratio_error, CLOCK_RATIO_MAX,
            f"the clock was steered by {sender.clock_ratio_error:.2%} against the raw one",
        )  # fmt: skip
    if abs(sender.wall_step_s) > WALL_STEP_WARN_S:
        yield Finding(
            check="wall_clock", blame="client", severity="warning", value=sender.wall_step_s, limit=WALL_STEP_WARN_S,
            text=f"the wall clock moved by {sender.wall_step_s:+.3f} s; only dates are affected",
        )  # fmt: skip


def _conservation(requests: pd.DataFrame, sender: SenderFacts) -> Iterator[Finding]:
    if sender.live_area_s is None:
        return
    recorded = area_s(requests, until_ns=sender.stop_ns)
    if abs(sender.live_area_s - recorded) > AREA_ERROR_MAX * max(sender.live_area_s, recorded):
        yield _block(
            "conservation", "client", sender.live_area_s, recorded,
            f"{sender.live_area_s:.6g} request-seconds outstanding were counted live, the records hold {recorded:.6g}",
        )  # fmt: skip


def _workload(cohort: pd.DataFrame, facts: RunFacts, criteria: Criteria) -> Iterator[Finding]:
    total = len(cohort)
    refused = outcome_is(cohort, "workload_error")
    if (count := int(np.count_nonzero(refused))) > WORKLOAD_ERRORS_MAX * total:
        first = cohort[refused].iloc[0]
        yield _block(
            "workload_errors", "workload", count / total, WORKLOAD_ERRORS_MAX,
            f"{count} of {total} requests were refused as wrong; the first with {first['http_status']}: "
            f"{first['error'][:ANSWER_CHARS]}",
        )  # fmt: skip
    yield from still_answering(cohort, criteria)
    yield from length_findings(cohort, criteria)
    yield from usage_findings(
        cohort, criteria, lambda good: attains(*misses(cohort, facts.sender, good), criteria.attain)
    )
    yield from read_findings(cohort, facts.target, criteria, stamps=facts.sender.stamps)
    if facts.target.cold_claim_broken:
        yield _block("cold_claim", "workload", None, None, f"not as cold as claimed: {facts.target.cold_claim_broken}")


def _target(facts: RunFacts) -> Iterator[Finding]:
    target, sent = facts.target, facts.sender.sent
    # a target that died under load has changed by dying: that is a FAIL, which the judge gives
    if target.changed and not facts.target_died:
        yield _block("target_changed", "target", None, None, f"the target changed: {target.changed}")
    if target.disturbance:
        yield _block("disturbed", "target", None, None, target.disturbance)
    if target.foreign_requests:
        share = target.foreign_requests / max(sent, 1)
        yield Finding(
            check="other_clients", blame="target", severity="block" if share > FOREIGN_SHARE_MAX else "warning",
            value=share, limit=FOREIGN_SHARE_MAX,
            text=f"the server finished {sent + target.foreign_requests} requests while {sent} were sent to "
            "it: others use it too",
        )  # fmt: skip


def _block_length(requests: pd.DataFrame, sender: SenderFacts) -> Iterator[Finding]:
    """Blocks of one history say more than one of them only if each outlasts what it remembers (method, section 7)."""
    start_ns, end_ns = sender.warmup_ns, sender.warmup_ns + sender.window_ns
    memory_s = correlation_time_s(requests, start_ns=start_ns, end_ns=end_ns)
    if memory_s is None:
        return
    window_s = sender.window_ns / NS_PER_S
    needed_s = CORRELATION_TIMES * memory_s
    said = f"a block of {format_duration(window_s)} is {window_s / memory_s:.3g} autocorrelation times of N(t)"
    if window_s >= needed_s:
        yield Finding(
            check="block_length", blame="evidence", severity="info", value=window_s, limit=needed_s, text=said
        )
    else:
        yield _block(
            "block_length", "evidence", window_s, needed_s,
            f"{said}; at least {CORRELATION_TIMES} are needed: --window {format_duration(needed_s)}",
        )  # fmt: skip


def _evidence(
    requests: pd.DataFrame, cohort: pd.DataFrame, sender: SenderFacts, criteria: Criteria
) -> Iterator[Finding]:
    least = max(criteria.min_requests, 1)
    if (n := len(cohort)) < least:
        window_s = sender.window_ns / NS_PER_S
        rate = sender.rate or n / window_s
        needed = f"; a window of about {format_duration(least / rate)} would be enough" if rate else ""
        yield _block(
            "min_requests", "evidence", n, least, f"{n} requests in the window, at least {least} needed{needed}"
        )
    if criteria.blocks:
        yield from _block_length(requests, sender)
    # as measured where the target was idle: a limit must not grow with what overload makes longer
    residence = criteria.residence_s if criteria.residence_s is not None else residence_s(cohort)
    if residence is None:
        return
    for name, span_ns in (("window", sender.window_ns), ("warm-up", sender.warmup_ns)):
        if (span_s := span_ns / NS_PER_S) < RESIDENCES * residence:
            needed = format_duration(RESIDENCES * residence)
            yield _block(
                name.replace("-", ""), "evidence", span_s, RESIDENCES * residence,
                f"a {name} of {format_duration(span_s)} is too short: a request in service stays "
                f"{format_duration(residence)}; at least {needed} is needed: --{name.replace('-', '')} {needed}",
            )  # fmt: skip


def _block(check: str, blame: Blame, value: float | None, limit: float | None, text: str) -> Finding:
    severity: Severity = "block"
    return Finding(check=check, blame=blame, severity=severity, value=value, limit=limit, text=text)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
