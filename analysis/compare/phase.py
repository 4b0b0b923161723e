"""The paired phase of a comparison: which run is next, as a fold over verdicts (method, section 8).

Theory of operation
-------------------
Rates, seeds and spares are declared before the phase begins. Every variant makes a run of every replicate at every
point, all to the end, and variants of one replicate use one seed. `ask()` names the next run or the end, `tell()` takes
its verdict; `replay()` of a ledger and a live phase are the same code.

    interleaved   replicate by replicate, point by point, the variants in the order that `order` declares (ABBA for two)
    in blocks     variant by variant, for variants that cannot be up at the same time

A run counts if it is PASS or FAIL, or INVALID for thin evidence alone: too few requests to pass a rate are still
measured ones. *INVALID for client, workload or target* is repeated once with the same seed. Then the replicate's own
spare seed takes it over, at every point and for every variant, so that pairs stay pairs and no variant may swap a hard
seed for an easy one. The phase ends without a result where a run of a spare is INVALID, where more than max(1, R/5)
replicates would be replaced, and where the target was to blame twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from analysis.search.types import RunRequest
from analysis.verdict import Blame, RunVerdict

__all__ = ["PairedEnd", "PairedPhase", "PairedPlan", "Point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A rate of the paired phase: requests/s in all, by variant. A variant that is not named makes no run there."""

    label: str
    rates: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedPlan:
    """What the paired phase will measure, declared before its first run; `spares[r]` may take over replicate r.

    `order(r)` gives the variants of replicate r in the order of their runs; `None` makes all runs of a variant before
    the next one's. Raises `ValueError` for seeds that are declared twice, and unless there is a spare for each.
    """

    variants: tuple[str, ...]
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    spares: tuple[int, ...]
    order: Callable[[int], tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        declared = (*self.seeds, *self.spares)
        if len(set(declared)) < len(declared):
            raise ValueError("a seed of the paired phase is declared twice")
        if len(self.spares) != len(self.seeds):
            raise ValueError(f"{len(self.spares)} spare seeds for {len(self.seeds)} replicates: one each is needed")

    def jobs(self) -> Iterator[Job]:
        """Every run that must count, in order. Points that offer a variant one rate share its run."""
        seen = set()
        for name, point, replicate in self._order():
            job = Job(variant=name, rate=point.rates[name], replicate=replicate) if name in point.rates else None
            if job is not None and job not in seen:
                seen.add(job)
                yield job

    def own(self, pairs: Iterable[tuple[RunRequest, RunVerdict]]) -> list[tuple[RunRequest, RunVerdict]]:
        """Those of `pairs` that are jobs of this plan.

        The rates follow from the variants that are there: once one is lost, or is back, runs of the other plan remain
        in the ledgers.
        """
        jobs = frozenset(self.jobs())
        return [pair for pair in pairs if _job(pair[0]) in jobs]

    def _order(self) -> Iterator[tuple[str, Point, int]]:
        replicates = range(len(self.seeds))
        if self.order is None:
            yield from ((name, point, r) for name in self.variants for r in replicates for point in self.points)
            return
        for r in replicates:
            yield from ((name, point, r) for point in self.points for name in self.order(r))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run that must count: which variant, at which rate, with which replicate's seed."""

    variant: str
    rate: float
    replicate: int


def _job(request: RunRequest) -> Job:
    return Job(variant=request.variant, rate=request.rate, replicate=request.replicate)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEnd:
    """How the phase ended: COMPLETE, or why its runs are no evidence."""

    name: Literal["COMPLETE", "CLIENT_LIMITED", "UNSTABLE_TARGET"]
    reason: str = ""


class PairedPhase:
    """Ask/tell; the module says how."""

    def __init__(self, plan: PairedPlan) -> None:
        self.plan = plan
        self._jobs = tuple(plan.jobs())
        self._known = frozenset(self._jobs)
        self._on_spare: set[int] = set()  # replicates that their spare took over
        self._counting: dict[tuple[Job, int], tuple[RunRequest, RunVerdict]] = {}  # by job and seed
        self._attempts: Counter[Job] = Counter()
        self._blames: defaultdict[Job, list[Blame]] = defaultdict(list)  # of INVALID runs in a row
        self._end: PairedEnd | None = None

    @classmethod
    def replay(cls, plan: PairedPlan, pairs: Iterable[tuple[RunRequest, RunVerdict]]) -> Self:
        """The phase after `pairs`. Raises `ValueError` if this phase would not have asked for these runs.

        Of one variant, runs must be in their order. An end is forgotten: a resumed phase tries again. Runs at rates of
        `plan` are expected alone: see `PairedPlan.own`.
        """
        phase = cls(plan)
        for request, verdict in pairs:
            phase._book(request, verdict)
        phase.retry()
        return phase

    def retry(self) -> None:
        """Go on after an end: what made the client late, or disturbed the target, may be gone."""
        if self._end is not None:
            self._end = None
            self._blames.clear()

    @property
    def total(self) -> int:
        """Runs that must count."""
        return len(self._jobs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed that each replicate runs with now."""
        return tuple(map(self._seed, range(len(self.plan.seeds))))

    def counting(self) -> Iterator[tuple[Job, RunRequest, RunVerdict]]:
        """Every run that counts, in the order of the jobs."""
        for job in self._jobs:
            if (found := self._current(job)) is not None:
                yield job, *found

    def ask(self) -> RunRequest | PairedEnd:
        """The next run, the same one until `tell` gets its verdict; or the end."""
        if self._end is not None:
            return self._end
        job = next((job for job in self._jobs if self._current(job) is None), None)
        return PairedEnd(name="COMPLETE") if job is None else self._request(job)

    def tell(self, request: RunRequest, verdict: RunVerdict) -> None:
        """Take the verdict on the run that was asked for. Raises `ValueError` for any other run."""
        if request != (asked := self.ask()):
            there = asked.key if isinstance(asked, RunRequest) else f"none, it ended {asked.name}"
            raise ValueError(f"the run {request.path} is not the one this phase asked for ({there})")
        self._book(request, verdict)

    def _book(self, request: RunRequest, verdict: RunVerdict) -> None:
        job = _job(request)
        if job not in self._known or request.seed not in self._chain(job.replicate):
            raise ValueError(f"the run {request.path} is none of this paired phase")
        self._attempts[job] += 1
        spare = request.seed == self.plan.spares[job.replicate]
        if spare:
            self._on_spare.add(job.replicate)
        blame = verdict.blame
        if blame is None or blame == "evidence":
            self._blames.pop(job, None)
            self._counting[job, request.seed] = request, verdict
            return
        blames = self._blames[job]
        blames.append(blame)
        if blames.count("target") > 1:
            self._stop("target", request, verdict, "was disturbed twice")
        elif spare:
            self._stop(blame, request, verdict, "was INVALID, as were the runs of the seed before it")
        elif len(blames) > 1:
            self._replace(job.replicate, blame, request, verdict)

    def _replace(self, replicate: int, blame: Blame, request: RunRequest, verdict: RunVerdict) -> None:
        replicates, replaced = len(self.plan.seeds), len(self._on_spare | {replicate})
        if replaced > max(1, replicates // 5):
            many = f"was INVALID twice, and {replaced} of {replicates} replicates would be replaced"
            self._stop(blame, request, verdict, many)
        else:
            self._on_spare.add(replicate)

    def _stop(self, blame: Blame, request: RunRequest, verdict: RunVerdict, what: str) -> None:
        name: Literal["CLIENT_LIMITED", "UNSTABLE_TARGET"] = (
            "CLIENT_LIMITED" if blame == "client" else "UNSTABLE_TARGET"
        )
        where = f"{request.variant}: the run of seed {request.seed} at {request.rate:.4g}/s"
        self._end = PairedEnd(name=name, reason=f"{where} {what}: {verdict.reason}")

    def _chain(self, replicate: int) -> tuple[int, int]:
        return self.plan.seeds[replicate], self.plan.spares[replicate]

    def _seed(self, replicate: int) -> int:
        return self._chain(replicate)[replicate in self._on_spare]

    def _current(self, job: Job) -> tuple[RunRequest, RunVerdict] | None:
        return self._counting.get((job, self._seed(job.replicate)))

    def _request(self, job: Job) -> RunRequest:
        seed, attempt = self._seed(job.replicate), self._attempts[job]
        again = f"-attempt={attempt}" if attempt else ""
        return RunRequest(
            kind="paired",
            rate=job.rate,
            rate_index=-1,
            replicate=job.replicate,
            block=-1,
            seed=seed,
            attempt=attempt,
            key=f"paired/rate={job.rate:.6g}/rep={job.replicate:02d}-seed={seed}{again}",
            variant=job.variant,
        )
