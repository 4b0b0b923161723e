"""The tables and sentences of an answer (see analysis.report.capacity), as plain cells, without layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from analysis.replicas import imbalance_text, notable
from analysis.report.capacity import LATENCIES, PERCENTILES
from analysis.report.cause import cause
from analysis.report.types import CapacityAnswer, Conditions, RateRow
from analysis.slo import Slo
from analysis.units import format_duration
from analysis.verdict import RunVerdict

__all__ = [
    "Table",
    "bucket_table",
    "failures",
    "latency_table",
    "ms",
    "percent",
    "run_sentences",
    "run_table",
    "sentences",
    "verdict_table",
]

LATE_CLIENT = (
    "This machine was late, not the server: stop other programs here, give loadgen cores of its own "
    "(taskset -c 2,3 loadgen …), or run it on another machine."
)
_NAMES = {"client_queue_s": "client queue", "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text; all columns but those in `left` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str] = frozenset({"check", "bucket", "run", "status", "metric"})


def verdict_table(answer: CapacityAnswer) -> Table:
    """One row a rate: offered against realised and sent rate, attainment, goodput, output tokens/s, errors, check."""
    word = _word(answer.conditions)
    return Table(
        title=f"Rates (requests/s). Attainment: worst (the floor, which decides) to best {word}; "
        f"goodput and its tokens/s: of the worst {word}",
        columns=("rate", "realised / sent", f"{word}s", "attainment", "goodput", "tokens/s", "errors", "check"),
        rows=tuple(_verdict_row(row, confirmed) for row, confirmed in _all_rates(answer)),
    )


def _verdict_row(row: RateRow, confirmed: bool) -> tuple[str, ...]:
    bound = "≤ " if row.floor_is_bound else ""
    runs = str(row.runs) + (f" (+{row.invalid_runs} invalid)" if row.invalid_runs else "")
    realised, sent = (_span(rates, lambda rate: f"{rate:.3g}") for rates in (row.realised_rate, row.sent_rate))
    return (
        _rate(row.rate),
        realised if realised == sent else f"{realised} / {sent}",
        runs,
        "–" if row.attainment is None else f"{bound}{_span(row.attainment, percent)}%",
        "–" if row.goodput is None else f"{row.goodput[0]:.3g}",
        "–" if row.token_goodput is None else f"{row.token_goodput[0]:.0f}",
        str(row.errors),
        _check(row, confirmed),
    )


def failures(answer: CapacityAnswer) -> list[str]:
    """One line a failing rate: the one cause it has."""
    return [
        f"{_rate(row.rate)} requests/s fails: {row.cause or row.reason}."
        for row, _ in _all_rates(answer)
        if row.check == "FAIL"
    ]


def latency_table(answer: CapacityAnswer) -> Table:
    """One row a rate: p50 / p95 / p99 of each latency among ok requests, ms, the worst of the runs."""
    return Table(
        title="Latencies of ok requests, ms: p50/p95/p99, each the worst of the runs",
        columns=("rate", *(_NAMES[metric] for metric in LATENCIES), "check"),
        rows=tuple(
            (_rate(row.rate), *(_percentiles(row.worst[metric]) for metric in LATENCIES), _check(row, confirmed))
            for row, confirmed in _all_rates(answer)
        ),
    )


def bucket_table(answer: CapacityAnswer) -> Table:
    """One row a rate and (input, output) bucket: how many, attainment, p95 of each latency, ms, all runs pooled."""
    rows = []
    for row, confirmed in _all_rates(answer):
        for bucket in row.buckets:
            cells = (ms(found.get("p95")) for found in (bucket.ttft_s, bucket.tpot_s, bucket.e2e_s))
            label = f"in {_tokens(bucket.input_tokens)}, out {_tokens(bucket.output_tokens)}"
            rows.append(
                (_rate(row.rate), label, str(bucket.n), f"{bucket.attainment:.2%}", *cells, _check(row, confirmed))
            )
    return Table(
        title="By (input, output) bucket, tokens; p95 in ms, all runs of the rate pooled",
        columns=("rate", "bucket", "n", "attainment", "TTFT p95", "TPOT p95", "E2E p95", "check"),
        rows=tuple(rows),
    )


def run_table(run: RunVerdict) -> Table:
    """A single run's latencies: one row a metric, over ok requests and over all (a failure is +∞)."""
    rows = []
    for metric in (*LATENCIES, "send_lag_s"):
        found = run.summary.get(metric, {})
        ok = (ms(found.get(name)) for name in (*PERCENTILES, "max"))
        every = (ms(found.get(f"{name}_all")) for name in PERCENTILES)
        rows.append((_NAMES.get(metric, "send lag"), *ok, *every))
    columns = ("metric", *PERCENTILES, "max", *(f"{name} all" for name in PERCENTILES))
    return Table(title="Latencies, ms", columns=columns, rows=tuple(rows))


def run_sentences(run: RunVerdict, slo: Slo | None = None) -> list[str]:
    """A single run's verdict, rates, and what was found besides."""
    bound = "≤ " if run.attainment_is_bound else ""
    why = [f"Why it fails: {cause([run], slo)}."] if run.status == "FAIL" else []
    outcomes = ", ".join(f"{count} {name}" for name, count in run.outcomes.items())
    realised, sent = ("?" if rate is None else _rate(rate) for rate in (run.realised_rate, run.sent_rate))
    rates = (
        f"offered {_rate(run.rate)} requests/s (realised {realised}, sent {sent})"
        if run.rate
        else f"closed loop, no offered rate: {sent} requests/s were sent; this is not a capacity"
    )
    verdict = f"{run.status}: attainment {bound}{run.attainment:.2%} of {run.cohort} requests; {rates}; {outcomes}."
    return [
        verdict,
        *why,
        *_served(run),
        *([] if run.balance is None else [f"replicas, {imbalance_text(run.balance)}"]),
        *(f"{finding.severity} ({finding.blame}): {finding.text}" for finding in run.findings),
    ]


def _served(run: RunVerdict) -> list[str]:
    if run.goodput is None or run.token_goodput is None:
        return []
    return [f"goodput {run.goodput:.3g} requests/s, {run.token_goodput:.0f} output tokens/s"]


def sentences(answer: CapacityAnswer) -> list[str]:
    """What was found, what it proves, under which conditions, and what stands beside it."""
    required = answer.requirement
    alone = required is not None and len(_all_rates(answer)) <= 1  # which says all that the headline would
    return [
        *([LATE_CLIENT] if alone and answer.outcome == "CLIENT_LIMITED" else []),
        *([] if alone else [_headline(answer)]),
        *failures(answer),
        *_diagnosis(answer),
        *_uneven(answer),
        *([] if alone and required is not None and required.verdict == "KEPT" else _proof(answer)),
        _conditions(answer.conditions),
        *_beside(answer),
        *answer.notes,
    ]


def _headline(answer: CapacityAnswer) -> str:
    low, high = answer.bracket
    capacity = answer.capacity
    reason = f": {answer.reason}" if answer.reason else ""
    match answer.outcome:
        case "FOUND":
            return (
                f"FOUND: capacity is {_rate(capacity)} requests/s, bracket {_rate(capacity)}..{_rate(high)}: "
                f"{_rate(capacity)} keeps the SLO in every {_word(answer.conditions)}, {_rate(high)} does not."
            )
        case "ABOVE_RANGE":
            return f"ABOVE_RANGE: capacity is at least {_rate(capacity)} requests/s, the highest rate of the range."
        case "BELOW_RANGE":
            return f"BELOW_RANGE: capacity is below {_rate(high)} requests/s, the lowest rate of the range."
        case "TABULATED":
            if low is None:
                return f"TABULATED: none of the rates passed; capacity is below {_rate(high)} requests/s."
            above = "above it none was measured" if high is None else f"the smallest that failed is {_rate(high)}"
            return f"TABULATED: {_rate(low)} requests/s is the largest tested rate that passed; {above}."
        case name:
            ends = "..".join("?" if end is None else _rate(end) for end in (low, high))
            known = "" if low is None and high is None else f" The bracket so far is {ends}."
            helps = f" {LATE_CLIENT}" if name == "CLIENT_LIMITED" else ""
            return f"{name}: no capacity is claimed{reason}.{known}{helps}"


def _word(conditions: Conditions) -> str:
    """What a replicate is called: blocks of one history, or repeats of one window, are not independent runs."""
    if conditions.cache == "keep":
        return "block"
    return "run" if conditions.replicates == "replicate" else conditions.replicates


def _diagnosis(answer: CapacityAnswer) -> list[str]:
    failing = answer.bracket[1]
    if failing is None or not answer.diagnosis:
        return []
    return [f"Diagnosis of {_rate(failing)} requests/s:", *(f"  {step}" for step in answer.diagnosis.split("\n"))]


def _uneven(answer: CapacityAnswer) -> list[str]:
    """One line a rate at which a replica had notably more than the others; of its fresh runs where there are any."""
    balances = {row.rate: row.balance for row in (*answer.rates, *answer.proofs) if row.balance is not None}
    uneven = [(rate, balance) for rate, balance in sorted(balances.items()) if notable(balance)]
    return [f"Uneven replicas at {_rate(rate)} requests/s, {imbalance_text(balance)}." for rate, balance in uneven]


def _proof(answer: CapacityAnswer) -> list[str]:
    passes, bound = answer.proof.passes, answer.proof.pass_share_lower_bound
    if not passes or bound is None or _word(answer.conditions) != "run":
        return []  # blocks of one history are not independent trials
    return [
        f"{passes} of {passes} fresh runs passed: at 95 % confidence at least {bound:.0%} of such runs "
        f"would pass. This is a conservative acceptance rule, not a confidence interval of the rate."
    ]


def _conditions(conditions: Conditions) -> str:
    target = conditions.target + (f" (routing {conditions.routing})" if conditions.routing else "")
    target += " (SIMULATED, no real server)" if conditions.simulated else ""
    window_s, word = conditions.window_s, _word(conditions)
    measured = f"{conditions.cohort} requests" if window_s is None else format_duration(window_s)
    return (
        f"Valid for: {target}, model {conditions.model}; {conditions.slo} for {conditions.attain_text} of "
        f"requests, errors ≤ {conditions.max_error_rate}; R = {conditions.runs} {word}s of {measured} after "
        f"{format_duration(conditions.warmup_s)} warm-up; {conditions.workload}; "
        f"{conditions.arrivals} arrivals."
    )


def _beside(answer: CapacityAnswer) -> list[str]:
    more = answer.beside
    attain = answer.conditions.attain_text
    parts = []
    if (crossing := more.mean_crossing_rate) is not None:
        most = "at most " if more.mean_crossing_is_bound else ""
        parts.append(f"the mean attainment crosses {attain} at {most}{_rate(crossing)} requests/s")
    if (sd := more.between_run_sd) is not None:
        at = _rate(more.between_run_sd_at)
        parts.append(f"attainment varies between runs by {sd * 100:.2f} points (sd) at {at}")
    window, measured = more.window_to_agree_s, answer.conditions.window_s
    if window is not None and window == measured:
        parts.append("floor and mean agree within the grid width")
    elif window is not None and measured is not None and window > measured:
        most = "at most " if more.mean_crossing_is_bound else ""
        parts.append(f"floor and mean would agree within the grid width at windows of {most}{format_duration(window)}")
    found = [f"Additional statistics (they decide nothing): {'; '.join(parts)}."] if parts else []
    return found + [f"Note: {finding.text}" for finding in answer.findings]


def _all_rates(answer: CapacityAnswer) -> list[tuple[RateRow, bool]]:
    rows = [(row, False) for row in answer.rates] + [(row, True) for row in answer.proofs]
    return sorted(rows, key=lambda pair: (pair[0].rate, pair[1]))


def _check(row: RateRow, confirmed: bool) -> str:
    check = "explored" if row.check == "INCOMPLETE" and row.runs and not confirmed else row.check
    return f"{check} fresh" if confirmed else str(check)


def _rate(rate: float | None) -> str:
    if rate is None:
        return "?"
    return f"{rate:.4g}" if rate < 1000 else f"{rate:.0f}"


def percent(share: float) -> str:
    """A share in percent, rounded down: 94.998 % beside FAIL must not read as the 95 % that were asked."""
    return "100" if share == 1 else f"{math.floor(10_000 * share + 1e-9) / 100:.2f}"


def _span(span: Sequence[float] | None, form: Callable[[float], str]) -> str:
    if span is None:
        return "–"
    low, high = form(span[0]), form(span[1])
    return low if low == high else f"{low}–{high}"


def ms(seconds: float | None) -> str:
    """A latency in ms; "–" of nothing."""
    if seconds is None or seconds != seconds:
        return "–"
    if seconds == float("inf"):
        return "∞"
    return f"{seconds * 1e3:.1f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _percentiles(found: Mapping[str, float | None]) -> str:
    return "/".join(ms(found[p]) for p in PERCENTILES)


def _tokens(edges: Sequence[float]) -> str:
    low, high = (round(edge) for edge in edges)
    return str(low) if low == high else f"{low}–{high}"
