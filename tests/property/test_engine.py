"""The engine against a plain one that keeps every block and walks every pass, and the laws that both must obey."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.tp.cost import Fabric, Shape
from loadgen.emulator.cost import Card, StepCost
from loadgen.emulator.engine.core import Engine
from loadgen.emulator.engine.noise import StepNoise
from loadgen.emulator.engine.serve import ServerArrivals, serve
from loadgen.emulator.engine.service_times import ServiceTimes
from loadgen.emulator.engine.types import Limits, Sequence

BLOCK = 4
TIMEOUT_NS = 10**13


def step_cost() -> StepCost:
    shape = Shape(hidden=64, mlp=128, layers=2, heads=4, kv_heads=2, head_size=16)
    card = Card(memory_bytes=1e6, usable_share=1.0, runtime_bytes=0, flops_per_s=1e8, memory_bytes_per_s=1e8)
    fabric = Fabric(alpha_s=1e-6, bus_bytes_per_s=1e9)
    return StepCost(shape=shape, card=card, fabric=fabric, ranks=2, weight_bits=16, kv_element_bytes=2, overhead_s=1e-4)


@dataclass
class Plain:
    """One request of the plain engine."""

    key: int
    prompt: int
    output: int
    group: int
    shared_blocks: int
    priority: int = 0
    emitted: int = 0
    computed: int = 0
    decoding: bool = False
    blocks: list[int] = field(default_factory=list)
    hashed: int = 0
    cached_tokens: int = -1
    token_ps: list[int] = field(default_factory=list)

    @property
    def target(self) -> int:
        return self.prompt + self.emitted

    def hash_of(self, block: int) -> Any:
        return ("group", self.group, block) if block < self.shared_blocks else ("own", self.key, block)


class PlainEngine:
    """vLLM's v1 scheduler written down block by block, token by token."""

    def __init__(self, limits: Limits, cost: StepCost) -> None:
        self.limits, self.cost = limits, cost
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(limits.kv_blocks))
        self.users: dict[int, int] = dict.fromkeys(range(limits.kv_blocks), 0)
        self.known: dict[Any, int] = {}
        self.key_of: dict[int, Any] = {}
        self.waiting: list[Plain] = []
        self.running: list[Plain] = []
        self.preemptions = 0

    def take(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            key = self.key_of.pop(block, None)
            if key is not None:
                del self.known[key]
            self.users[block] = 1
            taken.append(block)
        return taken

    def release(self, request: Plain) -> None:
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None
        request.blocks, request.hashed = [], 0

    def fill(self, request: Plain, tokens: int) -> None:
        """Blocks for `tokens` more; full ones can be found from now on."""
        wanted = -(-(request.computed + tokens) // BLOCK)
        request.blocks += self.take(wanted - len(request.blocks))
        if not self.limits.prefix_caching:
            return
        for at in range(request.hashed, (request.computed + tokens) // BLOCK):
            key, block = request.hash_of(at), request.blocks[at]
            if key not in self.known:
                self.known[key], self.key_of[block] = block, key
        request.hashed = (request.computed + tokens) // BLOCK

    def unfill(self, request: Plain) -> None:
        """Forget a block that only the token of this pass, which it lost, would have filled."""
        for at in range(request.computed // BLOCK, request.hashed):
            key, block = request.hash_of(at), request.blocks[at]
            if self.known.get(key) == block:
                del self.known[key], self.key_of[block]

    def step(self, now_ps: int) -> int:  # noqa: C901 - in one piece, to be read beside the scheduler it copies
        """One pass; its duration."""
        budget = self.limits.batched_tokens
        scheduled: dict[int, tuple[Plain, int]] = {}
        preempted: list[Plain] = []
        for request in list(self.running):
            if request not in self.running:
                continue
            chunk = min(request.target - request.computed, budget)
            wanted = -(-(request.computed + chunk) // BLOCK) - len(request.blocks)
            while wanted > len(self.free) and request in self.running:
                victim = max(self.running, key=lambda r: (r.priority, r.key))
                self.running.remove(victim)
                if victim.key in scheduled:
                    budget += scheduled.pop(victim.key)[1]
                    self.unfill(victim)
                self.release(victim)
                victim.computed, victim.decoding = 0, False
                self.waiting.append(victim)
                preempted.append(victim)
                self.preemptions += 1
            if request in self.running:
                self.fill(request, chunk)
                scheduled[request.key] = (request, chunk)
                budget -= chunk
        self.waiting.sort(key=lambda r: (r.priority, r.key))
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.limits.seqs:
            request = self.waiting[0]
            hits: list[int] = []
            while self.limits.prefix_caching and len(hits) < (request.target - 1) // BLOCK:
                block = self.known.get(request.hash_of(len(hits)))
                if block is None:
                    break
                hits.append(block)
            cached = len(hits) * BLOCK
            chunk = min(request.target - cached, budget)
            idle = sum(block in self.free for block in hits)
            if -(-(cached + chunk) // BLOCK) - len(hits) + idle > len(self.free):
                break
            self.waiting.pop(0)
            for block in hits:
                self.free.pop(block, None)
                self.users[block] += 1
            request.blocks, request.computed, request.hashed = hits, cached, len(hits)
            # the corner that the engine's cache leaves out: old private blocks behind a gap, which it will fill anew
            for at in range(len(hits), self.limits.kv_blocks):
                behind = self.known.pop(("own", request.key, at), None)
                if behind is not None:
                    del self.key_of[behind]
            if request.cached_tokens < 0:
                request.cached_tokens = cached
            self.fill(request, chunk)
            self.running.append(request)
            scheduled[request.key] = (request, chunk)
            budget -= chunk
        tokens = sum(chunk for _, chunk in scheduled.values())
        assert tokens <= self.limits.batched_tokens
        if not tokens:
            return 0
        took = self.cost.base_ps(tokens)
        for request, chunk in scheduled.values():
            if not request.decoding:
                took += self.cost.product_ps * sum(request.computed + i + 1 for i in range(chunk))
            request.computed += chunk
            took += self.cost.context_ps * request.computed
        for request, _ in scheduled.values():
            if request.computed < request.target:
                continue
            request.decoding = True
            request.emitted += 1
            request.token_ps.append(now_ps + took)
            if request.emitted == request.output:
                self.running.remove(request)
                self.release(request)
        return took


def plain_run(arrivals: ServerArrivals, limits: Limits) -> tuple[list[Plain], PlainEngine]:
    engine = PlainEngine(limits, step_cost())
    urgency = arrivals.priority if arrivals.priority is not None else np.zeros_like(arrivals.at_ns)
    requests = [
        Plain(i, int(tokens_in), int(tokens_out), int(group), int(prefix) // BLOCK if group >= 0 else 0, int(priority))
        for i, (tokens_in, tokens_out, prefix, group, priority) in enumerate(
            zip(
                arrivals.input_tokens,
                arrivals.output_tokens,
                arrivals.prefix_tokens,
                arrivals.prefix_group,
                urgency,
                strict=True,
            )
        )
    ]
    coming = list(zip((arrivals.at_ns * 1000).tolist(), requests, strict=True))
    now_ps = 0
    while coming or engine.waiting or engine.running:
        while coming and coming[0][0] <= now_ps:
            engine.waiting.append(coming.pop(0)[1])
        took = engine.step(now_ps)
        now_ps = now_ps + took if took else coming[0][0]
    return requests, engine


def token_table(trace: ServiceTimes) -> list[list[int]]:
    rows = []
    for request, tokens in enumerate(trace.tokens.tolist()):
        numbers = np.arange(1, tokens + 1)
        rows.append(trace.token_ns(np.full(tokens, request), numbers).tolist())
    return rows


@st.composite
def workloads(draw: st.DrawFn, *, pressure: bool = True) -> tuple[ServerArrivals, Limits]:
    n = draw(st.integers(1, 12))
    column = lambda low, high: np.array(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))  # noqa: E731
    inputs, outputs = column(1, 30), column(1, 20)
    prefixes = np.minimum(column(0, 24), inputs)
    groups = np.where(prefixes > 0, column(-1, 1), -1)
    prefixes = np.where(groups >= 0, prefixes, 0)
    gaps = column(0, 3_000_000)
    seqs = draw(st.integers(1, 6))
    one = -(-int((inputs + outputs).max()) // BLOCK)
    arrivals = ServerArrivals(
        at_ns=np.cumsum(gaps),
        input_tokens=inputs,
        output_tokens=outputs,
        prefix_tokens=prefixes,
        prefix_group=groups,
    )
    limits = Limits(
        batched_tokens=draw(st.integers(seqs, 40)),
        seqs=seqs,
        kv_blocks=one + draw(st.integers(0, 12)) if pressure else one * n,
        block_size=BLOCK,
        prefix_caching=draw(st.booleans()),
    )
    return arrivals, limits


def serve_it(arrivals: ServerArrivals, limits: Limits, **more: Any) -> ServiceTimes:
    options = {"noise": None, "timeout_ns": TIMEOUT_NS, "until": len(arrivals.at_ns), **more}
    return serve(arrivals, limits=limits, cost=step_cost(), **options)


@settings(deadline=None, max_examples=80)
@given(workloads(), st.booleans())
def test_every_token_comes_out_when_the_plain_engine_says(
    workload: tuple[ServerArrivals, Limits], by_priority: bool
) -> None:
    arrivals, limits = workload
    if by_priority:
        limits = replace(limits, policy="priority")
        arrivals = replace(arrivals, priority=np.arange(len(arrivals.at_ns))[::-1] % 3)
    requests, engine = plain_run(arrivals, limits)
    trace = serve_it(arrivals, limits, collapse=False)
    assert token_table(trace) == [[at_ps // 1000 for at_ps in request.token_ps] for request in requests]
    assert trace.cached_tokens.tolist() == [request.cached_tokens for request in requests]
    assert trace.tokens.tolist() == arrivals.output_tokens.tolist()  # conserved
    assert len(engine.free) == limits.kv_blocks


@settings(deadline=None, max_examples=50)
@given(workloads(pressure=False))
def test_the_fast_loop_gives_the_engine_s_records(workload: tuple[ServerArrivals, Limits]) -> None:
    arrivals, limits = workload
    nothing = np.zeros_like(arrivals.prefix_tokens)
    arrivals = replace(arrivals, prefix_tokens=nothing, prefix_group=nothing - 1)
    assert token_table(serve_it(arrivals, limits)) == token_table(serve_it(arrivals, limits, collapse=False))


@settings(deadline=None, max_examples=50)
@given(workloads(pressure=False), st.integers(1, 6_000_000))
def test_both_loops_drop_the_same_clients_at_the_same_pass(
    workload: tuple[ServerArrivals, Limits], timeout_ns: int
) -> None:
    arrivals, limits = workload
    nothing = np.zeros_like(arrivals.prefix_tokens)
    arrivals = replace(arrivals, prefix_tokens=nothing, prefix_group=nothing - 1)
    quick = serve_it(arrivals, limits, timeout_ns=timeout_ns)
    general = serve_it(arrivals, limits, timeout_ns=timeout_ns, collapse=False)
    assert quick.complete.tolist() == general.complete.tolist()
    assert token_table(quick) == token_table(general)


@settings(deadline=None, max_examples=40)
@given(workloads(), st.integers(0, 3))
def test_leaping_and_stepping_give_the_same_trace(workload: tuple[ServerArrivals, Limits], seed: int) -> None:
    arrivals, limits = workload
    noise = StepNoise(seed=seed, jitter=0.3, stall_share=0.1, stall_ps=10**9) if seed else None
    made = []
    for walk in (False, True):
        engine = Engine(limits, step_cost(), noise)
        ended: dict[int, int] = {}
        coming = list(zip((arrivals.at_ns * 1000).tolist(), sequences(arrivals), strict=True))
        now_ps = 0
        while coming or engine.running or engine.waiting:
            while coming and coming[0][0] <= now_ps:
                engine.add(coming.pop(0)[1])
            gap_ps = coming[0][0] - now_ps if coming else 10**15
            step = engine.step() if walk else engine.leap(gap_ps)
            assert step.tokens <= limits.batched_tokens
            now_ps = now_ps + step.duration_ps if step.steps else coming[0][0]
            ended |= {sequence.key: now_ps for sequence in step.finished}
        assert engine.kv_usage == 0  # no block is leaked
        assert engine.reset_prefix_cache()
        made.append((ended, engine.steps, engine.preemptions, engine.hit_tokens, engine.queried_tokens))
    assert made[0] == made[1]


def sequences(arrivals: ServerArrivals) -> list[Sequence]:
    rows = zip(
        arrivals.input_tokens.tolist(),
        arrivals.output_tokens.tolist(),
        arrivals.prefix_tokens.tolist(),
        arrivals.prefix_group.tolist(),
        strict=True,
    )
    return [
        Sequence(i, tokens_in, tokens_out, ((group, prefix // BLOCK),) if group >= 0 and prefix >= BLOCK else ())
        for i, (tokens_in, tokens_out, prefix, group) in enumerate(rows)
    ]


@settings(deadline=None, max_examples=40)
@given(workloads(), st.data())
def test_cancelling_anybody_at_any_time_leaks_nothing(
    workload: tuple[ServerArrivals, Limits], data: st.DataObject
) -> None:
    arrivals, limits = workload
    engine = Engine(limits, step_cost())
    alive = sequences(arrivals)
    for sequence in alive:
        engine.add(sequence)
    done: set[int] = set()
    while engine.running or engine.waiting:
        done |= {sequence.key for sequence in engine.step().finished}
        if data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(alive))
            engine.cancel(victim)
            engine.cancel(victim)  # a second time does nothing
            done.add(victim.key)
    assert done == {sequence.key for sequence in alive}
    assert engine.kv_usage == 0


@settings(deadline=None, max_examples=40)
@given(workloads(pressure=False))
def test_first_come_is_first_served(workload: tuple[ServerArrivals, Limits]) -> None:
    arrivals, limits = workload
    first = [tokens[0] for tokens in token_table(serve_it(arrivals, limits, collapse=False))]
    assert first == sorted(first)


def busy(rate: float, *, seed: int = 3, n: int = 2000) -> tuple[ServerArrivals, Limits]:
    rng = np.random.default_rng(seed)
    nothing = np.zeros(n, dtype=np.int64)
    arrivals = ServerArrivals(
        at_ns=np.cumsum(rng.exponential(1e9 / rate, n)).astype(np.int64),
        input_tokens=rng.integers(1, 30, n),
        output_tokens=rng.integers(1, 20, n),
        prefix_tokens=nothing,
        prefix_group=nothing - 1,
    )
    return arrivals, Limits(batched_tokens=32, seqs=6, kv_blocks=80, block_size=BLOCK, prefix_caching=True)


def test_the_same_seed_gives_the_same_trace() -> None:
    noise = {"noise": StepNoise(seed=5, jitter=0.2, stall_share=0.01, stall_ps=10**10)}
    one, two = (serve_it(*busy(80.0, n=300), **noise) for _ in range(2))
    other = serve_it(*busy(80.0, n=300), noise=StepNoise(seed=6, jitter=0.2))
    assert token_table(one) == token_table(two) != token_table(other)


def test_more_load_means_longer_sojourns() -> None:
    means = []
    for rate in (20.0, 60.0, 120.0, 200.0):
        arrivals, limits = busy(rate)
        trace = serve_it(arrivals, limits)
        last_ns = trace.token_ns(np.arange(len(trace.tokens)), trace.tokens)
        means.append(float((last_ns - arrivals.at_ns).mean()))
    assert means == sorted(means)


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = Engine(Limits(batched_tokens=8, seqs=2, kv_blocks=4, block_size=4, prefix_caching=True), step_cost())
    with pytest.raises(ValueError, match="10 \\+ 7 tokens exceed"):
        engine.add(Sequence(0, 10, 7))
    engine.add(Sequence(1, 10, 6))
