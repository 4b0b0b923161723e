"""What a search knows: the runs that count at each rate, and the level they give it (method, sections 5 to 7).

Theory of operation
-------------------
A run counts if it is valid (PASS or FAIL) and has its replicate's current seed. Each rate of the grid has a level,
always recomputed from the runs that count there:

    UPPER         a run failed, or the judge failed the rate on all R fresh (or all R exploring) runs together
    OPEN          no run failed, but one had too little evidence to pass, twice
    UNKNOWN       fewer exploring passes than asked for
    PROVISIONAL   as many exploring passes as asked for
    PROVED        R passes of R fresh runs, and the judge passed the rate

A rate that becomes the search's candidate gets the next block of R fresh seeds. It gets another block only where it was
reopened: its one failing run, repeated with the same seed, passed twice. A rate is reopened once at most.

*INVALID for client, workload or target* is counted in `seats`. Where a spare takes an exploring replicate over, what
the old seed did at any rate no longer counts and is done again. An end by client blame is not final: `forgive` lets
a resumed search try again.

*INVALID for thin evidence*: the run met every criterion, but brought too little to pass. The replicate keeps its seed
(another would be picked for its result), and its repeat comes after the rate's other replicates: any of them may fail,
and all R together may show a rising queue, as thin evidence excuses no overload. A second thin run leaves the rate
OPEN.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from fractions import Fraction
from typing import Final

from analysis.judge import judge_rate
from analysis.search.rechecks import Rechecks
from analysis.search.seats import Place, Seats
from analysis.search.types import Kind, OutcomeName, RunRequest, SearchSpec, SeedBook
from analysis.verdict import Blame, Criteria, Finding, RateVerdict, RunVerdict

__all__ = ["ENDS", "End", "Evidence", "Level"]

End = tuple[OutcomeName, str]  # how the search ends, and the sentence why

THIN_MAX: Final = 2  # runs of a replicate with too little evidence, after which its rate is OPEN
NEAR_MISS: Final = Fraction(5, 100)  # of attainment: a run that missed by more is not looked at twice
ENDS: Final[dict[Blame, OutcomeName]] = {
    "client": "CLIENT_LIMITED",
    "workload": "UNSTABLE_TARGET",  # the server does not do the requested work
    "target": "UNSTABLE_TARGET",
    "evidence": "UNDECIDED",
}
_KINDS: Final[tuple[Kind, Kind]] = ("explore", "prove")


class Level(IntEnum):
    """What is known of a rate; see the module's theory of operation."""

    UPPER = -2
    OPEN = -1
    UNKNOWN = 0
    PROVISIONAL = 1
    PROVED = 2


class Evidence:
    """Runs by rate and replicate. Raises `ValueError` for a seed book that cannot serve the spec."""

    def __init__(self, spec: SearchSpec, seeds: SeedBook, criteria: Criteria) -> None:
        self.rates = spec.grid
        self.findings: list[Finding] = []
        self._levels: dict[int, Level] = {}  # of the rates that were tried: few, however fine the grid
        self._spec = spec
        self._seeds = seeds
        self._criteria = criteria
        self._counting: defaultdict[Place, dict[int, RunVerdict]] = defaultdict(dict)
        self._thin: defaultdict[Place, dict[int, RunVerdict]] = defaultdict(dict)
        self._thin_runs: Counter[tuple[Place, int]] = Counter()
        self._keys: dict[tuple[Place, int], str] = {}  # of the run that was booked last
        self._attempts: Counter[tuple[Place, int]] = Counter()
        self._seats = Seats(spec, seeds)
        self._blocks: dict[int, int] = {}  # rate -> number of the block of fresh seeds in use there
        self._blocks_used = 0
        self._rechecks = Rechecks()
        _check_book(spec, seeds, len(self.rates))

    # what is asked next

    def pending(self, kind: Kind, k: int) -> list[int]:
        """Replicates still to run there, new ones first; of those that explore, the ones that failed higher up."""
        place = (kind, k)
        counting, thin = self._counting[place], self._thin[place]
        if kind == "explore":
            chosen = sorted({*counting, *thin})
            chosen += [r for r in self._exploring_order(k) if r not in chosen][: self._spec.exploring - len(chosen)]
        else:
            chosen = list(range(self._spec.runs))
        missing = [r for r in chosen if r not in counting]
        again = [r for r in missing if r in thin and self._thin_runs[place, r] < THIN_MAX]
        return [r for r in missing if r not in thin] + again

    def _exploring_order(self, k: int) -> list[int]:
        """Replicates, those that failed at the nearest higher rate first: they are the likeliest to fail here too."""
        failed: dict[int, int] = {}
        for j in sorted(j for j, level in self._levels.items() if j > k and level == Level.UPPER):
            for r, verdict in self._counting["explore", j].items():
                if verdict.status == "FAIL":
                    failed.setdefault(r, j)
        return sorted(range(len(self._seeds.roots)), key=lambda r: (failed.get(r, math.inf), r))

    def begin_proof(self, k: int) -> None:
        """Give the rate the next block of fresh seeds, unless one is in use there."""
        if k not in self._blocks:
            self._blocks[k] = self._blocks_used
            self._blocks_used += 1

    def block(self, k: int) -> int:
        """The block of fresh seeds in use at a rate; −1 if there is none."""
        return self._blocks.get(k, -1)

    def attempts(self, kind: Kind, k: int, replicate: int) -> int:
        """Number of recorded runs of that replicate, rate and block, of any seed and verdict."""
        return self._attempts[(kind, k), replicate]

    def seed(self, kind: Kind, k: int, replicate: int) -> int:
        """The replicate's current seed at a rate."""
        return self._seats.seed(kind, k, replicate, self.block(k))

    def recheck(self, k: int) -> tuple[Kind, int] | None:
        """Kind and replicate of the one failing run that an UPPER rate rests on, if that is to be looked at again.

        Not where two runs failed, or all of them together; where the run missed by more than 5 points of attainment;
        where it was looked at before; or where no block of fresh seeds would be left to prove the rate with.
        """
        if self._rechecks.decided(k) or self.level(k) != Level.UPPER:
            return None
        failed = [(kind, r, v) for kind in _KINDS for r, v in self._counting[kind, k].items() if v.status == "FAIL"]
        if len(failed) != 1 or self._blocks_used >= len(self._seeds.blocks):
            return None
        kind, replicate, verdict = failed[0]
        near = Fraction(repr(float(verdict.attainment))) >= self._criteria.attain - NEAR_MISS
        return (kind, replicate) if near else None

    def stands(self, k: int) -> bool:
        """Whether a rate failed and no failing run there is to be looked at again."""
        return self.level(k) == Level.UPPER and self.recheck(k) is None

    # what is known

    def ceiling(self) -> int | None:
        """The smallest rate that is UPPER or OPEN, as a grid index."""
        return min((k for k, level in self._levels.items() if level <= Level.OPEN), default=None)

    def upper(self) -> int | None:
        """The smallest rate that failed, as a grid index."""
        return min((k for k, level in self._levels.items() if level == Level.UPPER), default=None)

    def lower(self) -> int | None:
        """The largest passing rate below the ceiling, as a grid index."""
        ceiling = self.ceiling()
        passing = (k for k, level in self._levels.items() if level >= Level.PROVISIONAL)
        return max((k for k in passing if ceiling is None or k < ceiling), default=None)

    def proved(self) -> int | None:
        """The largest rate below the ceiling that R fresh runs proved, as a grid index."""
        ceiling = self.ceiling()
        proved = (k for k, level in self._levels.items() if level == Level.PROVED)
        return max((k for k in proved if ceiling is None or k < ceiling), default=None)

    def level(self, k: int) -> Level:
        """What is known of a rate."""
        return self._levels.get(k, Level.UNKNOWN)

    def open_rates(self) -> list[int]:
        """The rates that too little evidence left undecided, rising."""
        return sorted(k for k, level in self._levels.items() if level == Level.OPEN)

    def inversions(self) -> tuple[tuple[float, float], ...]:
        """(smallest failing rate, passing rate above it) for each of those."""
        upper = self.upper()
        if upper is None:
            return ()
        above = sorted(k for k, level in self._levels.items() if k > upper and level >= Level.PROVISIONAL)
        return tuple((self.rates[upper], self.rates[k]) for k in above)

    def judge(self, kind: Kind, k: int) -> RateVerdict:
        """The judge's word on a rate's exploring runs, or on its fresh runs."""
        runs = {**self._thin[kind, k], **self._counting[kind, k]}
        return replace(self._judged(kind, k), keys=tuple(self._keys[(kind, k), r] for r in sorted(runs)))

    def tested(self, kind: Kind) -> Iterator[RateVerdict]:
        """The judge's word on every rate with runs of a kind, rising."""
        return (self.judge(kind, k) for k in sorted(self._levels) if self._counting[kind, k] or self._thin[kind, k])

    def why(self, k: int) -> str:
        """Why a rate is UPPER, in the words of the run that failed, or of the judge on all; or why it is OPEN."""
        failed = next((judged for kind in _KINDS if (judged := self.judge(kind, k)).status == "FAIL"), None)
        if failed is not None:
            return failed.reason or "a run failed"
        thin = [run for kind in _KINDS for run in self._thin[kind, k].values()]
        return thin[0].reason if thin else ""

    def name(self, k: int) -> str:
        """A rate for a sentence."""
        return f"{self.rates[k]:.4g}/s"

    # what a verdict means

    def take(self, request: RunRequest, verdict: RunVerdict) -> End | None:
        """Book one run; the answer says how the search ends with it, if it does."""
        place, replicate = (request.kind, request.rate_index), request.replicate
        self._attempts[place, replicate] += 1
        blame = (verdict.blame or "evidence") if verdict.status == "INVALID" else None
        if request.kind == "recheck":
            self._take_repeat(request, verdict)
            return None
        if blame is not None and blame != "evidence":
            return self._take_invalid(request, blame, verdict.reason)
        self._seats.valid(request)
        if request.kind == "sentinel":
            return None
        self._keys[place, replicate] = request.key
        if blame == "evidence":
            self._thin_runs[place, replicate] += 1
            self._thin[place][replicate] = verdict
        else:
            self._thin[place].pop(replicate, None)
            self._counting[place][replicate] = verdict
        self._refresh(request.rate_index)
        return None

    def forgive(self) -> None:
        """Let what made the client late be past: INVALID runs so far no longer count towards an end."""
        self._seats.forgive()
        self._rechecks.forgive()

    def _judged(self, kind: Kind, k: int) -> RateVerdict:
        runs = {**self._thin[kind, k], **self._counting[kind, k]}
        return judge_rate(self.rates[k], [runs[r] for r in sorted(runs)], self._criteria, self._spec.runs)

    def _refresh(self, k: int) -> None:
        self._levels[k] = self._weigh(k)

    def _weigh(self, k: int) -> Level:
        explore, prove = self._counting["explore", k], self._counting["prove", k]
        seen = [kind for kind in _KINDS if self._counting[kind, k] or self._thin[kind, k]]
        if any(self._judged(kind, k).status == "FAIL" for kind in seen):
            return Level.UPPER
        if len(prove) == self._spec.runs:
            return Level.PROVED
        if any(self._thin_runs[(kind, k), r] >= THIN_MAX for kind in _KINDS for r in self._thin[kind, k]):
            return Level.OPEN
        return Level.PROVISIONAL if len(explore) >= self._spec.exploring else Level.UNKNOWN

    def _take_repeat(self, request: RunRequest, verdict: RunVerdict) -> None:
        k, replicate = request.rate_index, request.replicate
        place: Place = ("explore" if request.block < 0 else "prove", k)
        failed = self._counting[place][replicate].reason
        finding, reopened = self._rechecks.take(request, verdict, at=self.name(k), failed=failed)
        if finding is not None:
            self.findings.append(finding)
        if not reopened:
            return
        if place[0] == "prove":  # the rate needs a block of its own, which nothing has been seen of
            self._counting[place].clear()
            self._thin[place].clear()
            for book in (self._thin_runs, self._attempts):
                for seat in [seat for seat in book if seat[0] == place]:
                    del book[seat]
            self._seats.clear(place)
            del self._blocks[k]
        else:
            self._keys[place, replicate] = request.key
            if verdict.status == "PASS":
                self._counting[place][replicate] = verdict
            else:
                del self._counting[place][replicate]
                self._thin[place][replicate] = verdict
                self._thin_runs[place, replicate] = THIN_MAX
        self._refresh(k)

    def _take_invalid(self, request: RunRequest, blame: Blame, why: str) -> End | None:
        kind, k, replicate = request.kind, request.rate_index, request.replicate
        ruling = self._seats.invalid(request, blame)
        if ruling.end:
            return self._limited(ruling.blame, f"the {kind} run at {self.name(k)} {ruling.end}: {why}")
        if ruling.spare is None:
            return None
        text = f"{kind} replicate {replicate}: seed {request.seed} was INVALID twice at {self.name(k)}, spare seed "
        text += f"{ruling.spare} takes its place{' at every rate' if ruling.everywhere else ''}: {why}"
        self.findings.append(Finding(check="replaced", blame=blame, severity="warning", text=text))
        # what the old seed did no longer counts
        for rate in sorted(self._levels.keys() | {k}) if ruling.everywhere else (k,):
            place = (kind, rate)
            self._thin_runs.pop((place, replicate), None)
            thin, counted = self._thin[place].pop(replicate, None), self._counting[place].pop(replicate, None)
            if thin or counted:
                self._refresh(rate)
        return None

    def _limited(self, blame: Blame, why: str) -> End:
        if blame != "client":
            return ENDS[blame], why
        lower, proved = self.lower(), self.proved()
        if proved is not None:
            known = f"capacity ≥ {self.name(proved)}, nothing known above"
        elif lower is not None:
            known = f"no rate is proved; exploring runs passed at up to {self.name(lower)}"
        else:
            known = "no rate passed before"
        return ENDS[blame], f"{known}: {why}"


def _check_book(spec: SearchSpec, seeds: SeedBook, rates: int) -> None:
    if len(seeds.roots) < spec.exploring:
        raise ValueError(f"{len(seeds.roots)} seeds for {spec.exploring} exploring runs: declare one for each")
    if seeds.fresh and len(seeds.fresh) < rates:
        raise ValueError(f"fresh seeds for {len(seeds.fresh)} rates, the grid has {rates}")
    proves = not spec.tabulate or spec.require is not None
    if proves and (len(seeds.blocks) < (1 if spec.tabulate else rates) or len(seeds.blocks[0]) != spec.runs):
        raise ValueError(f"the proof needs {rates} blocks of {spec.runs} seeds, one for each possible candidate")
