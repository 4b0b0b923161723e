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


def _leading_hits(trace: Trace) -> Int64s:
    """Leading blocks of each request that an earlier request (in order of arrival, ties in file order) had too."""
    if trace.hashes is None:
        return np.zeros(len(trace), dtype=np.int64)
    ids, starts, counts = trace.hashes.ids, trace.hashes.starts, trace.hashes.counts
    owner = np.repeat(np.arange(len(trace)), counts)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    misses = np.flatnonzero(owner[first[inverse]] == owner)
    # the first miss at or behind each request's start ends its run of hits
    nearest = np.append(misses, ids.size)[np.searchsorted(misses, starts[:-1])]
    return np.minimum(nearest - starts[:-1], counts)


def cached_tokens(trace: Trace) -> Int64s:
    """Input tokens of each request that an infinite prefix cache holds already, int64 (n,)."""
    if trace.hashes is None:
        return np.zeros(len(trace), dtype=np.int64)
    return np.minimum(_leading_hits(trace) * trace.hashes.block_tokens, trace.input_tokens)


def prefix_bound(trace: Trace) -> PrefixBound | None:
    """The bound for a whole trace; None where it has no block ids."""
    if trace.hashes is None:
        return None
    hits = _leading_hits(trace)
    return PrefixBound(
        blocks=float(hits.sum() / trace.hashes.ids.size),
        tokens=float(cached_tokens(trace).sum() / trace.input_tokens.sum(dtype=np.int64)),
        requests=float(np.mean(hits > 0)),
        distinct_blocks=int(np.unique(trace.hashes.ids).size),
        block_tokens=trace.hashes.block_tokens,
    )
