"""Whether a cache salt makes a prompt cold: what three requests with two salts showed of a server's prefix cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadgen.target.metrics import Scrape

__all__ = ["Lookup", "SaltSupport", "judge_salt"]

Proof = Literal["proved", "no_cache", "ignored", "unproved", "refused", "untried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltSupport:
    """What is known of a server's `cache_salt`.

    `proved`: an equal prompt hit the cache under its salt and did not under a new one. `no_cache`: the server says it
    caches no prefixes, or an equal prompt under an equal salt hit nothing though it was looked up, so every prompt is
    cold. `ignored`: the new salt hit. `unproved`: hits cannot be seen. `refused`: the server answers an error to it.
    `untried`: the cache policy needs none.
    """

    proof: Proof
    text: str

    @property
    def accepted(self) -> bool:
        """Whether `cache_salt` may be sent."""
        return self.proof not in ("refused", "untried")

    @property
    def proved(self) -> bool:
        """Whether equal prompts in two runs with two salts are known to be cold."""
        return self.proof in ("proved", "no_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One request's way through the prefix cache: its own word (-1: none), and the counters before and after it."""

    cached_tokens: int
    before: Scrape | None
    after: Scrape | None

    @property
    def hits(self) -> float | None:
        """Prompt tokens found cached; `None` if neither the answer nor the counters tell."""
        if self.cached_tokens >= 0:
            return float(self.cached_tokens)
        if self.before is None or self.after is None:
            return None
        before, after = self.before.prefix_hits, self.after.prefix_hits
        return None if before is None or after is None else after - before

    @property
    def queries(self) -> float:
        """Prompt tokens that were looked up, 0 where the server does not say."""
        if self.before is None or self.after is None:
            return 0.0
        return (self.after.prefix_queries or 0.0) - (self.before.prefix_queries or 0.0)


def judge_salt(first: Lookup, same: Lookup, other: Lookup, *, prompt_tokens: int) -> SaltSupport:
    """From an equal prompt under salt A, A again and B."""
    if other.hits:
        text = f"ignored: an equal prompt with a new salt found {other.hits:.0f} cached tokens"
        return SaltSupport(proof="ignored", text=text)
    if same.hits is None or other.hits is None:
        return SaltSupport(proof="unproved", text="accepted, unproved: the server shows no prefix-cache hits")
    if same.hits > 0:
        text = f"proved: an equal prompt found {same.hits:.0f} cached tokens with its salt, 0 with a new one"
        return SaltSupport(proof="proved", text=text)
    if first.queries + same.queries >= 2 * prompt_tokens:
        text = "an equal prompt with an equal salt found nothing cached: all are cold"
        return SaltSupport(proof="no_cache", text=text)
    text = "accepted, unproved: an equal prompt with an equal salt found nothing cached either"
    return SaltSupport(proof="unproved", text=text)
