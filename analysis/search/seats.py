"""Which seed each replicate runs with, and where INVALID runs lead (method, section 5).

The same seed is tried once more; then a spare takes the replicate over, of an exploring replicate at every rate. It
ends, by the last run's blame, when the spare is INVALID too, when spares are used up, or when more than max(1, R/5)
replicates would be replaced. A second target blame in a row ends it at once: seeds have no part in that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from analysis.search.types import Kind, RunRequest, SearchSpec, SeedBook
from analysis.verdict import Blame

__all__ = ["Place", "Ruling", "Seats"]

Place = tuple[Kind, int]  # the exploring or the fresh runs of a rate; rate −1: seeds that are the same at every rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What an INVALID run leads to: the same seed again, unless one of these is set."""

    end: str = ""  # why the search ends: what the run did, as a predicate
    blame: Blame = "client"  # by which it ends
    spare: int | None = None  # the seed that takes the replicate over
    everywhere: bool = False  # at every rate


class Seats:
    """The current seed of every replicate, and the INVALID runs in a row that it has had."""

    def __init__(self, spec: SearchSpec, seeds: SeedBook) -> None:
        self._runs = spec.runs
        self._seeds = seeds
        self._blames: defaultdict[tuple[Place, int], list[Blame]] = defaultdict(list)
        self._swapped: dict[tuple[Place, int], int] = {}
        self._replaced: Counter[Place] = Counter()
        self._spent = 0  # spares

    def seed(self, kind: Kind, k: int, replicate: int, block: int) -> int:
        """The replicate's current seed at rate k; `block` is that of the fresh seeds in use there."""
        if kind == "sentinel":
            return self._seeds.sentinel
        swapped = self._swapped.get((self._home((kind, k)), replicate))
        if swapped is not None:
            return swapped
        return self._seeds.root(k, replicate) if kind == "explore" else self._seeds.blocks[block][replicate]

    def invalid(self, request: RunRequest, blame: Blame) -> Ruling:
        """Book a run that was INVALID by client, workload or target."""
        blames = self._blames[(request.kind, request.rate_index), request.replicate]
        blames.append(blame)
        if blames.count("target") > 1:
            return Ruling(end="was disturbed by the target twice", blame="target")
        if len(blames) == 1:
            return Ruling()
        if len(blames) == 2 and request.kind != "sentinel":
            return self._replace(request, blame)
        return Ruling(end=f"was INVALID {len(blames)} times in a row", blame=blame)

    def valid(self, request: RunRequest) -> None:
        """End a row of INVALID runs."""
        self._blames.pop(((request.kind, request.rate_index), request.replicate), None)

    def forgive(self) -> None:
        """Forget the INVALID runs so far and how many replicates they replaced; seeds stay as they are."""
        self._blames.clear()
        self._replaced.clear()

    def clear(self, place: Place) -> None:
        """Forget what happened to the fresh seeds of a rate, which gets a new block of them."""
        for seat in [seat for seat in self._swapped if seat[0] == place]:
            del self._swapped[seat]
        for seat in [seat for seat in self._blames if seat[0] == place]:
            del self._blames[seat]
        del self._replaced[place]

    def _replace(self, request: RunRequest, blame: Blame) -> Ruling:
        kind, k = request.kind, request.rate_index
        scope: Place = (kind, -1 if kind == "explore" else k)
        self._replaced[scope] += 1
        if self._replaced[scope] > max(1, self._runs // 5):
            share = f"{self._replaced[scope]} of {self._runs} replicates would be replaced, more than a fifth"
            return Ruling(end=f"was INVALID twice, and {share}", blame=blame)
        if self._spent >= len(self._seeds.spares):
            return Ruling(end="was INVALID twice, and no declared spare seed is left", blame=blame)
        spare = self._seeds.spares[self._spent]
        self._spent += 1
        home = self._home((kind, k))
        self._swapped[home, request.replicate] = spare
        return Ruling(spare=spare, everywhere=home[1] < 0)

    def _home(self, place: Place) -> Place:
        return ("explore", -1) if place[0] == "explore" and not self._seeds.fresh else place
