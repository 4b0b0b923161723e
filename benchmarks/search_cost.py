"""What a search costs and what its claims are worth, against pass curves whose truth is known.

    python benchmarks/search_cost.py [searches per row]

Each row is a number R of fresh runs, a steepness s of the pass curve p(λ) = 1/(1 + (λ/c)^s), and what a seed's luck
keeps to: every rate (`paired`, what paired seeds do at most), one rate, so that a repeat there ends alike (`fresh`), or
not even that (`noise`: nothing of what decides a run comes from its seed). The baseline is a full grid of the same
width with all R runs at each rate. The flatter the curve (the shorter the window), the more rates there are between a
good and a bad one, and the more claims lie among them.
"""

from __future__ import annotations

import statistics
import sys
import time
from random import Random

from analysis.search import CostModel, Outcome, RunRequest, Search, SearchSpec, SeedBook, expect, parse_rates
from analysis.search.expect import pass_probability
from analysis.slo import Slo
from analysis.verdict import Criteria, RunVerdict

RANGE, WIDTH = "2..18", 0.05
PASS, FAIL = RunVerdict(status="PASS", attainment=1.0), RunVerdict(status="FAIL", attainment=0.94)


def book(spec: SearchSpec) -> SeedBook:
    seeds = iter(range(10**9))
    take = lambda count: tuple(next(seeds) for _ in range(count))  # noqa: E731
    return SeedBook(
        roots=take(spec.runs),
        blocks=tuple(take(spec.runs) for _ in range(2 * len(spec.grid))),
        spares=take(spec.runs),
        sentinel=-1,
    )


def one(spec: SearchSpec, seeds: SeedBook, capacity: float, steepness: float, luck_of: str, draw: Random) -> Outcome:
    search, luck = Search(spec, seeds, Criteria(slo=Slo())), {}
    while isinstance(request := search.ask(), RunRequest):
        chance = 1.0 if request.kind == "sentinel" else pass_probability(request.rate, capacity, steepness)
        keeps = {"paired": request.seed, "fresh": (request.seed, request.rate), "noise": len(search.history)}
        passed = luck.setdefault(keeps[luck_of], draw.random()) < chance
        search.tell(request, PASS if passed else FAIL)
    return request


def main() -> None:
    searches = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print(f"range {RANGE}/s, width {WIDTH:.0%}, {searches} searches a row, c spread evenly in ln λ over the range")
    print(
        "  R  s luck    runs mean  sd  p95  --dry-run  full grid  ratio | median p  p<0.5  p<0.8 of claims| ms/search"
    )
    for runs in (3, 5, 10):
        spec = SearchSpec(rates=parse_rates(RANGE), width=WIDTH, runs=runs)
        grid, seeds = spec.grid, book(spec)
        for steepness in (6.0, 16.0, 40.0):
            for luck_of in ("paired", "fresh", "noise"):
                draw, costs, claims = Random(7), [], []
                began = time.perf_counter()
                for _ in range(searches):
                    capacity = grid[0] * (grid[-1] / grid[0]) ** draw.random()
                    outcome = one(spec, seeds, capacity, steepness, luck_of, draw)
                    costs.append(outcome.runs)
                    if outcome.capacity is not None:
                        claims.append(pass_probability(outcome.capacity, capacity, steepness))
                spent = (time.perf_counter() - began) / searches
                model = CostModel(warmup_s=20, window_s=120)
                said = expect(spec, model, paired=luck_of == "paired", steepness=steepness).expected.runs
                mean, full = statistics.fmean(costs), len(grid) * runs
                low, shaky = (sum(p < bound for p in claims) / len(claims) for bound in (0.5, 0.8))
                deviation, late = statistics.stdev(costs), sorted(costs)[int(0.95 * len(costs))]
                print(
                    f"{runs:3d} {steepness:2.0f} {luck_of:6s}"
                    f" {mean:10.1f} {deviation:4.1f} {late:4d} {said:10.1f} {full:10d} {full / mean:5.1f}x |"
                    f" {statistics.median(claims):7.3f}"
                    f" {low:7.2%} {shaky:6.1%} of {len(claims):4d} | {1000 * spent:5.1f}"
                )


if __name__ == "__main__":
    main()
