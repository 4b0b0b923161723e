"""How much of the prompts a prefix cache could give back at most: each block once computed is never forgotten."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.trace import Int64s, Trace

__all__ = ["PrefixBound", "cached_tokens", "prefix_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBound:
    """Upper bound of prefix reuse, with an infinite cache and no block in flight.

    `blocks` and `tokens`: share of all hash blocks, and of all input tokens, whose prefix an earlier request had.
    `requests`: share of requests that reuse at least one block. `distinct_blocks`: what the cache would have to hold.
    """

    blocks: float
    tokens: float
    requests: float
    distinct_blocks: int
    block_tokens: int


def _leading_hits(trace: Trace) -> tuple[Int64s, int]:
    """Leading blocks of each request that an earlier one had too (ties in file order); and how many ids there are."""
    if trace.hashes is None:
        return np.zeros(len(trace), dtype=np.int64), 0
    ids, starts, counts = trace.hashes.ids, trace.hashes.starts, trace.hashes.counts
    # equal ids side by side, each group led by its first occurrence
    order = np.argsort(ids, kind="stable")
    begins = np.flatnonzero(np.append(True, ids[order[1:]] != ids[order[:-1]])) if ids.size else order
    owner = np.repeat(np.arange(len(trace), dtype=np.int32), counts)[order]
    firsts = np.repeat(owner[begins], np.diff(begins, append=ids.size))
    missed = np.zeros(ids.size, dtype=bool)
    missed[order[owner == firsts]] = True
    del order, owner, firsts
    # the first miss at or behind each request's start ends its run of hits
    misses = np.flatnonzero(missed)
    nearest = np.append(misses, ids.size)[np.searchsorted(misses, starts[:-1])]
    return np.minimum(nearest - starts[:-1], counts), int(begins.size)


def cached_tokens(trace: Trace) -> Int64s:
    """Input tokens of each request that an infinite prefix cache holds already, int64 (n,)."""
    if trace.hashes is None:
        return np.zeros(len(trace), dtype=np.int64)
    return np.minimum(_leading_hits(trace)[0] * trace.hashes.block_tokens, trace.input_tokens)


def prefix_bound(trace: Trace) -> PrefixBound | None:
    """The bound for a whole trace; None where it has no block ids."""
    if trace.hashes is None:
        return None
    hits, distinct = _leading_hits(trace)
    cached = np.minimum(hits * trace.hashes.block_tokens, trace.input_tokens)
    return PrefixBound(
        blocks=float(hits.sum() / trace.hashes.ids.size),
        tokens=float(cached.sum() / trace.input_tokens.sum(dtype=np.int64)),
        requests=float(np.mean(hits > 0)),
        distinct_blocks=distinct,
        block_tokens=trace.hashes.block_tokens,
    )
