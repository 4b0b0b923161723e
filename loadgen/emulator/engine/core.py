"""The continuous-batching engine: what runs in each step, as vLLM's v1 scheduler decides it.

Theory of operation. One call of `step` is one forward pass. In order:

1. Running sequences first, in the order they were admitted: one token each where they decode, the rest of the prompt,
   or as much of it as the token budget leaves, where they are in prefill. If KV blocks run out, the last admitted (with
   priorities: the least urgent) is preempted: its blocks are freed, it goes to the head of the queue and will compute
   all its tokens anew.
2. Then, if nobody was preempted, waiting sequences while the budget, the `seqs` slots and the blocks last, the first of
   the queue never overtaken. A prefix found in the cache is not computed, save the last token, which must be.
3. The step takes what `cost` says. Every decoding sequence emits one token at its end, and so does a sequence whose
   prompt was completed in it.

The budget can leave only the last running sequence in mid-prefill, so there is at most one (`_partial`), and between
two arrivals, completions or shortages every step decodes the same sequences: `leap` jumps many of those at once. A
decoding sequence therefore keeps no counter. Its computed tokens are `_offset + steps`, the step at which it will end
is known when it starts, and the number of blocks wanted at a step is a count by residue (`_phases`). All times are
integer ps, so `leap` and `step` give the same trace to the last digit; a test says so.

There is no clock here: the caller adds sequences between steps and decides what the time is.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from loadgen.emulator.cost import StepCost
from loadgen.emulator.engine.kv import BlockPool
from loadgen.emulator.engine.noise import StepNoise
from loadgen.emulator.engine.passes import blocks_wanted, passes_to, query_products, total_ps, uneven_ends_ps
from loadgen.emulator.engine.types import EngineFull, Int64s, Limits, Sequence, Step

__all__ = ["Engine"]


@dataclass(slots=True)
class Engine:
    """The scheduler and its state between two passes; the counters are running totals."""

    limits: Limits
    cost: StepCost
    noise: StepNoise | None = None
    steps: int = 0  # passes done
    preemptions: int = 0
    queried_tokens: int = 0  # of prompts looked up in the prefix cache
    hit_tokens: int = 0
    _pool: BlockPool = field(init=False)
    _queue: list[tuple[int, int, Sequence]] = field(init=False, default_factory=list)  # a heap; gone ones are skipped
    _waiting: int = field(init=False, default=0)
    _running: dict[Sequence, None] = field(init=False, default_factory=dict)  # in the order of admission
    _partial: Sequence | None = field(init=False, default=None)
    _ends: list[tuple[int, int, Sequence]] = field(init=False, default_factory=list)  # a heap; stale ones are skipped
    _decoding: int = field(init=False, default=0)
    _context: int = field(init=False, default=0)  # tokens that the decoding sequences attend to in the next pass
    _phases: list[int] = field(init=False)  # decoding sequences by offset modulo block size
    _blocked: bool = field(init=False, default=False)  # the queue's head was tried, and only a departure can help it
    _added: int = field(init=False, default=0)
    _turns: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        limits = self.limits
        if limits.batched_tokens < limits.seqs:
            raise ValueError(f"batched_tokens = {limits.batched_tokens} is below seqs = {limits.seqs}")
        self._pool = BlockPool(limits.kv_blocks, limits.prefix_caching)
        self._phases = [0] * limits.block_size

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that do not, preempted ones among them."""
        return self._waiting

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that sequences hold."""
        return 1 - self._pool.free / self._pool.total

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `EngineFull` at the admission limit, `ValueError` if it can never fit the blocks."""
        limits = self.limits
        if limits.queued is not None and self._waiting >= limits.queued:
            raise EngineFull
        if self._blocks(sequence.prompt_tokens + sequence.output_tokens) > limits.kv_blocks:
            raise ValueError(
                f"{sequence.prompt_tokens} + {sequence.output_tokens} tokens exceed the KV cache of "
                f"{limits.kv_blocks} blocks of {limits.block_size}"
            )
        if limits.policy == "fcfs":
            sequence.priority = 0
        sequence._order = self._added
        sequence._lease.chain = sequence.chain
        self._added += 1
        self._enqueue(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Its client is gone: free what it holds. Unknown and finished sequences are ignored."""
        if sequence._state == "waiting":
            self._waiting -= 1
        elif sequence._state != "gone":
            self._leave(sequence, keep=False)
        sequence._state = "gone"

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; refused (False) while sequences hold blocks."""
        return self._pool.reset()

    def step(self) -> Step:
        """One pass. With nothing to run it takes no time and does nothing (`steps` 0)."""
        preempted, chunk = self._schedule_running()
        tokens, products, context = self._decoding, 0, self._context
        budget = self.limits.batched_tokens - self._decoding
        first: list[Sequence] = []
        partial, self._partial = self._partial, None
        if partial is not None:
            self._compute(partial, chunk, first)
            products, context, budget = (
                query_products(partial._computed - chunk, chunk),
                context + partial._computed,
                budget - chunk,
            )
            tokens += chunk
        if not preempted:
            for sequence, chunk in self._admit(budget, first):
                products += query_products(sequence._computed - chunk, chunk)
                context += sequence._computed
                tokens += chunk
        if not tokens:
            return Step(0, 0, 0, [], [], preempted)
        duration_ps = self.cost.base_ps(tokens) + self.cost.context_ps * context + self.cost.product_ps * products
        if self.noise is not None:
            duration_ps = int(self.noise.durations_ps(self.steps, np.array([duration_ps]))[0])
        finished = self._end_passes(1)
        for sequence in first:
            sequence.emitted += 1
            if sequence.emitted == sequence.output_tokens:
                self._leave(sequence, keep=False)
                sequence._state = "gone"
                finished.append(sequence)
            else:
                self._start_decoding(sequence)
        return Step(1, duration_ps, tokens, first, finished, preempted, base_ps=duration_ps)

    def leap(self, within_ps: int) -> Step:
        """As many equal passes as there are before something changes, at most until one ends at or after `within_ps`.

        One ordinary `step` where the next pass is not of that kind.
        """
        passes = self._quiet_passes()
        if passes < 2 or within_ps <= 0:
            return self.step()
        tokens, cost = self._decoding, self.cost
        slope_ps = cost.context_ps * tokens
        base_ps = cost.base_ps(tokens) + cost.context_ps * self._context
        passes = passes_to(within_ps, base_ps, slope_ps, passes)
        ends_ps: Int64s | None = None
        if self.noise is None:
            duration_ps = total_ps(passes, base_ps, slope_ps)
        else:
            ends_ps = uneven_ends_ps(self.noise, self.steps, within_ps, base_ps, slope_ps, passes)
            passes, duration_ps = len(ends_ps), int(ends_ps[-1])
        self._pool.take(self._wanted(passes))
        finished = self._end_passes(passes)
        return Step(passes, duration_ps, tokens, [], finished, [], ends_ps, base_ps, slope_ps)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def _wanted(self, passes: int) -> int:
        """Blocks that the decoding sequences want over the next passes."""
        return blocks_wanted(self._phases, self._decoding, self.steps, passes)

    def _quiet_passes(self) -> int:
        """Coming passes of which all but the last change nothing, the last completing sequences at most."""
        if (self._waiting and not self._blocked) or self._partial is not None or not self._decoding:
            return 0
        ends = self._ends
        end, _, sequence = ends[0]
        while sequence._ends != end or sequence._state != "decode":
            heapq.heappop(ends)
            end, _, sequence = ends[0]
        passes = end - self.steps
        if self._decoding * (passes // self.limits.block_size + 1) > self._pool.free:
            while passes and self._wanted(passes) > self._pool.free:
                passes //= 2
        return passes

    def _schedule_running(self) -> tuple[list[Sequence], int]:
        """Give every running sequence its blocks of this pass, preempting from the end where there are too few.

        Returns the preempted, and the tokens of the sequence in mid-prefill.
        """
        partial, chunk = self._partial, 0
        wanted = growth = self._phases[-self.steps % self.limits.block_size]
        if partial is not None:
            chunk = self._chunk(partial)
            wanted += self._blocks(partial._computed + chunk) - partial._lease.held
        if wanted > self._pool.free:
            return self._squeeze()
        self._pool.take(growth)
        if partial is not None:
            self._grow_prefill(partial, chunk)
        return [], chunk

    def _squeeze(self) -> tuple[list[Sequence], int]:
        """The same one sequence at a time, as the order decides who gives way."""
        preempted: list[Sequence] = []
        extended: set[Sequence] = set()
        chunk = 0
        for sequence in list(self._running):
            if sequence._state == "decode":
                wanted = int((sequence._offset + self.steps) % self.limits.block_size == 0)
            elif sequence._state == "prefill":
                chunk = self._chunk(sequence)
                wanted = self._blocks(sequence._computed + chunk) - sequence._lease.held
            else:
                continue  # preempted for one before it
            while wanted > self._pool.free and sequence in self._running:
                victim = max(reversed(self._running), key=lambda s: (s.priority, s._order))
                self._leave(victim, keep=True, extra=int(victim in extended))
                victim.preemptions += 1
                self.preemptions += 1
                self._enqueue(victim)
                preempted.append(victim)
            if sequence not in self._running:
                continue
            if sequence is self._partial:
                self._grow_prefill(sequence, chunk)
            else:
                self._pool.take(wanted)
                if wanted:
                    extended.add(sequence)
        return preempted, chunk if self._partial is not None else 0

    def _chunk(self, partial: Sequence) -> int:
        return min(partial._target - partial._computed, self.limits.batched_tokens - self._decoding)

    def _admit(self, budget: int, first: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Move waiting sequences into the pass, in order, while budget, slots and blocks last."""
        admitted: list[tuple[Sequence, int]] = []
        queue, limits = self._queue, self.limits
        while queue:
            sequence = queue[0][2]
            if sequence._state != "waiting":
                heapq.heappop(queue)
                continue
            if budget <= 0 or len(self._running) >= limits.seqs:
                break
            sequence._target = sequence.prompt_tokens + sequence.emitted
            # the last token is always computed: its output is what is sampled from
            match = self._pool.match(sequence._lease, (sequence._target - 1) // limits.block_size)
            cached = match.blocks * limits.block_size
            chunk = min(sequence._target - cached, budget)
            if self._blocks(cached + chunk) - match.blocks + match.idle > self._pool.free:
                break
            heapq.heappop(queue)
            self._waiting -= 1
            self._pool.open(sequence._lease, match)
            if sequence.cached_tokens < 0:
                sequence.cached_tokens = cached
                if limits.prefix_caching:
                    self.queried_tokens += sequence._target
                    self.hit_tokens += cached
            self._running[sequence] = None
            self._turns += 1
            sequence._turn = self._turns
            sequence._state = "prefill"
            sequence._computed = cached
            self._grow_prefill(sequence, chunk)
            self._compute(sequence, chunk, first)
            admitted.append((sequence, chunk))
            budget -= chunk
        # a prefill in this pass used budget that the next one has again
        self._blocked = not admitted and not first and self._partial is None
        return admitted

    def _grow_prefill(self, sequence: Sequence, chunk: int) -> None:
        after = sequence._computed + chunk
        self._pool.grow(sequence._lease, self._blocks(after), after // self.limits.block_size)

    def _compute(self, sequence: Sequence, chunk: int, first: list[Sequence]) -> None:
        sequence._computed += chunk
        if sequence._computed == sequence._target:
            first.append(sequence)
        else:
            self._partial = sequence

    def _start_decoding(self, sequence: Sequence) -> None:
        """Its prompt is complete and one token emitted, at the end of the pass that `steps` counts already."""
        sequence._state = "decode"
        sequence._offset = sequence._target - self.steps
        sequence._ends = self.steps + sequence.output_tokens - sequence.emitted
        heapq.heappush(self._ends, (sequence._ends, sequence._turn, sequence))
        self._decoding += 1
        self._context += sequence._target + 1
        self._phases[sequence._offset % self.limits.block_size] += 1

    def _end_passes(self, passes: int) -> list[Sequence]:
        """Count passes; who is complete leaves."""
        self.steps += passes
        self._context += passes * self._decoding
        finished: list[Sequence] = []
        ends = self._ends
        while ends and ends[0][0] <= self.steps:
            at, _, sequence = heapq.heappop(ends)
            if sequence._state == "decode" and sequence._ends == at:
                self._leave(sequence, keep=False)
                sequence._state = "gone"
                finished.append(sequence)
        return finished

    def _leave(self, sequence: Sequence, *, keep: bool, extra: int = 0) -> None:
        """Give up slot and blocks, `extra` of them taken in this very pass."""
        self._blocked = False
        del self._running[sequence]
        size = self.limits.block_size
        if sequence._state == "decode":
            computed = sequence._offset + self.steps
            sequence.emitted = computed - sequence.prompt_tokens + 1
            self._decoding -= 1
            self._context -= computed + 1
            self._phases[sequence._offset % size] -= 1
            held = self._blocks(computed) + extra
        else:
            computed, held = sequence._computed, sequence._lease.held
            if self._partial is sequence:
                self._partial = None
        self._pool.close(sequence._lease, held, computed // size, keep=keep)

    def _enqueue(self, sequence: Sequence) -> None:
        if not self._waiting or self.limits.policy == "priority":
            self._blocked = False
        sequence._state = "waiting"
        self._waiting += 1
        heapq.heappush(self._queue, (sequence.priority, sequence._order, sequence))
