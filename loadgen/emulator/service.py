"""The random part of a simulated service time: a uniform number that is a pure function of a request's content.

The HTTP face sees a prompt and virtual time sees a plan, and both must give one request the same service. So the
draw is no state of a generator: it is a hash of the profile's seed and of the prompt's last ids (a shared prefix is
at the front; the end is the request's own), mixed by the SplitMix64 finaliser (Steele, Lea and Flood, 2014). It
does not depend on order, on time or on what else is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["STOP_SEED", "TAIL_IDS", "hash_uniform", "natural_tokens", "prompt_tail", "prompt_uniform"]

TAIL_IDS = 8  # 8 ids of a range of 3,000 are 92 bits: requests collide for lack of hash, not of content
STOP_SEED = 0x73746F70  # keeps a natural stop independent of the service

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def prompt_tail(prompt: Sequence[int] | str) -> tuple[int, ...]:
    """The last `TAIL_IDS` ids of a prompt, zeros in front of a shorter one; a text's ids are its UTF-8 bytes."""
    tail = tuple(prompt.encode()[-TAIL_IDS:]) if isinstance(prompt, str) else tuple(prompt[-TAIL_IDS:])
    return (0,) * (TAIL_IDS - len(tail)) + tail


def hash_uniform(tails: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), shape (n,), of prompt tails of shape (n, TAIL_IDS) under a profile's seed."""
    ids = np.asarray(tails).astype(np.uint64)
    state = np.full(ids.shape[0], seed & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in range(ids.shape[1]):
            state = _mix(state ^ (ids[:, column] + _GOLDEN))
    uniforms: npt.NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniforms


def prompt_uniform(prompt: Sequence[int] | str, seed: int) -> float:
    """The uniform number of one prompt."""
    return float(hash_uniform(np.array([prompt_tail(prompt)], dtype=np.int64), seed)[0])


def natural_tokens(uniforms: npt.ArrayLike, mean: float) -> npt.NDArray[np.int64]:
    """Geometric output lengths (from 1) of that mean at uniforms in [0, 1), any shape; the token that stops counts."""
    draws = np.asarray(uniforms, dtype=np.float64)
    if mean == 1:
        return np.ones(draws.shape, dtype=np.int64)
    lengths: npt.NDArray[np.int64] = 1 + (np.log1p(-draws) / np.log1p(-1 / mean)).astype(np.int64)
    return lengths


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = state + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
