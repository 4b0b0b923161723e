"""The engine's schedule where nothing can be preempted or found in a cache: one loop over plain integers.

Theory of operation. Blocks that can never run out and prompts that share nothing leave of `core` only the token budget,
the slots and the order of arrival. A pass is then either pure decode, and as many of those as fit before the next
completion or arrival are one addition (n·base + slope·n(n−1)/2, in integer ps), or it carries prompts and is done by
itself. The queue is the range of indices between the next to admit and the next to arrive; nothing is stored for it.
Its trace is the one of `core` to the last digit, at several times the speed; a test compares the two.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import sqrt
from typing import NamedTuple

from loadgen.emulator.cost import StepCost
from loadgen.emulator.engine.service_times import PassLog
from loadgen.emulator.engine.types import Limits

__all__ = ["FastRun", "applies", "run_fast"]

_INDEX_BITS = 32
_MASK = (1 << _INDEX_BITS) - 1


def applies(limits: Limits, *, longest_tokens: int, requests: int, shared_prefixes: bool) -> bool:
    """Whether the loop is exact for requests of at most `longest_tokens` (input and output together)."""
    blocks = -(-longest_tokens // limits.block_size) * min(limits.seqs, requests)
    return (
        blocks <= limits.kv_blocks
        and limits.queued is None
        and limits.policy == "fcfs"
        and not (shared_prefixes and limits.prefix_caching)
    )


class FastRun(NamedTuple):
    """Lists of one entry a request. Passes are counted from 1; 0 is never."""

    log: PassLog
    first_pass: list[int]  # whose end brought the first token
    last_pass: list[int]  # whose end brought the last token
    complete: bytearray


def run_fast(  # noqa: C901 - one loop with its state in local variables is the point of this module
    at_ps: list[int],
    inputs: list[int],
    outputs: list[int],
    *,
    cost: StepCost,
    limits: Limits,
    timeout_ps: int,
    until: int,
) -> FastRun:
    """Serve requests that arrive at `at_ps` and are given up `timeout_ps` later, until the first `until` are over.

    Later ones are served as far as that takes.
    """
    total, budget_most, slots = len(at_ps), limits.batched_tokens, limits.seqs
    context_ps, product_ps = cost.context_ps, cost.product_ps
    bases = [cost.base_ps(tokens) for tokens in range(budget_most + 1)]
    first_pass, last_pass, complete = [0] * total, [0] * total, bytearray(total)
    over = bytearray(total)
    log = PassLog()
    log_start, log_passes = log.start_ps.append, log.passes.append
    log_base, log_slope = log.base_ps.append, log.slope_ps.append
    ends: list[int] = []  # heap of (pass of the last token, request), the pair in one integer
    now = passes = decoding = context = oldest = head = 0
    partial = -1  # the request in mid-prefill
    computed = 0  # its tokens so far
    while True:
        while oldest < head and over[oldest]:
            oldest += 1
        if oldest >= until:
            break
        if oldest < head and at_ps[oldest] + timeout_ps <= now:
            # its client left during the last pass
            over[oldest] = 1
            if oldest == partial:
                partial = -1
            elif first_pass[oldest]:
                decoding -= 1
                context -= inputs[oldest] + passes - first_pass[oldest] + 1
                last_pass[oldest] = passes
            continue
        while head < total and at_ps[head] + timeout_ps <= now:
            over[head] = 1
            head += 1
        if partial < 0 and (head == total or at_ps[head] > now or decoding == slots):
            if not decoding:
                if head == total:
                    break
                now = at_ps[head]
                continue
            while over[ends[0] & _MASK]:
                heappop(ends)
            count = (ends[0] >> _INDEX_BITS) - passes
            base, slope = bases[decoding] + context_ps * context, context_ps * decoding
            took = count * base + slope * (count * (count - 1) // 2)
            within = at_ps[oldest] + timeout_ps - now
            if head < total and decoding < slots and at_ps[head] - now < within and at_ps[head] > now:
                within = at_ps[head] - now
            if took > within:
                # the fewest passes that together take `within`: a root of the quadratic, put right in integers
                half = base - slope / 2
                count = int((sqrt(half * half + 2.0 * slope * within) - half) / slope) or 1
                took = count * base + slope * (count * (count - 1) // 2)
                while took < within:
                    took += base + slope * count
                    count += 1
                while count > 1 and took - base - slope * (count - 1) >= within:
                    count -= 1
                    took -= base + slope * count
            log_start(now)
            log_passes(count)
            log_base(base)
            log_slope(slope)
            context += count * decoding
            firsts: list[int] | None = None
        else:
            room, tokens, reads, products, firsts = budget_most - decoding, decoding, context, 0, []
            if partial >= 0:
                chunk = inputs[partial] - computed
                if chunk > room:
                    chunk = room
                products = chunk * computed + chunk * (chunk + 1) // 2
                computed += chunk
                reads += computed
                tokens += chunk
                room -= chunk
                if computed == inputs[partial]:
                    firsts.append(partial)
                    partial = -1
            free = slots - decoding - len(firsts) - (partial >= 0)
            while room and free and head < total and at_ps[head] <= now:
                chunk = inputs[head]
                if chunk > room:
                    partial, chunk = head, room
                    computed = chunk
                else:
                    firsts.append(head)
                products += chunk * (chunk + 1) // 2
                reads += chunk
                tokens += chunk
                room -= chunk
                free -= 1
                head += 1
            count = 1
            took = bases[tokens] + context_ps * reads + product_ps * products
            log_start(now)
            log_passes(1)
            log_base(took)
            log_slope(0)
            context += decoding
        now += took
        passes += count
        while ends and ends[0] >> _INDEX_BITS <= passes:
            request = heappop(ends) & _MASK
            if not over[request]:
                over[request] = complete[request] = 1
                last_pass[request] = passes
                decoding -= 1
                context -= inputs[request] + outputs[request]
        if firsts:
            for request in firsts:
                first_pass[request] = passes
                if outputs[request] == 1:
                    over[request] = complete[request] = 1
                    last_pass[request] = passes
                else:
                    decoding += 1
                    context += inputs[request] + 1
                    heappush(ends, (passes + outputs[request] - 1) << _INDEX_BITS | request)
    return FastRun(log, first_pass, last_pass, complete)
