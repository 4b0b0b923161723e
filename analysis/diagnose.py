"""Why a rate fails: five checks in a fixed order, each with its numbers (method, section 12).

1 generator, 2 workload, 3 server queue, 4 phase, 5 resources. A step whose numbers are out of order is *suspect*; look
at the first suspect step first. The text names what was not measured: a missing number does not rule a cause out.
Numbers are means over the failed runs, unless the text says "worst". Where a lower rate passed, its numbers are given
for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from analysis.server_metrics.types import METRICS
from analysis.slo import Slo
from analysis.stationarity import DRIFT_LIMIT
from analysis.units import format_duration
from analysis.verdict import RunVerdict

__all__ = ["Step", "diagnose", "in_lines", "in_one_line"]

QUEUE_SHARE: Final = 0.5  # of the server's TTFT, from which on its queue is the first thing to look at
ERROR_SHARE: Final = 0.01  # of the cohort, from which on errors are the first thing to look at
KV_FULL: Final = 0.95
_FURTHER: Final = ("KV cache", "GPU", "GPU memory bandwidth", "GPU links", "server machine", "client CPU")
_ERRORS_SAY: Final = {
    "rejected": "the server refuses requests: its queue or a limit of its front end is full, lower the rate",
    "connect_error": "connections fail: look at the server's listen queue, its connection limit and the network",
    "connection_lost": "connections break: look at the server's log and at proxies in front of it",
    "timeout": "requests exceed --timeout: look for stuck requests, then at --timeout",
    "http_error": "the server fails requests: look at its log",
    "stream_error": "the server ends streams with errors: look at its log",
    "truncated": "streams end unfinished: look at the server's log and at proxies in front of it",
    "short_output": "outputs are shorter than forced: look at the context length and at ignore_eos",
    "bad_response": "answers cannot be parsed: look at the endpoint and at proxies in front of it",
    "workload_error": "the server refuses the requests: look at model, key and lengths",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step's answer."""

    name: str
    suspect: bool
    text: str


def diagnose(failed: Sequence[RunVerdict], passed: Sequence[RunVerdict], slo: Slo) -> tuple[Step, ...]:
    """The five steps for the FAIL runs of one rate, in order; `passed` are runs of a lower rate to compare with."""
    if not failed:
        return ()
    return (
        _generator(failed),
        _workload(failed),
        _queue(failed, passed),
        _phase(failed, passed, slo),
        _resources(failed),
    )


def in_lines(steps: Sequence[Step]) -> str:
    """The steps as text, one line each: first the suspect ones, marked, then the others, both in the fixed order."""
    ordered = sorted(steps, key=lambda step: not step.suspect)
    return "\n".join(f"{step.name}{' (suspect)' if step.suspect else ''}: {step.text}" for step in ordered)


def _generator(failed: Sequence[RunVerdict]) -> Step:
    late = [finding.text for run in failed for finding in run.findings if finding.blame == "client"]
    lag = _worst(failed, "send_lag_s", "p99")
    sent, planned = _mean(run.sent_rate for run in failed), _mean(run.realised_rate for run in failed)
    said = [
        f"sent {sent:.4g}/s of {planned:.4g}/s scheduled" if sent is not None and planned is not None else "",
        f"send lag p99 {format_duration(lag)}" if lag is not None else "",
        *late[:1],
    ]
    return Step(name="generator", suspect=bool(late), text=_joined(said))


def _workload(failed: Sequence[RunVerdict]) -> Step:
    wrong = [finding.text for run in failed for finding in run.findings if finding.blame == "workload"]
    cohort, errors = sum(run.cohort for run in failed), sum(run.errors for run in failed)
    worst = {name: sum(run.outcomes.get(name, 0) for run in failed) for run in failed for name in run.outcomes}
    kinds = ", ".join(f"{count} {name}" for name, count in worst.items() if name != "ok")
    hits, queries = _told(failed, "prefix_hits", "n"), _told(failed, "prefix_queries", "n")
    cached = "cache hits not measured"
    if hits is not None:
        cached = f"{hits / queries:.0%} of prompt tokens cached" if queries else f"{hits:.0f} prompt tokens cached"
    broken = [run for run in failed if _errors_decide(run)]
    counts = {name: sum(run.outcomes.get(name, 0) for run in broken) for name in _ERRORS_SAY}
    most = max(counts, key=lambda name: counts[name])
    said = [f"{errors} errors of {cohort}" + (f" ({kinds})" if kinds else ""), cached, *wrong[:1]]
    said.append(_ERRORS_SAY[most] if counts[most] else "")
    return Step(name="workload", suspect=bool(wrong or broken), text=_joined(said))


def _errors_decide(run: RunVerdict) -> bool:
    """Whether errors are enough of the cohort, or of the misses that failed the run, to be the cause of its FAIL."""
    if run.errors > ERROR_SHARE * run.cohort:
        return True
    missed = any(finding.check in ("error_rate", "attainment") for finding in run.findings)
    return missed and run.errors > 0 and 2 * run.errors >= run.misses


def _queue(failed: Sequence[RunVerdict], passed: Sequence[RunVerdict]) -> Step:
    waiting, most = _told(failed, "waiting", "mean"), _told(failed, "waiting", "max", max)
    slope = _mean(run.waiting_ratio for run in failed if not run.attainment_is_bound)
    backlog = _mean(run.drift_ratio for run in failed if not run.attainment_is_bound)
    queued, ttft = _told(failed, "queue_s", "mean"), _told(failed, "ttft_s", "mean")
    by_little = ""
    if queued is None and (queued := _mean(_little_s(run) for run in failed)) is not None:
        by_little = " by Little's law"
    if ttft is None:
        ttft = _mean(run.summary.get("ttft_s", {}).get("mean") for run in failed)
    rising = any(share is not None and share > DRIFT_LIMIT for share in (slope, backlog))
    long = queued is not None and ttft is not None and queued > QUEUE_SHARE * ttft
    said = []
    if waiting is None:
        said.append("the server's queue was not measured")
    else:
        before = _told(passed, "waiting", "mean")
        beside = f" ({before:.3g} at the passing rate)" if before is not None else ""
        said.append(f"{waiting:.3g} waiting{beside}, at most {most:.0f}")
    if queued is not None:
        of = f" of {format_duration(ttft)} TTFT" if ttft else ""
        said.append(f"{format_duration(queued)} queued{of}{by_little}")
    if slope is not None:
        said.append(f"waiting grows by {slope:.1%} of arrivals")
    if backlog is not None:
        said.append(f"outstanding work by {backlog:.1%}")
    if rising or long:
        said.append("lower the rate or add replicas before tuning kernels")
    return Step(name="server queue", suspect=rising or long, text=_joined(said))


def _little_s(run: RunVerdict) -> float | None:
    """Mean wait in the server's queue, seconds, from its waiting gauge alone: mean waiting / arrivals per second."""
    waiting, rate = run.server.get("waiting", {}).get("mean"), run.sent_rate or run.rate
    return waiting / rate if waiting is not None and rate > 0 else None


def _phase(failed: Sequence[RunVerdict], passed: Sequence[RunVerdict], slo: Slo) -> Step:
    said, suspect = [], False
    for metric, name, bound, phase, where in (
        ("ttft_s", "TTFT", slo.ttft_s, "prefill_s", "prompts, cache, prefill, if the queue is flat"),
        ("tpot_s", "TPOT", slo.tpot_s, "decode_s", "decode, batch, long outputs"),
        ("e2e_s", "E2E", slo.e2e_s, "inference_s", "both phases, long outputs"),
    ):
        p95 = _worst(failed, metric, "p95")
        if bound is None or p95 is None:
            continue
        over = p95 > bound
        suspect |= over
        took, before = _told(failed, phase, "mean"), _told(passed, phase, "mean")
        spent = "" if took is None else f", {phase.removesuffix('_s')} {format_duration(took)}"
        spent += "" if took is None or before is None else f" ({format_duration(before)} at the passing rate)"
        held = "over" if over else "within"
        said.append(f"{name} p95 {format_duration(p95)} {held} {format_duration(bound)}{spent}")
        if over:
            said.append(where)
    running, tokens = _told(failed, "running", "mean"), _told(failed, "iteration_tokens", "mean")
    said.append(f"{running:.3g} running" if running is not None else "batch size not measured")
    said.append(f"{tokens:.3g} tokens a step" if tokens is not None else "")
    return Step(name="phase", suspect=suspect, text=_joined(said))


def _resources(failed: Sequence[RunVerdict]) -> Step:
    kv, preempted = _told(failed, "kv_usage", "max", max), _told(failed, "preemptions", "n", max)
    said = [
        f"KV cache at most {kv:.0%} full" if kv is not None else "",
        f"{preempted:.0f} preemptions a run at most" if preempted is not None else "",
    ]
    for metric, name in (
        ("gpu_busy", "GPU busy"), ("sm_active", "SMs active"), ("dram_active", "GPU memory bandwidth"),
        ("memory_busy", "GPU memory busy"),
    ):  # fmt: skip
        share = _told(failed, metric, "mean")
        said.append(f"{name} {share:.0%}" if share is not None else "")
    busy, idle = _told(failed, "client_machine_busy_s", "n"), _told(failed, "client_machine_idle_s", "n")
    if busy is not None and idle is not None and busy + idle > 0:
        said.append(f"client machine {busy / (busy + idle):.0%} busy")
    measured = {name for run in failed for name in run.server}
    missing = [
        group for group in _FURTHER if not any(METRICS[name].group == group for name in measured if name in METRICS)
    ]
    if missing:
        said.append(f"not measured: {', '.join(missing)}")
    return Step(name="resources", suspect=bool(preempted) or (kv or 0.0) >= KV_FULL, text=_joined(said))


def _told(
    runs: Sequence[RunVerdict], metric: str, statistic: str, over: Callable[[list[float]], float] | None = None
) -> float | None:
    known = [run.server[metric][statistic] for run in runs if statistic in run.server.get(metric, {})]
    if not known:
        return None
    return over(known) if over is not None else sum(known) / len(known)


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _worst(runs: Sequence[RunVerdict], metric: str, percentile: str) -> float | None:
    known = [run.summary[metric][percentile] for run in runs if percentile in run.summary.get(metric, {})]
    finite = [value for value in known if value == value and value != float("inf")]
    return max(finite, default=None)


def _joined(said: Sequence[str]) -> str:
    return ", ".join(text for text in said if text)


in_one_line = in_lines  # its former name, which scripts outside of the repository import
