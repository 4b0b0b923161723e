"""From a plan to the trace of a batching server: picks the loop, splits replicas, and turns passes into instants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.emulator.cost import StepCost
from loadgen.emulator.engine import fast
from loadgen.emulator.engine.core import Engine
from loadgen.emulator.engine.drive import Drive
from loadgen.emulator.engine.kv import Chain
from loadgen.emulator.engine.noise import StepNoise
from loadgen.emulator.engine.service_times import PS_PER_NS, Int64s, PassLog, ServiceTimes
from loadgen.emulator.engine.types import Limits, Sequence
from traces.trace import BlockHashes

__all__ = ["ServerArrivals", "recorded_chain", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerArrivals:
    """What reaches the server, columns of shape (n,): instants (sorted), lengths, shared prefixes (group -1: none).

    `blocks`: the recorded blocks that prompts begin with, in place of prefix groups.
    """

    at_ns: Int64s
    input_tokens: Int64s
    output_tokens: Int64s
    prefix_tokens: Int64s
    prefix_group: Int64s
    priority: Int64s | None = None
    blocks: BlockHashes | None = None


def serve(
    arrivals: ServerArrivals,
    *,
    limits: Limits,
    cost: StepCost,
    noise: StepNoise | None,
    timeout_ns: int,
    until: int,
    cap: int | None = None,
    collapse: bool = True,
) -> ServiceTimes:
    """The trace of one engine, at least until the first `until` requests are over.

    `collapse=False` takes the general engine where the fast loop would do: for the tests that compare the two.
    """
    total = len(arrivals.at_ns)
    longest = int((arrivals.input_tokens + arrivals.output_tokens).max(initial=1))
    shared = arrivals.blocks is not None or bool((arrivals.prefix_tokens > 0).any())
    exact = fast.applies(limits, longest_tokens=longest, requests=total, shared_prefixes=shared)
    if collapse and exact and cap is None and noise is None and arrivals.priority is None:
        return _fast(arrivals, limits, cost, timeout_ns, until)
    return _general(arrivals, Engine(limits, cost, noise), timeout_ns, until, cap)


def _fast(arrivals: ServerArrivals, limits: Limits, cost: StepCost, timeout_ns: int, until: int) -> ServiceTimes:
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

    return ServiceTimes(
        admitted_ns=np.full(len(first), -1),
        sent_ns=arrivals.at_ns,
        tokens=tokens,
        complete=complete,
        refused=np.zeros(len(first), dtype=np.bool_),
        cached_tokens=np.zeros(len(first), dtype=np.int64),
        token_ns=token_ns,
    )


def _general(arrivals: ServerArrivals, engine: Engine, timeout_ns: int, until: int, cap: int | None) -> ServiceTimes:
    size = engine.limits.block_size
    urgency = arrivals.priority if arrivals.priority is not None else np.zeros_like(arrivals.at_ns)
    inputs, outputs = arrivals.input_tokens.tolist(), arrivals.output_tokens.tolist()
    prefixes, groups, priorities = arrivals.prefix_tokens.tolist(), arrivals.prefix_group.tolist(), urgency.tolist()

    def make(request: int) -> Sequence:
        group, blocks = groups[request], prefixes[request] // size
        chain: Chain = ((group, blocks),) if group >= 0 and blocks else ()
        if arrivals.blocks is not None:
            ids = arrivals.blocks.of(request).tolist()
            chain = recorded_chain(ids, arrivals.blocks.block_tokens, inputs[request], size)
        return Sequence(request, inputs[request], outputs[request], chain, priorities[request])

    at_ps = (arrivals.at_ns * PS_PER_NS).tolist()
    drive = Drive(engine=engine, at_ps=at_ps, make=make, timeout_ps=timeout_ns * PS_PER_NS, cap=cap)
    drive.run(until)
    return _general_trace(drive)


def recorded_chain(ids: list[int], block_tokens: int, input_tokens: int, size: int) -> Chain:
    """The prompt's full blocks of `size` tokens, named by the recorded blocks they lie in.

    An id stands for its block and all before it, so a block of the server's that ends in it is known by the id and by
    where in the prompt it ends.
    """
    full = min(len(ids) * block_tokens, input_tokens) // size
    if block_tokens % size:
        return tuple(((ids[((block + 1) * size - 1) // block_tokens], block), 1) for block in range(full))
    each = block_tokens // size
    return tuple((one, min(each, full - at)) for at, one in zip(range(0, full, each), ids, strict=False))


def _general_trace(drive: Drive) -> ServiceTimes:
    total, done = len(drive.at_ps), drive.engine.steps
    first, last = np.array(drive.first_pass, dtype=np.int64), np.array(drive.last_pass, dtype=np.int64)
    latest = np.where(first > 0, np.where(last > 0, last, done) - first + 1, 0)  # tokens since the latest preemption
    before = np.zeros(total, dtype=np.int64)
    for request, spans in drive.earlier.items():
        before[request] = sum(to - start + 1 for start, to in spans)
    ends_ns = _Ends(drive.log)

    def token_ns(requests: Int64s, numbers: Int64s) -> Int64s:
        passes = first[requests] + numbers - before[requests] - 1
        for place in np.flatnonzero(numbers <= before[requests]):
            passes[place] = _pass_of(int(numbers[place]), drive.earlier[int(requests[place])])
        return ends_ns.of(passes)

    sent_ps = np.array(drive.sent_ps, dtype=np.int64)
    sent_ns = np.where(sent_ps < 0, -1, sent_ps // PS_PER_NS)
    return ServiceTimes(
        admitted_ns=sent_ns if drive.cap is not None else np.full(total, -1),
        sent_ns=sent_ns,
        tokens=before + latest,
        complete=np.frombuffer(drive.complete, dtype=np.bool_),
        refused=np.frombuffer(drive.refused, dtype=np.bool_),
        cached_tokens=np.array(drive.cached_tokens, dtype=np.int64),
        token_ns=token_ns,
    )


def _pass_of(number: int, spans: list[tuple[int, int]]) -> int:
    """The pass that brought token `number` of a request with these spans."""
    for start, to in spans:
        if number <= to - start + 1:
            return start + number - 1
        number -= to - start + 1
    raise AssertionError("the token lies in a later span")


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
