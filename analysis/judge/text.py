"""How the rises of outstanding work and of the errors of one run, or of several together, are named in a finding."""

from __future__ import annotations

from analysis.stationarity import DRIFT_LIMIT, Drift
from analysis.verdict import Criteria

__all__ = ["error_text", "named", "rise_text", "share"]


def named(drift: Drift | None, waiting: Drift | None) -> list[tuple[str, Drift]]:
    """The two series that are tested for drift, by name, without those that were not measured."""
    both = (("outstanding work", drift), ("the server's waiting queue", waiting))
    return [(what, rise) for what, rise in both if rise is not None]


def rise_text(what: str, rise: Drift, limit: float) -> str:
    """What a rise beyond the limit of z is called in a finding."""
    return f"{what} rises by {share(rise.ratio)} of arrivals, limit {share(DRIFT_LIMIT)} (z = {rise.z:.3g} > {limit})"


def error_text(wrong: int, total: int, criteria: Criteria) -> str:
    """What too many failed requests are called in a finding."""
    failed, limit = wrong / max(total, 1), float(criteria.max_error_rate)
    return f"{wrong} of {total} requests failed ({share(failed)}), limit {share(limit)}"


def share(value: float) -> str:
    """A share as a percentage of four digits."""
    return f"{100 * value:.4g} %"
