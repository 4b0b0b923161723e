"""Statistics of an experiment repeated many times: the spread of λ*, its cost, and what would resolve the width.

A repeat is a whole search with fresh seeds. λ* takes values on the grid, so everything here counts in grid steps: the
place of λ* is its index, −1 below the range, and one above the last index where it is at least the highest rate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import variance
from typing import Any, Final

from analysis.search import Outcome, exit_code

__all__ = ["QUANTILES", "WANTED_SHARE", "Cell", "Repeat", "place_of", "plan_row", "settling", "summarise"]

QUANTILES: Final = ("5%", "10%", "25%", "50%", "75%", "90%", "95%")
WANTED_SHARE: Final = 0.8  # of repeats within one grid step of the median: then the width is resolved
_HALF_STEPS: Final = 1.5  # λ* within so many steps of the median rounds to a place at most one step away
_Z80: Final = 1.2816  # four in five of a normal law lie within so many standard deviations
_REQUIRED: Final = {0: "met", 1: "refuted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One repeat of the whole experiment, and what it would have taken on a live server."""

    outcome: Outcome
    runs: int
    seconds: float
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A window (s, or a cohort by count: one of them is `None`) and a number of replicates, and repeats made so."""

    window_s: float | None
    cohort: int | None
    runs: int
    repeats: tuple[Repeat, ...]


def place_of(outcome: Outcome, grid: Sequence[float]) -> int | None:
    """Where on the grid λ* lies; of a table, its largest rate that passed. `None` where nothing is known of it."""
    if outcome.name == "ABOVE_RANGE":
        return len(grid)
    if outcome.name == "BELOW_RANGE":
        return -1
    if outcome.name == "TABULATED":
        return -1 if outcome.lower is None else grid.index(outcome.lower)
    return None if outcome.capacity is None else grid.index(outcome.capacity)


def summarise(repeats: Sequence[Repeat], grid: Sequence[float], *, require: float | None = None) -> dict[str, Any]:
    """A JSON-ready dict: outcomes, λ* by quantile and by rate, how many repeats agree, and the bill.

    Rates in requests/s. A λ* outside of the range has the rate `None` and says on which side. Raises `ValueError` for
    no repeats.
    """
    if not repeats:
        raise ValueError("nothing was repeated")
    places = sorted(place for repeat in repeats if (place := place_of(repeat.outcome, grid)) is not None)
    median = _nearest(places, "50%")
    summary: dict[str, Any] = {
        "repeats": len(repeats),
        "outcomes": dict(Counter(repeat.outcome.name for repeat in repeats).most_common()),
        "quantiles": {p: _rate(_nearest(places, p), grid) for p in QUANTILES} if places else {},
        "landings": [{**_rate(place, grid), "repeats": count} for place, count in sorted(Counter(places).items())],
        "within_one_step": _within(places, median, 1, len(repeats)),
        "within_two_steps": _within(places, median, 2, len(repeats)),
        "cost": {
            "runs": _mean_and_p90([repeat.runs for repeat in repeats]),
            "hours": _mean_and_p90([repeat.seconds / 3600 for repeat in repeats]),
            "requests": _mean_and_p90([repeat.requests for repeat in repeats]),
            "tokens": _mean_and_p90([repeat.tokens for repeat in repeats]),
        },
    }
    if require is not None:
        ends = Counter(_REQUIRED.get(exit_code(repeat.outcome, require), "cannot tell") for repeat in repeats)
        summary["require"] = {"rate": require, **{name: ends[name] for name in ("met", "refuted", "cannot tell")}}
    return summary


def plan_row(cell: Cell, grid: Sequence[float]) -> dict[str, Any]:
    """One row of the table that says what window and replicates buy, JSON-ready.

    `variance` is that of the place of λ*, in steps²: `None` where λ* left the range, or for fewer than two places.
    """
    summary = summarise(cell.repeats, grid)
    places = [place for repeat in cell.repeats if (place := place_of(repeat.outcome, grid)) is not None]
    inside = len(places) > 1 and all(0 <= place < len(grid) for place in places)
    return {
        "window_s": cell.window_s,
        "cohort": cell.cohort,
        "runs": cell.runs,
        "repeats": summary["repeats"],
        "answered": len(places),
        **{name: summary["quantiles"].get(p) for name, p in (("p10", "10%"), ("median", "50%"), ("p90", "90%"))},
        "within_one_step": summary["within_one_step"],
        "resolves": summary["within_one_step"] >= WANTED_SHARE,
        "variance": variance(places) if inside else None,
        "runs_made": summary["cost"]["runs"]["mean"],
        "hours": summary["cost"]["hours"]["mean"],
        "requests": summary["cost"]["requests"]["mean"],
    }


def settling(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The cheapest window and R that would resolve the width, extrapolated from rows of which none does.

    The standard deviation of a run's attainment, and with it that of ln λ*, falls with 1/√W once a window outlasts the
    queue's memory (`intervals.window_to_agree` rests on the same law): the variances v of all rows with one R give one
    constant c = mean of v·W, weighted by their repeats. A place lies at most one step from the median where λ* itself
    lies within 1.5, so that four in five do where 1.28·√(c/W) ≤ 1.5. Never less than the longest window that was
    simulated and did not resolve it. `None` where λ* left the range.
    """
    found = []
    for runs in sorted({row["runs"] for row in rows}):
        known = [row for row in rows if row["runs"] == runs and row["variance"] is not None]
        if not known:
            continue
        weight = sum(row["repeats"] for row in known)
        constant = math.fsum(row["repeats"] * row["variance"] * _size(row) for row in known) / weight
        longest = max(known, key=_size)
        size = max(constant * (_Z80 / _HALF_STEPS) ** 2, _size(longest))
        by_count = longest["cohort"] is not None
        found.append(
            {
                "window_s": None if by_count else size,
                "cohort": round(size) if by_count else None,
                "runs": runs,
                "hours": longest["hours"] * size / _size(longest),
            }
        )
    return min(found, key=lambda plan: plan["hours"], default=None)


def _size(row: Mapping[str, Any]) -> float:
    return float(row["window_s"] or row["cohort"])


def _nearest(ordered: Sequence[int], p: str) -> int:
    """Nearest rank (method, section 2); −1 of nothing."""
    if not ordered:
        return -1
    return ordered[math.ceil(Fraction(p.removesuffix("%")) / 100 * len(ordered)) - 1]


def _rate(place: int, grid: Sequence[float]) -> dict[str, Any]:
    side = "below" if place < 0 else "above" if place >= len(grid) else None
    return {"rate": grid[place] if side is None else None, "outside": side}


def _within(places: Sequence[int], median: int, steps: int, repeats: int) -> float:
    return sum(abs(place - median) <= steps for place in places) / repeats


def _mean_and_p90(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"mean": math.fsum(ordered) / len(ordered), "p90": float(ordered[math.ceil(0.9 * len(ordered)) - 1])}
