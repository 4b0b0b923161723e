"""Values that the parts of tensor-parallel accounting hand to one another."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TokenTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """t_proj,1 by T: pairs (tokens of a step, seconds of its projections on one GPU), ascending by tokens."""

    pairs: tuple[tuple[float, float], ...]

    @property
    def per_token_s(self) -> float:
        """a = t_proj,1/T, seconds a token, over all pairs."""
        return sum(seconds for _, seconds in self.pairs) / sum(tokens for tokens, _ in self.pairs)
