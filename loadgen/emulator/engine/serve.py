"""From a plan to the trace of a batching server: picks the loop, splits replicas, and turns passes into instants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.emulator.cost import StepCost
from loadgen.emulator.engine import fast
from loadgen.emulator.engine.core import Engine, Limits, Sequence
from loadgen.emulator.engine.drive import Drive
from loadgen.emulator.engine.kv import Chain
from loadgen.emulator.engine.noise import StepNoise
from loadgen.emulator.engine.trace import PS_PER_NS, Int64s, PassLog, Trace

__all__ = ["Arrivals", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """What reaches the server, columns of shape (n,): instants (sorted), lengths, shared prefixes (group -1: none)."""

    at_ns: Int64s
    input_tokens: Int64s
    output_tokens: Int64s
    prefix_tokens: Int64s
    prefix_group: Int64s
    priority: Int64s | None = None


def serve(
    arrivals: Arrivals,
    *,
    limits: Limits,
    cost: StepCost,
    noise: StepNoise | None,
    timeout_ns: int,
    until: int,
    cap: int | None = None,
    collapse: bool = True,
) -> Trace:
    """The trace of one engine, at least until the first `until` requests are over.

    `collapse=False` takes the general engine where the fast loop would do: for the tests that compare the two.
    """
    total = len(arrivals.at_ns)
    longest = int((arrivals.input_tokens + arrivals.output_tokens).max(initial=1))
    shared = bool((arrivals.prefix_tokens > 0).any())
    exact = fast.applies(limits, longest_tokens=longest, requests=total, shared_prefixes=shared)
    if collapse and exact and cap is None and noise is None and arrivals.priority is None:
        return _fast(arrivals, limits, cost, timeout_ns, until)
    return _general(arrivals, Engine(limits, cost, noise), timeout_ns, until, cap)


def _fast(arrivals: Arrivals, limits: Limits, cost: StepCost, timeout_ns: int, until: int) -> Trace:
    run = fast.run_fast(
        (arrivals.at_ns * PS_PER_NS).tolist(),
        arrivals.input_tokens.tolist(),
        arrivals.output_tokens.tolist(),
        cost=cost,
        limits=limits,
        timeout_ps=timeout_ns * PS_PER_NS,
        until=until,
    )
    first, last = np.array(run.first_pass, dtype=np.int64), np.array(run.last_pass, dtype=np.int64)
    complete = np.frombuffer(run.complete, dtype=np.bool_)
    done = int(sum(run.log.passes))
    # who was still decoding when the simulation ended has a first pass and no last
    tokens = np.where(first > 0, np.where(last > 0, last, done) - first + 1, 0)
    ends_ns = _Ends(run.log)

    def token_ns(requests: Int64s, numbers: Int64s) -> Int64s:
        return ends_ns.of(first[requests] + numbers - 1)

    return Trace(
        admitted_ns=np.full(len(first), -1),
        sent_ns=arrivals.at_ns,
        tokens=tokens,
        complete=complete,
        refused=np.zeros(len(first), dtype=np.bool_),
        cached_tokens=np.zeros(len(first), dtype=np.int64),
        token_ns=token_ns,
    )


def _general(arrivals: Arrivals, engine: Engine, timeout_ns: int, until: int, cap: int | None) -> Trace:
    size = engine.limits.block_size
    urgency = arrivals.priority if arrivals.priority is not None else np.zeros_like(arrivals.at_ns)
    rows = zip(
        arrivals.input_tokens.tolist(),
        arrivals.output_tokens.tolist(),
        arrivals.prefix_tokens.tolist(),
        arrivals.prefix_group.tolist(),
        urgency.tolist(),
        strict=True,
    )
    sequences = [
        Sequence(request, tokens_in, tokens_out, _chain(group, prefix // size), priority)
        for request, (tokens_in, tokens_out, prefix, group, priority) in enumerate(rows)
    ]
    drive = Drive(
        engine=engine,
        at_ps=(arrivals.at_ns * PS_PER_NS).tolist(),
        sequences=sequences,
        timeout_ps=timeout_ns * PS_PER_NS,
        cap=cap,
    )
    drive.run(until)
    return _general_trace(arrivals, drive)


def _chain(group: int, blocks: int) -> Chain:
    return ((group, blocks),) if group >= 0 and blocks else ()


def _general_trace(arrivals: Arrivals, drive: Drive) -> Trace:
    total = len(drive.at_ps)
    done = drive.engine.steps
    spans = [span for of_one in drive.spans for span in of_one]
    counts = np.array([len(of_one) for of_one in drive.spans], dtype=np.int64)
    begin = np.array([first for first, _ in spans], dtype=np.int64)
    finish = np.array([last if last >= 0 else done for _, last in spans], dtype=np.int64)
    length = finish - begin + 1
    produced_before = np.cumsum(length) - length  # tokens of all spans before this one
    start = np.cumsum(counts) - counts  # each request's first span
    before_request = np.append(produced_before, length.sum())[start] if total else start
    tokens = np.append(produced_before, length.sum())[start + counts] - before_request
    ends_ns = _Ends(drive.log)

    def token_ns(requests: Int64s, numbers: Int64s) -> Int64s:
        place = before_request[requests] + numbers - 1  # among all tokens in order of request
        span = np.searchsorted(produced_before, place, side="right") - 1
        return ends_ns.of(begin[span] + place - produced_before[span])

    sent_ps = np.array(drive.sent_ps, dtype=np.int64)
    sent_ns = np.where(sent_ps < 0, -1, sent_ps // PS_PER_NS)
    return Trace(
        admitted_ns=sent_ns if drive.cap is not None else np.full(total, -1),
        sent_ns=sent_ns,
        tokens=tokens,
        complete=np.frombuffer(drive.complete, dtype=np.bool_),
        refused=np.frombuffer(drive.refused, dtype=np.bool_),
        cached_tokens=np.array([max(sequence.cached_tokens, 0) for sequence in drive.sequences], dtype=np.int64),
        token_ns=token_ns,
    )


class _Ends:
    """The ends of all passes, worked out when first asked for."""

    def __init__(self, log: PassLog) -> None:
        self._log = log
        self._ends_ns: Int64s | None = None

    def of(self, passes: Int64s) -> Int64s:
        """Ends of the passes of these numbers, counted from 1."""
        if self._ends_ns is None:
            self._ends_ns = self._log.ends_ns()
        ends_ns: Int64s = self._ends_ns[passes - 1]
        return ends_ns
