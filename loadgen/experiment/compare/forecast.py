"""What a comparison will cost before it starts: a search of every variant, and the pairs (method, sections 7 and 8)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from analysis.compare.types import OWN, TUNED
from analysis.search import Bill, Outcome
from loadgen.experiment.compare.setup import ComparisonSetup, VariantSetup
from loadgen.experiment.forecast import Forecast, bill_words, forecast, run_costs

__all__ = ["ComparisonCosts", "ComparisonForecast", "forecast_comparison"]

_AGAIN = 2  # an INVALID run is repeated once; beyond that the phase ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonCosts:
    """What `loadgen compare --dry-run --json` prints."""

    variants: tuple[str, ...]
    replicates: int
    points: tuple[str, ...]
    settings: str
    searches: Bill  # expected, of all variants
    pairs: Bill  # expected
    worst: Bill  # of all
    together: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonForecast:
    """Expected and worst-case cost of both phases. `points` are where variants will be paired."""

    setup: ComparisonSetup
    searches: tuple[Forecast, ...]  # of each variant; none where rates are listed
    points: tuple[str, ...]
    expected_pairs: Bill
    worst_pairs: Bill
    settings: str

    def costs(self) -> ComparisonCosts:
        """For programs."""
        return ComparisonCosts(
            variants=tuple(one.name for one in self.setup),
            replicates=len(self.setup.seeds),
            points=self.points,
            settings=self.settings,
            searches=_sum(one.expectation.expected for one in self.searches),
            pairs=self.expected_pairs,
            worst=_sum([self.worst_pairs, *(one.expectation.worst for one in self.searches)]),
            together=self.setup.together,
        )

    def lines(self) -> list[str]:
        """For people."""
        costs = self.costs()
        count = len(self.setup.variants)
        order = (
            "interleaved" if self.setup.together else "one variant after the other, each started when it is its turn"
        )
        lines = [
            f"plan: compares {', '.join(costs.variants)}; {self.settings}",
            f"pairs: {costs.replicates} runs of each variant at {', '.join(self.points)}; {order}",
        ]
        if self.searches:
            lines.append(
                f"expected: {bill_words(costs.searches)} for the searches of {count} variants, "
                f"{bill_words(costs.pairs)} for the pairs"
            )
        else:
            lines.append(f"expected: {bill_words(costs.pairs)}")
        if any(one.settings.launch for one in self.setup):
            lines.append("the time that launched servers take to start comes on top")
        lines.append(f"worst case, with every time-out and wait used up: {bill_words(costs.worst)}")
        return [*lines, *(f"warning: {one.thin}" for one in self.searches[:1] if one.thin)]


def forecast_comparison(setup: ComparisonSetup) -> ComparisonForecast:
    """Cost of the searches as `forecast` gives it, and of the pairs at the middle of each variant's range."""
    parts = [forecast(one.setup) for one in setup]
    if setup.searches:
        # λ* is not known: as if the searches ended in the middle of the range, every variant a little below the next
        ends = {
            one.name: Outcome(name="FOUND", reason="", capacity=_middle(one) * (1 + place / 1000))
            for place, one in enumerate(setup)
        }
        plan = setup.plan(ends)
        points = [point.label for point in plan.points if point.label in (OWN, TUNED)]
        points += ["the λ* of the others", *(["the listed rates"] if setup.settings.paired_rate is not None else [])]
    else:
        plan = setup.plan({})
        points = [point.label for point in plan.points]
    jobs = [(job.variant, job.rate) for job in plan.jobs()]
    return ComparisonForecast(
        setup=setup,
        searches=tuple(parts) if setup.searches else (),
        points=tuple(points),
        expected_pairs=_sum(_run(setup[name], rate, worst=False) for name, rate in jobs),
        worst_pairs=_times(_sum(_run(setup[name], setup[name].setup.spec.grid[-1], worst=True) for name, _ in jobs)),
        settings=parts[0].settings,
    )


def _middle(variant: VariantSetup) -> float:
    grid = variant.setup.spec.grid
    return math.sqrt(grid[0] * grid[-1])


def _run(variant: VariantSetup, rate: float, *, worst: bool) -> Bill:
    cost = run_costs(variant.setup)[worst]
    load_s = cost.load_s("paired")
    requests = rate * load_s
    return Bill(
        runs=1,
        hours=(load_s + cost.between_s) / 3600,
        requests=requests,
        tokens=requests * cost.tokens_per_request,
    )


def _times(bill: Bill) -> Bill:
    return _sum([bill] * _AGAIN)


def _sum(bills: Iterable[Bill]) -> Bill:
    found = list(bills)
    return Bill(**{name: math.fsum(getattr(one, name) for one in found) for name in Bill.__dataclass_fields__})
