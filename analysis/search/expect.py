"""The cost of a search before it starts: the same search, played against assumed pass curves.

The prior. A run at rate λ passes with probability p(λ) = 1/(1 + (λ/c)^s): logistic in ln λ, ½ at c. c is spread evenly
in ln λ over the range, one value for each search played. The steepness s = 16 is that of the oracle queue with windows
of 300 s: the median λ* of its searches with R = 12, where p is about 0.97, is 4.75/s, for a c of 5.9/s. (60 s: 3.3/s,
so s = 6. 1800 s: 5.4/s, so s = 40.) A replicate with paired seeds keeps its luck u from rate to rate and passes iff
u < p(λ); the fresh runs that prove a rate, and with fresh seeds all runs, draw their own. A failed run that is repeated
with its seed fails again.

Early FAIL. A failing run at a rate with pass probability p ends after warm-up and a share 0.1 + 0.9·p of the window: at
the earliest moment allowed where the rate is hopeless, at the end where it nearly passed. Tables and sentinels run to
the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

from analysis.search.machine import SENTINEL_EVERY, Search
from analysis.search.types import Kind, RunRequest, SearchSpec, SeedBook
from analysis.slo import Slo
from analysis.verdict import Criteria, RunVerdict

__all__ = ["STEEPNESS", "Bill", "CostModel", "Expectation", "expect", "pass_probability"]

STEEPNESS: Final = 16.0
_FAR: Final = 100.0  # times a rate: a capacity at which no run fails by chance
_PASS = RunVerdict(status="PASS", attainment=1.0)
_FAIL = RunVerdict(status="FAIL", attainment=0.94)  # not so far off that it would not be repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """How long one run loads the target, in seconds, and how many tokens a request is (input + output, mean)."""

    warmup_s: float
    window_s: float
    sentinel_window_s: float | None = None  # None: as long as the others
    drain_s: float = 0.0  # load after the window, until the cohort is decided
    between_s: float = 0.0  # idle between runs
    tokens_per_request: float = 0.0

    def load_s(self, kind: Kind, share: float = 1.0) -> float:
        """Seconds of load of a run that ends after that share of its window (drained only if it ran to the end)."""
        short = self.sentinel_window_s if kind == "sentinel" else None
        window_s = self.window_s if short is None else short
        return self.warmup_s + window_s * share + (self.drain_s if share >= 1 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Runs, and what they take: hours on the wall, requests sent, tokens in and out."""

    runs: float = 0.0
    hours: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What `--dry-run` prints: the mean over `searches` simulated ones, and a bound if no run is INVALID.

    The bound is that of a target which fails every rate by one run, again and again, and passes its repeats.
    """

    expected: Bill
    worst: Bill
    peak_rate: float  # requests/s, the highest that may be offered
    rates: int
    searches: int
    steepness: float


def pass_probability(rate: float, capacity: float, steepness: float = STEEPNESS) -> float:
    """p(λ) of the prior; see the module's docstring."""
    return 1 / (1 + math.exp(min(700.0, steepness * math.log(rate / capacity))))


@lru_cache(maxsize=16)  # variants of one comparison are searched alike
def expect(
    spec: SearchSpec,
    cost: CostModel,
    *,
    paired: bool = True,
    steepness: float = STEEPNESS,
    searches: int = 96,
    seed: int = 1,
) -> Expectation:
    """Expected and worst-case cost of a search, the same for the same arguments."""
    grid, book, draw = spec.grid, _numbered_seeds(spec), Random(seed)
    if spec.gates:  # a lone required rate is taken to hold: what it costs to prove it, which needs no luck
        capacities = [_FAR * grid[0]]
    else:
        capacities = [grid[0] * (grid[-1] / grid[0]) ** ((i + 0.5) / searches) for i in range(searches)]
    bills = [_play(spec, book, cost, capacity, steepness, paired, draw) for capacity in capacities]
    return Expectation(
        expected=Bill(
            **{
                name: math.fsum(getattr(bill, name) for bill in bills) / len(bills)
                for name in Bill.__dataclass_fields__
            }
        ),
        worst=_worst(spec, cost),
        peak_rate=grid[-1],
        rates=len(grid),
        searches=len(bills),
        steepness=steepness,
    )


def _play(
    spec: SearchSpec, book: SeedBook, cost: CostModel, capacity: float, steepness: float, paired: bool, draw: Random
) -> Bill:
    search, runs = Search(spec, book, Criteria(slo=Slo(), replicates=spec.runs)), []
    luck = [draw.random() for _ in range(spec.runs)]
    while isinstance(request := search.ask(), RunRequest):
        chance = 1.0 if request.kind == "sentinel" else pass_probability(request.rate, capacity, steepness)
        kept = paired and request.kind == "explore"
        passed = request.kind != "recheck" and (luck[request.replicate] if kept else draw.random()) < chance
        search.tell(request, _PASS if passed else _FAIL)
        share = 1.0 if passed or not spec.early_fail else 0.1 + 0.9 * chance
        runs.append((request.rate, cost.load_s(request.kind, share)))
    return _bill(runs, cost)


def _worst(spec: SearchSpec, cost: CostModel) -> Bill:
    """Every rate explored, its proof failed by the last run, reopened by two repeats of that, and proved anew."""
    count = spec.runs if spec.tabulate else spec.explore + 2 * spec.runs + 2
    runs = [(rate, cost.load_s("explore")) for rate in spec.grid for _ in range(count)]
    if spec.tabulate and spec.require is not None:
        runs += [(spec.require, cost.load_s("prove"))] * (spec.runs + 2)
    sentinels = 1 + -(-len(runs) // SENTINEL_EVERY)
    return _bill([*runs, *[(spec.grid[0], cost.load_s("sentinel"))] * sentinels], cost)


def _bill(runs: list[tuple[float, float]], cost: CostModel) -> Bill:
    requests = math.fsum(rate * load_s for rate, load_s in runs)
    load_s = math.fsum(load_s for _, load_s in runs)
    return Bill(
        runs=len(runs),
        hours=(load_s + cost.between_s * len(runs)) / 3600,
        requests=requests,
        tokens=requests * cost.tokens_per_request,
    )


def _numbered_seeds(spec: SearchSpec) -> SeedBook:
    """Distinct numbers: these searches draw nothing from their seeds."""
    width = spec.runs
    blocks = tuple(tuple(range(c * width, (c + 1) * width)) for c in range(2 * len(spec.grid)))
    return SeedBook(roots=tuple(range(-spec.runs, 0)), blocks=blocks, spares=(), sentinel=0)
