"""The capacity search: which run is next, and when to stop, as a fold over verdicts (method, section 7).

Theory of operation
-------------------
The search does no I/O. `ask()` names the next run or the outcome, `tell()` takes that run's verdict. What it knows is a
function of the pairs that `tell` took, in order, so `replay()` of a ledger and a live search are the same code.
`evidence` owns what runs mean: a level for each rate of the grid, and what INVALID runs lead to. Here it is decided
where to go, with c the smallest rate that failed or is undecided, and l the largest passing rate below it:

    a required rate, undecided   climb to it, explore it and prove it, and repeat a lone failure on the way, before
                                 anything else
    no c                         climb the coarse rates to the first not yet passing; each is at most double the one
                                 before, so that no server is hit with more than twice what it has carried
    c the lowest rate            BELOW_RANGE if it failed, else UNDECIDED
    c and l more than 1 apart    explore the middle
    c, l neighbours, or l top    l is the candidate: R fresh runs prove it
    l proved                     repeat the one failing run that c rests on; where the failure falls, go on upwards;
                                 else FOUND (ABOVE_RANGE without c)

A failed proof makes the candidate the new c, and the same rules go on below it with the next block of fresh seeds. A
list of rates instead gets all R exploring runs at every rate (up to the first that fails), and nothing between them.

*Sentinels* (lowest rate, one seed, just long enough for 200 requests) run first, after every 10 other runs, and last.
They pass no rate and fail none: where their mean E2E moved by more than 25 % and 3 standard errors, the target changed.

It ends: a seed of a replicate takes at most four runs at a rate (two of them thin), seeds are few, a rate is reopened
once, and without INVALID runs (n + 1)(explore + 2R + 2) runs and their sentinels are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Self

from analysis.search.evidence import End, Evidence, Level
from analysis.search.intervals import pass_share_bound
from analysis.search.types import (
    VARIANT,
    Kind,
    Outcome,
    OutcomeName,
    RunRequest,
    SearchSpec,
    SeedBook,
    StopName,
    Support,
)
from analysis.verdict import Criteria, Finding, RunVerdict

__all__ = ["SENTINEL_EVERY", "Search", "coarse_steps"]

SENTINEL_EVERY: Final = 10
_MOVED_WARNING, _MOVED_LIMIT = 0.10, 0.25  # of the first sentinel's mean E2E
_MOVED_ERRORS: Final = 3  # standard errors: what moved by fewer may be luck
_OPEN_RATES_MAX: Final = 3  # undecided rates after which another one between them is not likely to be decided
_SUPPORT: Final[dict[Level, Support]] = {Level.PROVISIONAL: "explored", Level.PROVED: "proved"}


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

    def __init__(self, spec: SearchSpec, seeds: SeedBook, criteria: Criteria, *, variant: str = VARIANT) -> None:
        self._spec, self._variant = spec, variant
        self._evidence = Evidence(spec, seeds, criteria)
        rates = self._evidence.rates
        self._coarse = coarse_steps(rates)
        self._required = None if spec.require is None else rates.index(spec.require)
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
        cls,
        spec: SearchSpec,
        seeds: SeedBook,
        criteria: Criteria,
        pairs: Iterable[tuple[RunRequest, RunVerdict]],
        *,
        variant: str = VARIANT,
    ) -> Self:
        """The search after `pairs`. Raises `ValueError` if this search would not have asked for these runs.

        Where pairs follow an end by client blame, the experiment was resumed there.
        """
        search = cls(spec, seeds, criteria, variant=variant)
        for request, verdict in pairs:
            search.retry()
            search.tell(request, verdict)
        return search

    def retry(self) -> bool:
        """Go on after an end by client blame, as when what made the client late is gone; whether there was one."""
        if self._end is None or self._end[0] != "CLIENT_LIMITED":
            return False
        self._end = None
        self._evidence.forgive()
        self._next = self._decide()
        return True

    @property
    def history(self) -> tuple[tuple[RunRequest, RunVerdict], ...]:
        """Every run that `tell` took, in order: the ledger."""
        return tuple(self._history)

    def ask(self) -> RunRequest | Outcome:
        """The next run, the same one until `tell` gets its verdict; or the outcome."""
        return self._next

    def tell(self, request: RunRequest, verdict: RunVerdict) -> None:
        """Take the verdict on the run that was asked for. Raises `ValueError` for any other run."""
        if request != self._next:
            asked = self._next.key if isinstance(self._next, RunRequest) else f"none, it ended {self._next.name}"
            raise ValueError(f"the run {request.key} is not the one this search asked for ({asked})")
        self._history.append((request, verdict))
        self._since_sentinel += request.kind != "sentinel"
        self._end = self._evidence.take(request, verdict)
        if request.kind == "sentinel" and (verdict.status != "INVALID" or verdict.blame == "evidence"):
            self._end = self._take_sentinel(verdict)
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
        kind, k = place
        if kind == "recheck":
            again = self._evidence.recheck(k)
            assert again is not None
            return self._request("recheck", k, again[1], of=again[0])
        if kind == "prove":
            self._evidence.begin_proof(k)
        return self._request(kind, k, self._evidence.pending(kind, k)[0])

    def _place(self) -> tuple[Kind, int] | None:
        """Where the next run goes: its kind and rate; `None` when all is known."""
        if self._spec.tabulate:
            return self._place_in_table()
        known = self._evidence
        if (place := self._place_for_requirement()) is not None:
            return place
        ceiling, lower, upper = known.ceiling(), known.lower(), known.upper()
        if ceiling is None and (step := self._unexplored(self._coarse)) is not None:
            return "explore", step
        if ceiling == 0:
            return ("recheck", 0) if known.recheck(0) else None
        if lower is None:  # a replaced replicate took the lowest rate's evidence with it
            return "explore", 0
        if ceiling is not None and ceiling - lower > 1:
            likely = len(known.open_rates()) <= _OPEN_RATES_MAX
            return ("explore", (lower + ceiling) // 2) if likely else None
        if known.level(lower) < Level.PROVED:
            return "prove", lower
        return ("recheck", upper) if upper is not None and known.recheck(upper) else None

    def _place_for_requirement(self) -> tuple[Kind, int] | None:
        """What decides the required rate next; `None` once it is proved, or refuted by a failure that stands."""
        known, required = self._evidence, self._required
        if required is None or known.level(required) == Level.PROVED or any(map(known.stands, range(required + 1))):
            return None
        ceiling = known.ceiling()
        if ceiling is not None and ceiling <= required:
            return ("recheck", ceiling) if known.recheck(ceiling) else None
        if known.level(required) == Level.PROVISIONAL:
            return "prove", required
        step = self._unexplored(coarse_steps(known.rates[: required + 1]))
        return None if step is None else ("explore", step)

    def _unexplored(self, steps: Sequence[int]) -> int | None:
        known, lower = self._evidence, self._evidence.lower()
        above = (k for k in steps if lower is None or k > lower)
        return next((k for k in above if known.level(k) < Level.PROVISIONAL), None)

    def _place_in_table(self) -> tuple[Kind, int] | None:
        known, required = self._evidence, self._required
        if required is not None:
            if known.recheck(required):
                return "recheck", required
            if known.level(required) != Level.UPPER and known.pending("prove", required):
                return "prove", required
        for k in range(len(known.rates)):
            over = k == required or (known.level(k) == Level.UPPER and not self._spec.all_runs)
            if not over and known.pending("explore", k):
                return "explore", k
        return None

    def _request(self, kind: Kind, k: int, replicate: int, *, of: Kind | None = None) -> RunRequest:
        """`of`: the kind of the run that a recheck repeats."""
        known = self._evidence
        rate, seed, attempt = known.rates[k], known.seed(of or kind, k, replicate), known.attempts(kind, k, replicate)
        block = known.block(k) if (of or kind) == "prove" else -1
        step = {"sentinel": "sentinel/", "explore": "", "prove": f"proof={block:02d}/", "recheck": "recheck/"}[kind]
        if of is not None:  # counted on from the runs it repeats: content that follows the attempt must not come again
            attempt += known.attempts(of, k, replicate)
        if of == "prove":
            step = f"recheck={block:02d}/"
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
            variant=self._variant,
        )

    def _take_sentinel(self, verdict: RunVerdict) -> End | None:
        self._sentinels.append(verdict)
        self._since_sentinel = 0
        first, rate = self._sentinels[0], self._evidence.name(0)
        if verdict.status == "FAIL" and first.status != "FAIL":
            text = f"the sentinel run at {rate} passed at first and failed later: {verdict.reason}"
            self._sentinel_findings.append(Finding(check="sentinel", blame="target", severity="warning", text=text))
        before, now = (each.summary.get("e2e_s", {}).get("mean", math.nan) for each in (first, verdict))
        moved = now / before - 1 if before > 0 else math.nan
        if not abs(moved) > _MOVED_WARNING:  # NaN: there is nothing to compare
            return None
        errors = (first.e2e_error_s, verdict.e2e_error_s)
        noise_s = math.inf if None in errors else math.hypot(*(error for error in errors if error is not None))
        over = abs(moved) > _MOVED_LIMIT and abs(now - before) > _MOVED_ERRORS * noise_s
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
        ceiling, lower, upper = known.ceiling(), known.lower(), known.upper()
        passed = "no rate passed"
        if lower is not None:
            fresh = "fresh " if known.level(lower) == Level.PROVED else ""
            passed = f"{spec.runs} of {spec.runs} {fresh}runs passed at {known.name(lower)}"
        end = "no rate failed"
        if ceiling is not None:
            how = "failed" if ceiling == upper else "is undecided"
            end = f"{known.name(ceiling)} {how}: {known.why(ceiling)}"
        if spec.tabulate:
            if lower is None and upper is None:
                return "UNDECIDED", end
            proved = known.proved()
            if proved is not None and proved != lower:
                passed += f"; {spec.runs} of {spec.runs} fresh runs passed at {known.name(proved)}"
            unsearched = "only the listed rates were measured, nothing between them was searched"
            return "TABULATED", f"{passed}; {end}; {unsearched}{' or proved' if proved is None else ''}"
        if ceiling == 0:
            return ("BELOW_RANGE" if ceiling == upper else "UNDECIDED"), end
        if lower is None or known.level(lower) < Level.PROVED:
            rates = ", ".join(known.name(k) for k in known.open_rates())
            return "UNDECIDED", f"the runs could not decide {rates}; {end}"
        return ("ABOVE_RANGE" if ceiling is None else "FOUND"), f"{passed}; {end}"

    def _outcome(self, name: OutcomeName, reason: str) -> Outcome:
        known, rates = self._evidence, self._evidence.rates
        ceiling, lower, upper, proved = known.ceiling(), known.lower(), known.upper(), known.proved()
        level = Level.UNKNOWN if lower is None else known.level(lower)
        answered = name in ("FOUND", "ABOVE_RANGE", "TABULATED") and level == Level.PROVED
        return Outcome(
            name=name,
            reason=reason,
            capacity=rates[lower] if answered and lower is not None else None,
            proved=None if proved is None else rates[proved],
            lower=None if lower is None else rates[lower],
            upper=None if upper is None else rates[upper],
            upper_stands=upper is not None and known.stands(upper),
            undecided=None if ceiling is None or ceiling == upper else rates[ceiling],
            support=_SUPPORT.get(level),
            inversions=known.inversions(),
            rates=tuple(known.tested("explore")),
            proofs=tuple(known.tested("prove")),
            proof_passes=self._spec.runs if answered else 0,
            proof=pass_share_bound(self._spec.runs) if answered else None,
            runs=len(self._history),
            findings=(*known.findings, *self._sentinel_findings),
        )
