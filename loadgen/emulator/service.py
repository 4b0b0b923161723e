"""The random part of a simulated service time: a uniform number that is a pure function of a request's content.

The HTTP face sees a prompt and virtual time sees a plan, and both must give one request the same service. So the
draw is no state of a generator: it is a hash of the profile's seed and of the prompt's last ids (a shared prefix is
at the front; the end is the request's own), mixed by the SplitMix64 finaliser (Steele, Lea and Flood, 2014). It
does not depend on order, on time or on what else is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "STOP_SEED",
    "TAIL_IDS",
    "WeibullService",
    "hash_uniform",
    "natural_tokens",
    "prompt_tail",
    "prompt_uniform",
]

TAIL_IDS = 4  # of a range of 3,000 ids: 46 bits
_TEXT_BYTES = 7  # of a text make one id; its last words are too few to tell requests apart
STOP_SEED = 0x73746F70  # keeps a natural stop independent of the service

Prompt = Sequence[int] | npt.NDArray[np.int64] | str

_MASK = 2**64 - 1
_GAMMA, _M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(_GAMMA), np.uint64(_M1), np.uint64(_M2)


def prompt_tail(prompt: Prompt) -> tuple[int, ...]:
    """The last `TAIL_IDS` ids of a prompt, zeros in front of a shorter one.

    A text (as such, or as ids that are all bytes) counts seven bytes of UTF-8 as one id.
    """
    ids = prompt.encode() if isinstance(prompt, str) else prompt[-TAIL_IDS * _TEXT_BYTES :]
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    if all(0 <= code < 256 for code in ids):
        text = bytes(ids).rjust(TAIL_IDS * _TEXT_BYTES, b"\0")[-TAIL_IDS * _TEXT_BYTES :]
        parts = (text[start : start + _TEXT_BYTES] for start in range(0, len(text), _TEXT_BYTES))
        return tuple(int.from_bytes(part, "big") for part in parts)
    tail = tuple(ids[-TAIL_IDS:])
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


def prompt_uniform(prompt: Prompt, seed: int) -> float:
    """The uniform number of one prompt: `hash_uniform` of one row to the last bit, without numpy's price a call."""
    state = seed & _MASK
    for token_id in prompt_tail(prompt):
        state = ((state ^ (token_id + _GAMMA)) + _GAMMA) & _MASK
        state = ((state ^ (state >> 30)) * _M1) & _MASK
        state = ((state ^ (state >> 27)) * _M2) & _MASK
        state ^= state >> 31
    return (state >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True, kw_only=True)
class WeibullService:
    """Service times of a Weibull law with that mean; shape 1 is the exponential, below 1 more variable than it."""

    mean_ns: float
    shape: float

    def time_ns(self, uniform: float) -> int:
        """The service time at one uniform in [0, 1)."""
        return int(self.quantile_ns(uniform))

    def quantile_ns(self, uniform: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Quantiles scale·(−ln(1 − u))^(1/shape), scale = mean/Γ(1 + 1/shape), at least 1 ns; any shape."""
        scale_ns = self.mean_ns / math.gamma(1 + 1 / self.shape)
        unit = (-np.log1p(-np.asarray(uniform, dtype=np.float64))) ** (1 / self.shape)
        return np.maximum(np.rint(scale_ns * unit), 1).astype(np.int64)


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
