"""The joint indicator I of each request, why it is 0, and the exact attainment criterion (method, sections 3 and 6)."""

from analysis.indicator.columns import attains, joint, miss_reasons, misses_allowed, misses_by_bound, tpot_undefined

__all__ = ["attains", "joint", "miss_reasons", "misses_allowed", "misses_by_bound", "tpot_undefined"]
