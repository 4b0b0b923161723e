"""What a search knows: the runs that count at each rate, and the level they give it (method, sections 5 to 7).

Theory of operation
-------------------
A run counts if it is valid (PASS or FAIL) and has its replicate's current seed. Each rate of the grid has a level,
always recomputed from the runs that count there:

    UPPER         a run failed, or the judge failed the rate on all R (or all R_c) runs together
    UNKNOWN       fewer than min(2, R) passes
    PROVISIONAL   min(2, R) passes
    REPLICATED    all R passed, and the judge passed the rate
    CONFIRMED     and so did its R_c confirmation runs

*INVALID for client, workload or target.* The same seed is tried once more; then a spare takes the replicate over, at
every rate, so what the old seed did no longer counts and is done again. The search ends, by the last run's blame, when
the spare is INVALID too, when spares are used up, or when more than 20 % of the replicates (of R, or of a block's R_c)
would be replaced. A second target blame in a row ends it at once: seeds have no part in that.

*INVALID for thin evidence*: the run met every criterion, but is too small to be believed. The replicate keeps its seed
(another would be picked for its result), and its repeat comes after the rate's other replicates: any of them may fail,
and all R slopes together may show a rising queue, as thin evidence excuses no overload. A second thin run ends the
search without an answer there; in a table it only leaves its rate INCOMPLETE.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from typing import Final

from analysis.judge import judge_rate
from analysis.search.types import Kind, OutcomeName, RunRequest, SearchSpec, SeedBook
from analysis.verdict import Blame, Criteria, Finding, RateVerdict, RunVerdict

__all__ = ["ENDS", "End", "Evidence", "Level"]

End = tuple[OutcomeName, str]  # how the search ends, and the sentence why
Place = tuple[Kind, int]  # a rate's replicates, or its confirmation; rate −1: seeds that are the same at every rate

_REPLACED_INVERSE: Final = 5  # at most one in five replicates may be replaced
ENDS: Final[dict[Blame, OutcomeName]] = {
    "client": "CLIENT_LIMITED",
    "workload": "UNSTABLE_TARGET",  # it does not do the work it is asked: unfit, whatever the client does
    "target": "UNSTABLE_TARGET",
    "evidence": "BUDGET_EXHAUSTED",  # the window is a budget as well: no PASS is to be had within it
}


class Level(IntEnum):
    """What is known of a rate; see the module's theory of operation."""

    UPPER = -1
    UNKNOWN = 0
    PROVISIONAL = 1
    REPLICATED = 2
    CONFIRMED = 3


class Evidence:
    """Runs by rate and replicate. Raises `ValueError` for a seed book that cannot serve the spec."""

    def __init__(self, spec: SearchSpec, seeds: SeedBook, criteria: Criteria) -> None:
        self.rates = spec.grid
        self.findings: list[Finding] = []
        self.lowest_refused = ""  # why the lowest rate is UPPER whatever its own runs say: its sentinel failed
        self._levels: dict[int, Level] = {}  # of the rates that were tried: few, however fine the grid
        self._spec = spec
        self._seeds = seeds
        self._criteria = criteria
        self._counting: defaultdict[Place, dict[int, RunVerdict]] = defaultdict(dict)
        self._thin: defaultdict[Place, dict[int, RunVerdict]] = defaultdict(dict)
        self._thin_runs: Counter[tuple[Place, int]] = Counter()
        self._blames: defaultdict[tuple[Place, int], list[Blame]] = defaultdict(list)  # in a row, so far
        self._attempts: Counter[tuple[Place, int]] = Counter()
        self._candidates: list[int] = []  # rates whose confirmation began: their position is their block
        self._swapped: dict[tuple[Place, int], int] = {}
        self._replaced: Counter[Place] = Counter()
        self._spent = 0  # spares
        _check_book(spec, seeds, len(self.rates))

    # what is asked next

    def pending(self, kind: Kind, k: int) -> list[int]:
        """Replicates still to run there: new ones first, of those the ones that failed at the nearest higher rate."""
        place = (kind, k)
        thin = self._thin[place]
        missing = [r for r in range(self._needed(kind)) if r not in self._counting[place]]
        repeats = [r for r in missing if r in thin and self._thin_runs[place, r] < 2]
        failed: dict[int, int] = {}
        if kind == "search":
            for j in sorted(j for j, level in self._levels.items() if j > k and level == Level.UPPER):
                for r, verdict in self._counting["search", j].items():
                    if verdict.status == "FAIL":
                        failed.setdefault(r, j)
        return sorted((r for r in missing if r not in thin), key=lambda r: (failed.get(r, math.inf), r)) + repeats

    def block(self, k: int) -> int:
        """The confirmation block c of a rate, as the c-th candidate."""
        return self._candidates.index(k) if k in self._candidates else len(self._candidates)

    def attempts(self, kind: Kind, k: int, replicate: int) -> int:
        """Runs told so far of that replicate at that rate, of whatever seed and verdict."""
        return self._attempts[(kind, k), replicate]

    def seed(self, kind: Kind, k: int, replicate: int) -> int:
        """The replicate's current seed at a rate."""
        if kind == "sentinel":
            return self._seeds.sentinel
        swapped = self._swapped.get((self._home((kind, k)), replicate))
        if swapped is not None:
            return swapped
        return self._seeds.root(k, replicate) if kind == "search" else self._seeds.confirm(self.block(k))[replicate]

    def bracket(self) -> tuple[int | None, int | None]:
        """(smallest UPPER, largest passing rate below it) as grid indices. In a table only all R passes count."""
        upper = min((k for k, level in self._levels.items() if level == Level.UPPER), default=None)
        enough = Level.REPLICATED if self._spec.tabulate else Level.PROVISIONAL
        passing = (k for k, level in self._levels.items() if level >= enough and (upper is None or k < upper))
        return upper, max(passing, default=None)

    def level(self, k: int) -> Level:
        """What is known of a rate."""
        return self._levels.get(k, Level.UNKNOWN)

    def inversions(self) -> tuple[tuple[float, float], ...]:
        """(smallest failing rate, passing rate above it) for each of those."""
        upper = self.bracket()[0]
        if upper is None:
            return ()
        above = sorted(k for k, level in self._levels.items() if k > upper and level >= Level.PROVISIONAL)
        return tuple((self.rates[upper], self.rates[k]) for k in above)

    # what a verdict means

    def take(self, request: RunRequest, verdict: RunVerdict) -> End | None:
        """Book one run; the answer says how the search ends with it, if it does."""
        place, replicate = (request.kind, request.rate_index), request.replicate
        self._attempts[place, replicate] += 1
        if request.kind == "confirm" and request.rate_index not in self._candidates:
            self._candidates.append(request.rate_index)
        blame = (verdict.blame or "evidence") if verdict.status == "INVALID" else None
        if blame is not None and blame != "evidence":
            return self._take_invalid(request, blame, verdict.reason)
        self._blames.pop((place, replicate), None)
        if blame == "evidence":
            return self._take_thin(request, verdict)
        if request.kind != "sentinel":
            self._thin[place].pop(replicate, None)
            self._counting[place][replicate] = verdict
            self.refresh(request.rate_index)
        return None

    def refresh(self, k: int) -> None:
        """Recompute the level of a rate."""
        self._levels[k] = self._weigh(k)

    def _weigh(self, k: int) -> Level:
        search, confirm = self._counting["search", k], self._counting["confirm", k]
        if k == 0 and self.lowest_refused:
            return Level.UPPER
        if any(verdict.status == "FAIL" for runs in (search, confirm) for verdict in runs.values()):
            return Level.UPPER
        judged = {kind: self.judge(kind, k).status for kind in _KINDS if self._all_run(kind, k)}
        if "FAIL" in judged.values():
            return Level.UPPER
        if judged.get("search") == "PASS":
            return Level.CONFIRMED if judged.get("confirm") == "PASS" else Level.REPLICATED
        return Level.PROVISIONAL if len(search) >= min(2, self._spec.runs) else Level.UNKNOWN

    def judge(self, kind: Kind, k: int) -> RateVerdict:
        """The judge's word on a rate's replicates, or on its confirmation runs."""
        runs = {**self._thin[kind, k], **self._counting[kind, k]}
        needed = self._needed(kind)
        judged = judge_rate(self.rates[k], tuple(runs[r] for r in sorted(runs)), self._criteria, needed)
        if judged.status == "FAIL" and len(runs) < needed and all(v.status != "FAIL" for v in runs.values()):
            # the slopes are tested once, on all R: a test after every run would multiply its false alarms
            return replace(judged, status="INCOMPLETE", reason=f"{judged.runs} of {needed} runs passed so far")
        return judged

    def tested(self, kind: Kind) -> Iterator[RateVerdict]:
        """The judge's word on every rate with runs of a kind, rising."""
        return (self.judge(kind, k) for k in sorted(self._levels) if self._counting[kind, k] or self._thin[kind, k])

    def why(self, k: int) -> str:
        """Why a rate is UPPER, in the words of the run that failed, or of the judge on all of them."""
        failed = next((judged for kind in _KINDS if (judged := self.judge(kind, k)).status == "FAIL"), None)
        reason = failed.reason if failed is not None else self.lowest_refused if k == 0 else ""
        return reason or "a run failed"

    def name(self, k: int) -> str:
        """A rate for a sentence."""
        return f"{self.rates[k]:.4g}/s"

    def _take_thin(self, request: RunRequest, verdict: RunVerdict) -> End | None:
        place, replicate = (request.kind, request.rate_index), request.replicate
        self._thin_runs[place, replicate] += 1
        if request.kind != "sentinel":
            self._thin[place][replicate] = verdict
            self.refresh(request.rate_index)
            if self._spec.tabulate and request.kind == "search":
                return None
        if self._thin_runs[place, replicate] < 2 or self.level(request.rate_index) == Level.UPPER:
            return None
        why = f"cannot tell at {self.name(request.rate_index)}, twice the run was too small to be believed"
        return ENDS["evidence"], f"{why}; lengthen the window or the warm-up: {verdict.reason}"

    def _take_invalid(self, request: RunRequest, blame: Blame, why: str) -> End | None:
        blames = self._blames[(request.kind, request.rate_index), request.replicate]
        blames.append(blame)
        at = f"the {request.kind} run at {self.name(request.rate_index)}"
        if blames.count("target") > 1:
            return ENDS["target"], f"{at} was disturbed by the target twice: {why}"
        if len(blames) == 1:
            return None  # the same seed once more
        if len(blames) == 2 and request.kind != "sentinel":
            return self._replace(request, blame, why)
        return self._limited(blame, f"{at} was INVALID {len(blames)} times in a row: {why}")

    def _replace(self, request: RunRequest, blame: Blame, why: str) -> End | None:
        kind, k, replicate = request.kind, request.rate_index, request.replicate
        scope: Place = (kind, -1 if kind == "search" else k)
        self._replaced[scope] += 1
        if _REPLACED_INVERSE * self._replaced[scope] > self._needed(kind):
            share = f"{self._replaced[scope]} of {self._needed(kind)} replicates would be replaced"
            return self._limited(blame, f"{share}, more than 20 %; the last one at {self.name(k)}: {why}")
        if self._spent >= len(self._seeds.spares):
            return self._limited(blame, f"no declared spare seed is left for {self.name(k)}: {why}")
        spare = self._seeds.spares[self._spent]
        self._spent += 1
        home = self._home((kind, k))
        self._swapped[home, replicate] = spare
        text = f"{kind} replicate {replicate}: seed {request.seed} was INVALID twice at {self.name(k)}"
        text += f", spare seed {spare} takes its place{' at every rate' if home[1] < 0 else ''}: {why}"
        self.findings.append(Finding(check="replaced", blame=blame, severity="warning", text=text))
        # what the old seed did no longer counts
        for rate in sorted(self._levels.keys() | {k}) if home[1] < 0 else (k,):
            place = (kind, rate)
            self._thin_runs.pop((place, replicate), None)
            thin, counted = self._thin[place].pop(replicate, None), self._counting[place].pop(replicate, None)
            if thin or counted:
                self.refresh(rate)
        return None

    def _limited(self, blame: Blame, why: str) -> End:
        if blame != "client":
            return ENDS[blame], why
        lower = self.bracket()[1]
        known = "no rate passed before" if lower is None else f"capacity ≥ {self.name(lower)}, nothing known above"
        return ENDS[blame], f"{known}: {why}"

    def _home(self, place: Place) -> Place:
        return ("search", -1) if place[0] == "search" and not self._seeds.fresh else place

    def _needed(self, kind: Kind) -> int:
        return self._spec.runs if kind == "search" else self._spec.confirm

    def _all_run(self, kind: Kind, k: int) -> bool:
        runs, needed = self._counting[kind, k].keys() | self._thin[kind, k].keys(), self._needed(kind)
        return len(runs) == needed > 0


_KINDS: Final[tuple[Kind, Kind]] = ("search", "confirm")


def _check_book(spec: SearchSpec, seeds: SeedBook, rates: int) -> None:
    if len(seeds.roots) != spec.runs:
        raise ValueError(f"{len(seeds.roots)} seeds for {spec.runs} replicates: declare one for each")
    if seeds.fresh and len(seeds.fresh) < rates:
        raise ValueError(f"fresh seeds for {len(seeds.fresh)} rates, the grid has {rates}")
    if spec.confirm and (len(seeds.blocks) < rates or len(seeds.blocks[0]) != spec.confirm):
        raise ValueError(
            f"the confirmation needs {rates} blocks of {spec.confirm} seeds, one for each possible candidate"
        )
