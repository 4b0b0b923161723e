"""Values that the parts of tensor-parallel accounting hand to one another."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from analysis.tp.allreduce import NotMeasured

__all__ = ["TokenTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """t_proj,1 by T: pairs (tokens of a step, seconds of its projections on one GPU), ascending by tokens."""

    pairs: tuple[tuple[float, float], ...]

    @property
    def per_token_s(self) -> float:
        """a = t_proj,1/T, seconds a token, over all pairs."""
        return sum(seconds for _, seconds in self.pairs) / sum(tokens for tokens, _ in self.pairs)

    def projections_s(self, tokens: float) -> float:
        """t_proj,1(T), linear between two neighbouring pairs. Raises `NotMeasured`."""
        for known, seconds in self.pairs:
            if known == tokens:
                return seconds
        for (low, low_s), (high, high_s) in pairwise(self.pairs):
            if low < tokens < high:
                return low_s + (high_s - low_s) * (tokens - low) / (high - low)
        low, high = self.pairs[0][0], self.pairs[-1][0]
        raise NotMeasured(f"T = {tokens:g} is outside of what the TP=1 profile holds, {low:.4g} to {high:.4g}")
