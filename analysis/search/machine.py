"""The capacity search: which run is next, and when to stop, as a fold over verdicts (method, section 7).

Theory of operation
-------------------
The search does no I/O. `ask()` names the next run or the outcome, `tell()` takes that run's verdict. What it knows is a
function of the pairs it was told, in order, so `replay()` of a ledger and a live search are the same code. `evidence`
owns what runs mean: a level for each rate of the grid, and what INVALID runs lead to. Here it is decided where to go:

    no rate is UPPER             climb the coarse rates to the first without min(2, R) passes; each is at most double
                                 the one before, so that no server is hit with more than twice what it has carried
    lowest rate UPPER            BELOW_RANGE
    u and l more than 1 apart    test the middle; u the smallest UPPER, l the highest passing rate below it
    u, l neighbours, or l top    l is the candidate: first its missing replicates, then its block of confirmation seeds;
                                 when all have passed, FOUND (ABOVE_RANGE without u)

Whenever a rate turns UPPER it becomes u if it is the smallest, and the same rules go on below it: after a failed
confirmation just as after a failed bisection. A list of rates instead gets all R at every rate, and then at most the
confirmation of the largest rate that passed below the smallest that failed.

*Sentinels* (lowest rate, one seed) run first, after every 10 other runs, and last. Where the first one fails, so did
the lowest rate; where a later one fails or its mean E2E moved by more than 25 %, the target has changed. Where a
search's first one is too small to be believed, twice, so will be the lowest rate's replicates: that ends it at once.

It ends: a seed of a replicate takes at most four runs at a rate (two of them thin), seeds are few, and without INVALID
runs (n + 1)(R + R_c) runs and their sentinels are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Self

from analysis.intervals import pass_share_bound
from analysis.search.evidence import End, Evidence, Level
from analysis.search.types import Kind, Outcome, OutcomeName, RunRequest, SearchSpec, SeedBook, StopName, Support
from analysis.verdict import Criteria, Finding, RunVerdict

__all__ = ["SENTINEL_EVERY", "Search", "coarse_steps"]

SENTINEL_EVERY: Final = 10
_MOVED_WARNING, _MOVED_LIMIT = 0.10, 0.25  # of the first sentinel's mean E2E
_SUPPORT: Final[dict[Level, Support]] = {
    Level.PROVISIONAL: "provisional",
    Level.REPLICATED: "replicated",
    Level.CONFIRMED: "confirmed",
}


def coarse_steps(grid: Sequence[float]) -> tuple[int, ...]:
    """Indices of the coarse pass upwards: both ends, and between them the fewest that never more than double a rate.

    Where the grid itself is coarser than that, all of it.
    """
    steps, last = [0], len(grid) - 1
    for k in range(1, last + 1):
        if k == last or grid[k + 1] > 2 * grid[steps[-1]]:
            steps.append(k)
    return tuple(steps)


class Search:
    """Ask/tell; the module says how. Raises `ValueError` for a seed book that cannot serve the spec."""

    def __init__(self, spec: SearchSpec, seeds: SeedBook, criteria: Criteria) -> None:
        self._spec = spec
        self._evidence = Evidence(spec, seeds, criteria)
        rates = self._evidence.rates
        self._coarse = coarse_steps(rates)
        # as many decimals as it takes for directories to differ wherever rates do
        gap = min((high - low for low, high in pairwise(rates)), default=1.0)
        self._decimals = max(3, math.ceil(-math.log10(gap)) + 1)
        self._history: list[tuple[RunRequest, RunVerdict]] = []
        self._sentinels: list[RunVerdict] = []
        self._since_sentinel = 0
        self._sentinel_findings: list[Finding] = []
        self._end: End | None = None
        self._next = self._decide()

    @classmethod
    def replay(
        cls, spec: SearchSpec, seeds: SeedBook, criteria: Criteria, pairs: Iterable[tuple[RunRequest, RunVerdict]]
    ) -> Self:
        """The search that was told `pairs`. Raises `ValueError` if they are not what this search would have asked."""
        search = cls(spec, seeds, criteria)
        for request, verdict in pairs:
            search.tell(request, verdict)
        return search

    @property
    def history(self) -> tuple[tuple[RunRequest, RunVerdict], ...]:
        """Every run told, in order: the ledger."""
        return tuple(self._history)

    def ask(self) -> RunRequest | Outcome:
        """The run to do next, the same one until its verdict is told; or how it ended."""
        return self._next

    def tell(self, request: RunRequest, verdict: RunVerdict) -> None:
        """Take the verdict on the run that was asked for. Raises `ValueError` for any other run."""
        if request != self._next:
            asked = self._next.key if isinstance(self._next, RunRequest) else f"none, it ended {self._next.name}"
            raise ValueError(f"the run {request.key} is not the one this search asked for ({asked})")
        self._history.append((request, verdict))
        if request.kind == "sentinel" and self._usable_sentinel(verdict):
            self._end = self._take_sentinel(verdict)
        else:
            self._since_sentinel += request.kind != "sentinel"
            self._end = self._evidence.take(request, verdict)
        self._next = self._decide()

    def stop(self, name: StopName, reason: str) -> Outcome:
        """The outcome if nothing more is run, with the bracket so far. The search itself may go on."""
        return self._next if isinstance(self._next, Outcome) else self._outcome(name, reason)

    def _decide(self) -> RunRequest | Outcome:
        if self._end is not None:
            return self._outcome(*self._end)
        place = self._place()
        last_one = place is None and self._since_sentinel > 0
        if last_one or self._since_sentinel >= SENTINEL_EVERY or not self._sentinels:
            return self._request("sentinel", 0, len(self._sentinels))
        if place is None:
            return self._outcome(*self._conclusion())
        return self._request(*place, self._evidence.pending(*place)[0])

    def _place(self) -> tuple[Kind, int] | None:
        """Where the next run goes: its kind and rate; `None` when all is known."""
        known = self._evidence
        if self._spec.tabulate:
            unfinished = next((k for k in range(len(known.rates)) if known.pending("search", k)), None)
            if unfinished is not None:
                return "search", unfinished
        upper, lower = known.bracket()
        if not self._spec.tabulate:
            if upper == 0:
                return None
            climb = (k for k in self._coarse if upper is None and known.level(k) < Level.PROVISIONAL)
            if (step := next(climb, None)) is not None:
                return "search", step
            if lower is None:  # a replaced replicate took the lowest rate's evidence with it
                return "search", 0
            if upper is not None and upper - lower > 1:
                return "search", (lower + upper) // 2
            if known.level(lower) < Level.REPLICATED:
                return "search", lower
        return ("confirm", lower) if lower is not None and self._unconfirmed(lower) else None

    def _unconfirmed(self, k: int) -> bool:
        return self._spec.confirm > 0 and self._evidence.level(k) < Level.CONFIRMED

    def _request(self, kind: Kind, k: int, replicate: int) -> RunRequest:
        known = self._evidence
        rate, seed, attempt = known.rates[k], known.seed(kind, k, replicate), known.attempts(kind, k, replicate)
        block = known.block(k) if kind == "confirm" else -1
        step = {"sentinel": "sentinel/", "search": "", "confirm": f"confirm={block:02d}/"}[kind]
        again = f"-attempt={attempt}" if attempt else ""
        return RunRequest(
            kind=kind,
            rate=rate,
            rate_index=k,
            replicate=replicate,
            block=block,
            seed=seed,
            attempt=attempt,
            key=f"rate={rate:.{self._decimals}f}/{step}rep={replicate:02d}-seed={seed}{again}",
        )

    def _usable_sentinel(self, verdict: RunVerdict) -> bool:
        # the later ones are there for their mean E2E, which needs no cohort of a size
        thin_is_enough = self._spec.tabulate or bool(self._sentinels)
        return verdict.status != "INVALID" or (verdict.blame == "evidence" and thin_is_enough)

    def _take_sentinel(self, verdict: RunVerdict) -> End | None:
        self._sentinels.append(verdict)
        self._since_sentinel = 0
        first, rate = self._sentinels[0], self._evidence.name(0)
        if verdict.status == "FAIL" and len(self._sentinels) == 1 and not self._spec.tabulate:
            self._evidence.lowest_refused = f"its sentinel run failed: {verdict.reason}"
            self._evidence.refresh(0)
        if verdict.status == "FAIL" and first.status != "FAIL":
            return "UNSTABLE_TARGET", f"the sentinel run at {rate} passed at first and fails now: {verdict.reason}"
        before, now = (each.summary.get("e2e_s", {}).get("mean", math.nan) for each in (first, verdict))
        moved = now / before - 1 if before > 0 else math.nan
        if not abs(moved) > _MOVED_WARNING:  # NaN: there is nothing to compare
            return None
        over = abs(moved) > _MOVED_LIMIT
        text = f"the sentinel run's mean E2E at {rate} moved by {moved:+.0%} since the start"
        finding = Finding(
            check="sentinel",
            blame="target",
            severity="block" if over else "warning",
            value=abs(moved),
            limit=_MOVED_LIMIT if over else _MOVED_WARNING,
            text=text,
        )
        self._sentinel_findings.append(finding)
        return ("UNSTABLE_TARGET", text) if over else None

    def _conclusion(self) -> End:
        known, spec = self._evidence, self._spec
        upper, lower = known.bracket()
        runs = f"{spec.runs} of {spec.runs} replicates"
        runs += f" and {spec.confirm} of {spec.confirm} confirmation runs" if spec.confirm else ""
        passed = "no rate passed" if lower is None else f"{runs} passed at {known.name(lower)}"
        failed = "no rate failed" if upper is None else f"{known.name(upper)} failed: {known.why(upper)}"
        if not spec.tabulate:
            name: OutcomeName = "BELOW_RANGE" if upper == 0 else "ABOVE_RANGE" if upper is None else "FOUND"
            return name, failed if upper == 0 else f"{passed}; {failed}"
        unsearched = "only the listed rates were measured, nothing between them was searched"
        return "TABULATED", f"{passed}; {failed}; {unsearched}{'' if spec.confirm else ' or confirmed'}"

    def _outcome(self, name: OutcomeName, reason: str) -> Outcome:
        known, rates = self._evidence, self._evidence.rates
        upper, lower = known.bracket()
        level = Level.UNKNOWN if lower is None else known.level(lower)
        answered = name in ("FOUND", "ABOVE_RANGE", "TABULATED") and level == Level.CONFIRMED
        return Outcome(
            name=name,
            reason=reason,
            capacity=rates[lower] if answered and lower is not None else None,
            lower=None if lower is None else rates[lower],
            upper=None if upper is None else rates[upper],
            support=_SUPPORT.get(level),
            inversions=known.inversions(),
            rates=tuple(known.tested("search")),
            confirmations=tuple(known.tested("confirm")),
            confirm_passes=self._spec.confirm if answered else 0,
            proof=pass_share_bound(self._spec.confirm) if answered else None,
            runs=len(self._history),
            findings=(*known.findings, *self._sentinel_findings),
        )
