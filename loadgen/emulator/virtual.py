"""A whole run in virtual time: the tables and facts that an ideal client would record, without waiting.

Theory of operation. First the server alone: the plan's arrivals become `ServiceTimes` (`engine.service_times`), since
in an open loop nothing the client decides later changes what happened before. Then the client's rules are laid over
it: when each request of the cohort is decided, and so when the load stops (method, section 6; `send.dispatch` does
the same live). What was still in flight then is cut, and what was scheduled later never happened.

The client is ideal: released and sent at the scheduled instant (under `max_concurrency` when a slot is free), headers
at once, each token an event and a read of its own. Facts say `simulated`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.indicator import CERTAIN, Bounds, broken_terms, certain_misses
from analysis.records import columns
from analysis.schema import EVENT_COLUMNS
from analysis.units import NS_PER_S
from analysis.verdict import SenderFacts
from loadgen.common.errors import UsageError
from loadgen.emulator.engine.profile import BatchingProfile
from loadgen.emulator.engine.service_times import Bools, Int64s, ServiceTimes
from loadgen.emulator.profiles import FcfsProfile, Profile
from loadgen.emulator.service import STOP_SEED, TAIL_IDS, hash_uniform, natural_tokens
from loadgen.emulator.virtual_fcfs import fcfs_times
from loadgen.plan.prompts import Prompts
from loadgen.plan.types import RunPlan
from loadgen.send.api import Events, RunOutput, SendOptions, sampled
from loadgen.send.pacing import FixedConcurrency, OnSchedule

__all__ = ["simulate_run"]

_ENDS = {  # outcome -> what its error says
    "ok": "",
    "short_output": "",
    "rejected": "The engine is currently busy and cannot accept new requests.",
    "timeout": "no end in time",
    "aborted": "cancelled when the load stopped",
    "censored": "cancelled when the load stopped",
}
Codes = npt.NDArray[np.int8]


def simulate_run(plan: RunPlan, profile: Profile, options: SendOptions) -> RunOutput:
    """Serve `plan` by `profile`'s server in virtual time, under the rules of `options`.

    Raises `UsageError` for a prompt the server's context cannot hold, for a closed loop, and for a cap in front of
    replicas.
    """
    if not isinstance(options.pacing, OnSchedule):
        what = (
            "a closed loop"
            if isinstance(options.pacing, FixedConcurrency)
            else "turns that wait for answers (--sessions dependent)"
        )
        raise UsageError(f"no virtual time for {what}: use --target emulator")
    longest = int(plan.input_tokens.max(initial=0))
    if longest >= profile.server.max_model_len:
        raise UsageError(
            f"a prompt of {longest} tokens does not fit the profile's server.max_model_len = "
            f"{profile.server.max_model_len}: ask for shorter inputs or raise the key"
        )
    tails = Prompts(plan).tail_ids(TAIL_IDS)
    output, stops = _output_tokens(plan, profile, tails)
    at_ns = plan.schedule.at_ns
    until = int(np.searchsorted(at_ns, plan.window.end_ns))
    timeout_ns = round(options.timeout_s * NS_PER_S)
    trace = _serve(plan, profile, output, tails, timeout_ns=timeout_ns, until=until, cap=options.max_concurrency)
    run = _Run.of(plan, trace, timeout_ns, options)
    stop_ns, early = _stop(plan, run, options)
    table, rows, tokens = _cut(plan, run, stop_ns, output, stops)
    return RunOutput(
        requests=table,
        events=_events(trace, rows, tokens, options.events),
        facts=_facts(plan, table, stop_ns, early, options),
    )


def _serve(
    plan: RunPlan, profile: Profile, output: Int64s, tails: Int64s, *, timeout_ns: int, until: int, cap: int | None
) -> ServiceTimes:
    if isinstance(profile, FcfsProfile):
        service_ns = profile.mix().quantile_ns(hash_uniform(tails, profile.service.seed))
        return fcfs_times(plan.schedule.at_ns, service_ns, output, timeout_ns=timeout_ns, cap=cap)
    if isinstance(profile, BatchingProfile):
        if cap is not None and profile.parallel.replicas > 1:
            raise UsageError("a concurrency cap in front of replicas has no virtual time: use --target emulator")
        return profile.serve(plan, output, timeout_ns=timeout_ns, until=until, cap=cap)
    raise UsageError(f"profiles of kind {profile.kind} have no virtual time")


def _output_tokens(plan: RunPlan, profile: Profile, tails: Int64s) -> tuple[Int64s, Bools]:
    """Tokens of each answer, and whether it stops by itself; cut at the model's context silently, as vLLM does."""
    limit = np.minimum(plan.output_tokens, profile.server.max_model_len - plan.input_tokens)
    if plan.format.stop == "forced":
        return limit, np.zeros(len(plan), dtype=np.bool_)
    natural = natural_tokens(hash_uniform(tails, STOP_SEED), profile.server.eos_mean_tokens)
    return np.minimum(natural, limit), natural < limit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """The trace as the client sees it without an end of the load; instants ns, -1 never."""

    trace: ServiceTimes
    first_ns: Int64s
    last_ns: Int64s  # its last token before `ended_ns`
    ended_ns: Int64s  # complete, refused, or timed out
    complete: Bools
    good: Bools  # the indicator I
    certain_ns: Int64s  # the instant after which it is a certain miss; beyond its end: never was
    certain: Codes  # which bound that is, a place in CERTAIN

    @classmethod
    def of(cls, plan: RunPlan, trace: ServiceTimes, timeout_ns: int, options: SendOptions) -> _Run:
        every = np.arange(len(plan))
        deadline_ns = plan.schedule.at_ns + timeout_ns
        tokens = trace.tokens
        last_ns = _token_ns(trace, every, tokens)
        late = (tokens > 0) & (last_ns > deadline_ns)
        if late.any():
            tokens = tokens.copy()
            tokens[late] = trace.tokens_by(every[late], deadline_ns[late])
            last_ns = _token_ns(trace, every, tokens)
        complete = trace.complete & (tokens == trace.tokens)
        first_ns = _token_ns(trace, every, np.minimum(tokens, 1))
        ended_ns = np.where(complete, last_ns, np.where(trace.refused, trace.sent_ns, deadline_ns))
        bounds = Bounds(options.slo)
        broken = _broken(bounds, plan, trace, first_ns, last_ns, tokens)
        start_ns = trace.sent_ns if bounds.from_sent else plan.schedule.at_ns
        certain_ns, certain = certain_misses(
            bounds, start_ns=start_ns, first_ns=first_ns, output_tokens=plan.output_tokens
        )
        return cls(
            trace=trace,
            first_ns=first_ns,
            last_ns=last_ns,
            ended_ns=ended_ns,
            complete=complete,
            good=complete & ~broken & ~(_short(plan, tokens)),
            certain_ns=certain_ns,
            certain=certain,
        )


def _token_ns(trace: ServiceTimes, requests: Int64s, numbers: Int64s) -> Int64s:
    """Instant of each request's token of that number; -1 for number 0."""
    some = numbers > 0
    if some.all():
        return trace.token_ns(requests, numbers)
    out = np.full(len(requests), -1, dtype=np.int64)
    out[some] = trace.token_ns(requests[some], numbers[some])
    return out


def _short(plan: RunPlan, tokens: Int64s) -> Bools:
    short: Bools = (tokens < plan.output_tokens) & (plan.format.stop == "forced")
    return short


def _broken(
    bounds: Bounds, plan: RunPlan, trace: ServiceTimes, first_ns: Int64s, last_ns: Int64s, tokens: Int64s
) -> Bools:
    """Whether a complete request breaks a bound; each token is an event and a read of its own."""
    terms = broken_terms(
        bounds,
        scheduled_ns=plan.schedule.at_ns,
        sent_ns=trace.sent_ns,
        first_ns=first_ns,
        last_ns=last_ns,
        output_tokens=tokens,
        first_read_tokens=np.ones_like(tokens),
        token_events=tokens,
        token_reads=tokens,
    )
    broken = np.zeros(len(plan), dtype=np.bool_)
    for term in terms.values():
        broken |= term
    return broken


def _stop(plan: RunPlan, run: _Run, options: SendOptions) -> tuple[int, bool]:
    """When the load stops (nothing scheduled at or after it is sent), and whether that is an early FAIL."""
    at_ns, window = plan.schedule.at_ns, plan.window
    cohort = slice(int(np.searchsorted(at_ns, window.warmup_ns)), int(np.searchsorted(at_ns, window.end_ns)))
    decided_ns = np.minimum(run.ended_ns, run.certain_ns + 1)[cohort]
    over_ns = min(max(window.end_ns, int(decided_ns.max(initial=0))), window.horizon_ns)
    allowed = options.early_fail_misses
    misses_ns = decided_ns[~run.good[cohort]]
    if allowed is not None and len(misses_ns) > allowed:
        fail_ns = max(int(np.partition(misses_ns, allowed)[allowed]), options.early_fail_after_ns)
        if fail_ns < over_ns:
            return fail_ns + 1, True
    if options.drain is not None and len(misses_ns) <= options.drain.misses:
        over_ns = min(_drained_ns(plan, run, cohort, over_ns, options.drain.unanswered), window.horizon_ns)
    return over_ns + 1, False


def _drained_ns(plan: RunPlan, run: _Run, cohort: slice, over_ns: int, allowed: int) -> int:
    """When no more than `allowed` requests of the cohort, all decided by `over_ns`, are unanswered or were errors."""
    ended_ns, failed = run.ended_ns[cohort], (~run.complete | _short(plan, run.trace.tokens))[cohort]
    errors = int(np.count_nonzero(failed & (ended_ns <= over_ns)))
    order = np.argsort(ended_ns, kind="stable")
    left = order[ended_ns[order] > over_ns]
    for place, request in enumerate(left):
        if errors > allowed or errors + len(left) - place <= allowed:
            break
        over_ns = int(ended_ns[request])
        errors += int(failed[request])
    return over_ns


def _cut(plan: RunPlan, run: _Run, stop_ns: int, output: Int64s, stops: Bools) -> tuple[pd.DataFrame, Int64s, Int64s]:
    """The request table as of the stop, its rows' places in the plan, and how many tokens each had by then."""
    at_ns, window, trace = plan.schedule.at_ns, plan.window, run.trace
    n = int(np.searchsorted(at_ns, stop_ns))
    rows = np.arange(n)
    at_ns, first_ns, last_ns, ended_ns = at_ns[:n], run.first_ns[:n].copy(), run.last_ns[:n].copy(), run.ended_ns[:n]
    sent_ns, complete, refused = trace.sent_ns[:n], run.complete[:n], trace.refused[:n]
    cut = ended_ns >= stop_ns
    tokens = np.where(complete, output[:n], 0)
    partly = rows[(cut | ~complete) & (trace.tokens[:n] > 0)]
    tokens[partly] = trace.tokens_by(partly, np.minimum(ended_ns, stop_ns - 1)[partly])
    first_ns[partly] = np.where(tokens[partly] > 0, first_ns[partly], -1)
    last_ns[partly] = _token_ns(trace, partly, tokens[partly])
    ended_ns = np.where(cut, stop_ns, ended_ns)
    ok = complete & ~cut
    cohort = (at_ns >= window.warmup_ns) & (at_ns < window.end_ns)
    sent = (sent_ns >= 0) & (sent_ns < stop_ns)
    answered = sent & ~(refused & cut)

    ends = list(_ENDS)
    outcome = np.full(n, ends.index("timeout"), dtype=np.int8)
    outcome[refused] = ends.index("rejected")
    outcome[ok] = ends.index("ok")
    outcome[ok & _short(plan, output)[:n]] = ends.index("short_output")
    outcome[cut] = ends.index("aborted")
    outcome[cut & cohort] = ends.index("censored")
    ours = (cut | (outcome == ends.index("timeout"))) & cohort  # what we ended
    certain = np.where(ours & (run.certain_ns[:n] < ended_ns), run.certain[:n], 0)
    table = columns(
        n,
        {
            "index": rows,
            "scheduled_ns": at_ns,
            "released_ns": at_ns,
            "admitted_ns": np.where(sent, trace.admitted_ns[:n], -1),
            "sent_ns": np.where(sent, sent_ns, -1),
            "headers_ns": np.where(answered, sent_ns, -1),
            "first_token_ns": first_ns,
            "last_token_ns": last_ns,
            "ended_ns": ended_ns,
            "outcome": _words(ends, outcome),
            "http_status": np.where(answered, np.where(refused, 503, 200), -1),
            "finish_reason": _words(["", "length", "stop"], ok * (1 + stops[:n])),
            "error": _words(list(_ENDS.values()), outcome),
            "certain_miss": _words(list(CERTAIN), certain),
            "input_tokens_planned": plan.input_tokens[:n],
            "output_tokens_planned": plan.output_tokens[:n],
            "prefix_tokens_planned": plan.prefix_tokens[:n],
            "input_tokens": np.where(ok, plan.input_tokens[:n], -1),
            "output_tokens": np.where(ok, tokens, -1),
            "output_tokens_source": _words(["", "usage"], ok),
            "usage_tokens": np.where(ok, tokens, -1),
            "cached_tokens": np.where(ok, trace.cached_tokens[:n], -1),
            "first_read_events": np.minimum(tokens, 1),
            "token_events": tokens,
            "token_reads": tokens,
        },
    )
    return table, rows, tokens


def _words(words: list[str], codes: npt.NDArray[np.integer] | Bools) -> pd.api.extensions.ExtensionArray:
    """A column of `words` by their places."""
    return pd.array(words, dtype="str").take(codes.astype(np.intp))


def _events(trace: ServiceTimes, rows: Int64s, tokens: Int64s, keep: Events) -> pd.DataFrame:
    """One row a token, by request and time, of the requests whose events are kept: most of the work of a long run."""
    if keep not in ("all", "prompt"):
        kept = sampled(rows) if keep == "sample" else slice(0)
        rows, tokens = rows[kept], tokens[kept]
    index = np.repeat(rows, tokens)
    number = np.arange(1, len(index) + 1) - np.repeat(np.cumsum(tokens) - tokens, tokens)
    at_ns = trace.token_ns(index, number) if len(index) else index
    values = {"index": index, "at_ns": at_ns, "tokens": np.ones_like(index)}
    typed = {name: values[name].astype(dtype, copy=False) for name, dtype in EVENT_COLUMNS.items()}
    return pd.DataFrame(typed, copy=False)  # a copy takes a tenth of a second of a long run


def _facts(plan: RunPlan, table: pd.DataFrame, stop_ns: int, early: bool, options: SendOptions) -> SenderFacts:
    at_ns, window = plan.schedule.at_ns, plan.window
    scheduled, ended = table["scheduled_ns"].to_numpy(), table["ended_ns"].to_numpy()
    began = table["sent_ns"].to_numpy()
    wired = began >= 0
    begins, ends = np.sort(began[wired]), np.sort(ended[wired])
    in_flight = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return SenderFacts(
        rate=plan.rate,
        warmup_ns=window.warmup_ns,
        window_ns=window.window_ns,
        stop_ns=stop_ns,
        due=len(table),
        sent=len(table),
        cohort_due=int(np.searchsorted(at_ns, window.end_ns) - np.searchsorted(at_ns, window.warmup_ns)),
        simulated=True,
        stopped_early=early,
        live_area_s=float((ended - scheduled).sum()) / NS_PER_S,
        peak_in_flight=int(in_flight.max(initial=0)),
        concurrency_cap=options.max_concurrency,
    )
