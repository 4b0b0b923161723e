"""The joint indicator I of each request, why it is 0, and the exact attainment criterion (method, sections 3 and 6)."""

from analysis.indicator.columns import (
    CERTAIN,
    broken_terms,
    certain_misses,
    joint,
    miss_reasons,
    misses_by_bound,
    tpot_undefined,
)
from analysis.indicator.rule import NEVER_NS, Bounds, attains, misses_allowed

__all__ = [
    "CERTAIN",
    "NEVER_NS",
    "Bounds",
    "attains",
    "broken_terms",
    "certain_misses",
    "joint",
    "miss_reasons",
    "misses_allowed",
    "misses_by_bound",
    "tpot_undefined",
]
