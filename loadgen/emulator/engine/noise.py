"""Seeded unevenness of step times: a lognormal factor on every pass, and rare stalls.

What pass s suffers is a function of the seed and of `before` + s alone, drawn in blocks of passes: jumping many passes
and walking them give the same times. `before` is how many passes the server has behind it: a run that meets a server in
the middle of its life meets other noise than the run before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["StepNoise"]

_BLOCK = 4096


@dataclass(slots=True, kw_only=True)
class StepNoise:
    """`jitter` is the factor's standard deviation (its mean is 1); a pass stalls for `stall_ps` with `stall_share`."""

    seed: int
    jitter: float = 0.0
    stall_share: float = 0.0
    stall_ps: int = 0
    before: int = 0
    _blocks: dict[int, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = field(init=False, default_factory=dict)

    def durations_ps(self, first: int, quiet_ps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What passes `first`, `first` + 1, ... take in place of `quiet_ps`; same shape."""
        out = np.empty_like(quiet_ps)
        done = 0
        while done < len(quiet_ps):
            block, at = divmod(self.before + first + done, _BLOCK)
            factors, stalls_ps = self._block(block)
            count = min(_BLOCK - at, len(quiet_ps) - done)
            part = slice(done, done + count)
            out[part] = np.rint(quiet_ps[part] * factors[at : at + count]).astype(np.int64) + stalls_ps[at : at + count]
            done += count
        return out

    def _block(self, block: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        drawn = self._blocks.get(block)
        if drawn is None:
            rng = np.random.default_rng([self.seed, block])
            sigma = np.sqrt(np.log1p(self.jitter**2))
            factors = np.exp(sigma * rng.standard_normal(_BLOCK) - sigma**2 / 2)
            stalls_ps = np.where(rng.random(_BLOCK) < self.stall_share, self.stall_ps, 0)
            drawn = factors, stalls_ps
            self._blocks = {block: drawn}
        return drawn
