"""Arithmetic of passes: what a chunk of a prompt costs, and what many passes that differ only in context add up to.

Pass i (from 0) of such a row takes base + i·slope; all times are integer ps, so that a jump over passes and a walk
through them agree to the last digit.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from loadgen.emulator.engine.noise import StepNoise
from loadgen.emulator.engine.types import Int64s

__all__ = ["blocks_wanted", "passes_to", "query_products", "total_ps", "uneven_ends_ps"]


def query_products(before: int, chunk: int) -> int:
    """Query-key products of `chunk` tokens behind `before` others: each token with all before it and itself."""
    return chunk * before + chunk * (chunk + 1) // 2


def total_ps(passes: int, base_ps: int, slope_ps: int) -> int:
    """What that many passes take together, ps: n·base + slope·n(n−1)/2."""
    return passes * base_ps + slope_ps * (passes * (passes - 1) // 2)


def passes_to(within_ps: int, base_ps: int, slope_ps: int, most: int) -> int:
    """The smallest n ≤ most whose passes together take `within_ps` or more, exactly."""
    if total_ps(most, base_ps, slope_ps) <= within_ps:
        return most
    half = base_ps - slope_ps / 2
    n = int((sqrt(half * half + 2.0 * slope_ps * within_ps) - half) / slope_ps) or 1  # put right in integers
    while total_ps(n, base_ps, slope_ps) < within_ps:
        n += 1
    while n > 1 and total_ps(n - 1, base_ps, slope_ps) >= within_ps:
        n -= 1
    return n


def uneven_ends_ps(noise: StepNoise, first: int, within_ps: int, base_ps: int, slope_ps: int, most: int) -> Int64s:
    """When each pass from number `first` on ends under `noise`, ps, up to the first that ends at or after `within_ps`.

    At most `most` passes, at least one.
    """
    quiet_ps = base_ps + slope_ps * np.arange(most, dtype=np.int64)
    ends_ps: Int64s = np.cumsum(noise.durations_ps(first, quiet_ps))
    return ends_ps[: int(np.searchsorted(ends_ps, within_ps)) + 1]


def blocks_wanted(phases: list[int], decoding: int, steps: int, passes: int) -> int:
    """KV blocks that `decoding` sequences want over the next passes after `steps`.

    `phases`: how many of them have each offset modulo the block size, of which there are as many as entries.
    """
    size = len(phases)
    rounds, rest = divmod(passes, size)
    # the residues -steps, -steps - 1, ... of `rest` passes, downwards and round the corner
    high = -steps % size + 1
    if rest <= high:
        return rounds * decoding + sum(phases[high - rest : high])
    return rounds * decoding + sum(phases[:high]) + sum(phases[high - rest :])
