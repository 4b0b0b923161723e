"""Statistics of an experiment repeated many times: the spread of λ*, its cost, and what would resolve the width.

A repeat is a whole search with fresh seeds. λ* takes values on the grid, so everything here counts in grid steps: the
place of λ* is its index, −1 below the range, and one above the last index where it is at least the highest rate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import variance
from typing import Annotated, Final, Literal

from pydantic import Field

from analysis.search import Outcome, exit_code

__all__ = [
    "QUANTILES",
    "WANTED_SHARE",
    "GridPlace",
    "GridPlaceCount",
    "MeanAndP90",
    "PlanRow",
    "RehearsalReport",
    "RehearsedPlan",
    "Repeat",
    "RepeatCost",
    "RequireChances",
    "SettlingPlan",
    "Summary",
    "place_of",
    "plan_row",
    "settling",
    "summarise",
]

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
class RehearsedPlan:
    """A window (s, or a cohort by count: one of them is `None`) and a number of replicates, and repeats made so."""

    window_s: float | None
    cohort: int | None
    runs: int
    repeats: tuple[Repeat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlace:
    """A rate of the grid, requests/s, or `None` and the side of the range on which λ* lies."""

    rate: float | None
    outside: Literal["below", "above"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlaceCount(GridPlace):
    """How many repeats ended at a place."""

    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanAndP90:
    """Of one quantity over the repeats."""

    mean: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatCost:
    """What the experiment would take on a live server."""

    runs: MeanAndP90
    hours: MeanAndP90
    requests: MeanAndP90
    tokens: MeanAndP90


@dataclass(frozen=True, slots=True, kw_only=True)
class RequireChances:
    """How many repeats met a required rate (requests/s), refuted it, or could not tell."""

    rate: float
    met: int
    refuted: int
    cannot_tell: Annotated[int, Field(serialization_alias="cannot tell")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the repeats say together: outcomes, λ* by quantile and by rate, how many repeats agree, and the cost.

    Shares are of all repeats: within so many grid steps of the median.
    """

    repeats: int
    outcomes: Mapping[str, int]
    quantiles: Mapping[str, GridPlace]  # empty where no repeat says where λ* lies
    landings: tuple[GridPlaceCount, ...]
    within_one_step: float
    within_two_steps: float
    cost: RepeatCost
    require: RequireChances | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """What one window (s, or a number of requests) and number of replicates give.

    `variance` is that of the place of λ*, in steps²: `None` where λ* left the range, or for fewer than two places.
    """

    window_s: float | None
    cohort: int | None
    runs: int
    repeats: int
    answered: int
    p10: GridPlace | None
    median: GridPlace | None
    p90: GridPlace | None
    within_one_step: float
    resolves: bool
    variance: float | None
    runs_made: float
    hours: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlingPlan:
    """The window (s, or a number of requests) and replicates that would resolve the width, and the hours they take."""

    window_s: float | None
    cohort: int | None
    runs: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalReport(Summary):
    """A rehearsal: what was simulated, the repeats' summary, and what other windows and replicates would give."""

    simulated: bool
    target: str
    profile: str
    slo: str
    placeholder_slo: bool
    attain: str
    width: str
    warmup_s: float
    window_s: float | None
    cohort: int | None
    runs: int
    explore: int
    plans: tuple[PlanRow, ...]


def place_of(outcome: Outcome, grid: Sequence[float]) -> int | None:
    """Where on the grid λ* lies; of a table, its largest rate that passed. `None` where nothing is known of it."""
    if outcome.name == "ABOVE_RANGE":
        return len(grid)
    if outcome.name == "BELOW_RANGE":
        return -1
    if outcome.name == "TABULATED":
        return -1 if outcome.lower is None else grid.index(outcome.lower)
    return None if outcome.capacity is None else grid.index(outcome.capacity)


def summarise(repeats: Sequence[Repeat], grid: Sequence[float], *, require: float | None = None) -> Summary:
    """The repeats' outcomes, λ* by quantile and by rate, how many repeats agree, and the cost.

    Rates in requests/s. A λ* outside of the range has the rate `None` and says on which side. Raises `ValueError` for
    no repeats.
    """
    if not repeats:
        raise ValueError("nothing was repeated")
    places = sorted(place for repeat in repeats if (place := place_of(repeat.outcome, grid)) is not None)
    median = _nearest(places, "50%")
    chances = None
    if require is not None:
        ends = Counter(_REQUIRED.get(exit_code(repeat.outcome, require)) for repeat in repeats)
        chances = RequireChances(rate=require, met=ends["met"], refuted=ends["refuted"], cannot_tell=ends[None])
    return Summary(
        repeats=len(repeats),
        outcomes=dict(Counter(repeat.outcome.name for repeat in repeats).most_common()),
        quantiles={p: _place(_nearest(places, p), grid) for p in QUANTILES} if places else {},
        landings=tuple(
            GridPlaceCount(**asdict(_place(place, grid)), repeats=count)
            for place, count in sorted(Counter(places).items())
        ),
        within_one_step=_within(places, median, 1, len(repeats)),
        within_two_steps=_within(places, median, 2, len(repeats)),
        cost=RepeatCost(
            runs=_mean_and_p90([repeat.runs for repeat in repeats]),
            hours=_mean_and_p90([repeat.seconds / 3600 for repeat in repeats]),
            requests=_mean_and_p90([repeat.requests for repeat in repeats]),
            tokens=_mean_and_p90([repeat.tokens for repeat in repeats]),
        ),
        require=chances,
    )


def plan_row(cell: RehearsedPlan, grid: Sequence[float]) -> PlanRow:
    """One row of the table that says what window and replicates buy."""
    summary = summarise(cell.repeats, grid)
    places = [place for repeat in cell.repeats if (place := place_of(repeat.outcome, grid)) is not None]
    inside = len(places) > 1 and all(0 <= place < len(grid) for place in places)
    return PlanRow(
        window_s=cell.window_s,
        cohort=cell.cohort,
        runs=cell.runs,
        repeats=summary.repeats,
        answered=len(places),
        p10=summary.quantiles.get("10%"),
        median=summary.quantiles.get("50%"),
        p90=summary.quantiles.get("90%"),
        within_one_step=summary.within_one_step,
        resolves=summary.within_one_step >= WANTED_SHARE,
        variance=variance(places) if inside else None,
        runs_made=summary.cost.runs.mean,
        hours=summary.cost.hours.mean,
        requests=summary.cost.requests.mean,
    )


def settling(rows: Sequence[PlanRow]) -> SettlingPlan | None:
    """The cheapest window and R that would resolve the width, extrapolated from rows of which none does.

    The standard deviation of a run's attainment, and with it that of ln λ*, falls with 1/√W once a window outlasts the
    queue's memory (`intervals.window_to_agree` rests on the same law): the variances v of all rows with one R give one
    constant c = mean of v·W, weighted by their repeats. A place lies at most one step from the median where λ* itself
    lies within 1.5, so that four in five do where 1.28·√(c/W) ≤ 1.5. Never less than the longest window that was
    simulated and did not resolve it. `None` where λ* left the range.
    """
    found = []
    for runs in sorted({row.runs for row in rows}):
        known = [row for row in rows if row.runs == runs and row.variance is not None]
        if not known:
            continue
        weight = sum(row.repeats for row in known)
        constant = math.fsum(row.repeats * (row.variance or 0.0) * _size(row) for row in known) / weight
        longest = max(known, key=_size)
        size = max(constant * (_Z80 / _HALF_STEPS) ** 2, _size(longest))
        by_count = longest.cohort is not None
        found.append(
            SettlingPlan(
                window_s=None if by_count else size,
                cohort=round(size) if by_count else None,
                runs=runs,
                hours=longest.hours * size / _size(longest),
            )
        )
    return min(found, key=lambda plan: plan.hours, default=None)


def _size(row: PlanRow) -> float:
    return float(row.window_s or row.cohort or 0)


def _nearest(ordered: Sequence[int], p: str) -> int:
    """Nearest rank (method, section 2); −1 of nothing."""
    if not ordered:
        return -1
    return ordered[math.ceil(Fraction(p.removesuffix("%")) / 100 * len(ordered)) - 1]


def _place(place: int, grid: Sequence[float]) -> GridPlace:
    if 0 <= place < len(grid):
        return GridPlace(rate=grid[place], outside=None)
    return GridPlace(rate=None, outside="below" if place < 0 else "above")


def _within(places: Sequence[int], median: int, steps: int, repeats: int) -> float:
    return sum(abs(place - median) <= steps for place in places) / repeats


def _mean_and_p90(values: Sequence[float]) -> MeanAndP90:
    ordered = sorted(values)
    return MeanAndP90(mean=math.fsum(ordered) / len(ordered), p90=float(ordered[math.ceil(0.9 * len(ordered)) - 1]))
