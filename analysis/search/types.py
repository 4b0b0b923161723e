"""Inputs, requests and outcomes of a search: plain frozen values."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Final, Literal

from analysis.search.rates import Grid, RateList, RatePlan, RateRange
from analysis.verdict import Finding, RateVerdict

__all__ = [
    "VARIANT",
    "Kind",
    "Outcome",
    "OutcomeName",
    "RunRequest",
    "SearchSpec",
    "SeedBook",
    "StopName",
    "Support",
    "exit_code",
]

# explore: a paired seed, the same at every rate; prove: a seed of a candidate's block; recheck: a failed run again;
# paired: a run of a comparison's second phase, which no search asks for
Kind = Literal["sentinel", "explore", "prove", "recheck", "paired"]
# TABULATED: the rates of a list were measured, nothing was searched. The others: method, section 7
OutcomeName = Literal[
    "FOUND",
    "ABOVE_RANGE",
    "BELOW_RANGE",
    "TABULATED",
    "UNDECIDED",  # the runs were too short or too small to say pass or fail
    "CLIENT_LIMITED",
    "UNSTABLE_TARGET",
    "BUDGET_EXHAUSTED",
    "ABORTED",  # by the user alone
    "UNFINISHED",  # interrupted, and not resumed yet
]
# what ends a search from outside
StopName = Literal["BUDGET_EXHAUSTED", "ABORTED", "CLIENT_LIMITED", "UNSTABLE_TARGET", "UNFINISHED"]
VARIANT: Final = "main"  # of an experiment that compares nothing
Support = Literal["explored", "proved"]  # passes of exploring runs only; R passes of R fresh runs


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """What is to be searched: rates, grid width w, R fresh runs that prove a rate, and how many runs explore one.

    A list of rates is tabulated: R runs explore each; `all_runs` makes them although one of them failed. `require` is a
    rate that is put on the grid and decided first. `confirm` was the number of confirmation runs, which R fresh runs
    replace; it is accepted and has no effect. Raises `ValueError` for fewer than one run, more exploring runs than R,
    or a required rate outside of the range.
    """

    rates: RatePlan
    width: float = 0.05
    runs: int = 10
    explore: int = 1
    require: float | None = None
    all_runs: bool = False
    confirm: InitVar[int | None] = None

    def __post_init__(self, confirm: int | None) -> None:
        if self.runs < 1:
            raise ValueError(f"--runs {self.runs} is not enough; at least 1 is needed")
        if not 1 <= self.explore <= self.runs:
            raise ValueError(
                f"--explore {self.explore}: at least 1 run explores a rate, at most the {self.runs} of --runs"
            )
        rates = self._rates  # refuses an impossible width
        if self.require is not None and not rates[0] <= self.require <= rates[-1]:
            tested = f"{rates[0]:g}..{rates[-1]:g}"
            raise ValueError(f"--require {self.require:g} is not among the rates to be tested, {tested}: widen --rate")

    @property
    def tabulate(self) -> bool:
        """Whether all rates are measured to the end, with no search."""
        return isinstance(self.rates, RateList)

    @property
    def gates(self) -> bool:
        """Whether the required rate is the only one."""
        return self.tabulate and self.grid == (self.require,)

    @property
    def early_fail(self) -> bool:
        """Whether a run may end once it cannot pass any more: not where a table is to have whole runs."""
        return not self.tabulate or self.gates

    @property
    def grid(self) -> tuple[float, ...]:
        """Every rate that may be tested, rising, requests/s."""
        return self._rates if self.require is None else tuple(sorted({*self._rates, self.require}))

    @property
    def _rates(self) -> tuple[float, ...]:
        if isinstance(self.rates, RateRange):
            return Grid(lo=self.rates.lo, hi=self.rates.hi, width=self.width).rates
        return self.rates.rates

    @property
    def exploring(self) -> int:
        """Passes that a rate needs before it counts as passing: all R in a table."""
        return self.runs if self.tabulate else self.explore


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBook:
    """Every root seed the experiment may use, declared before its first run (method, section 4).

    roots     replicate r explores with roots[r] at every rate (paired), unless `fresh` names them by rate: fresh[k][r]
    blocks    blocks[c] are the R seeds that prove candidate c; two blocks per rate of the grid are always enough
    spares    taken in order, for replicates whose runs were INVALID twice
    sentinel  the one seed of every sentinel run

    Raises `ValueError` where a seed is declared twice (a repeated seed adds no evidence) or tuples are ragged.
    """

    roots: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    spares: tuple[int, ...]
    sentinel: int
    fresh: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        roots = [seed for row in self.fresh for seed in row] if self.fresh else list(self.roots)
        seeds = [*roots, *(seed for block in self.blocks for seed in block), *self.spares]
        if len(set(seeds)) < len(seeds):
            twice = next(seed for seed in seeds if seeds.count(seed) > 1)
            raise ValueError(f"seed {twice} is declared twice: a repeated seed repeats the run and adds no evidence")
        if any(len(row) != len(self.roots) for row in self.fresh):
            raise ValueError("fresh seeds must name as many roots at every rate as there are replicates")
        if len({len(block) for block in self.blocks}) > 1:
            raise ValueError("the blocks of fresh seeds must all be of one length")

    def root(self, rate_index: int, replicate: int) -> int:
        """The declared seed with which a replicate explores a rate."""
        return self.fresh[rate_index][replicate] if self.fresh else self.roots[replicate]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The run to do next. `key` is unique among the runs of its variant, `path` in the experiment.

    Both are relative paths. A variant is one of the setups that an experiment compares, each with a search of its own.
    """

    kind: Kind
    rate: float
    rate_index: int
    replicate: int  # of a sentinel: its ordinal
    block: int  # of fresh seeds, the candidate's c; -1 for runs that explore, and for sentinels
    seed: int
    attempt: int  # runs of this kind, rate and replicate that went before
    key: str
    variant: str = VARIANT

    @property
    def path(self) -> str:
        """The run's directory below `runs/`: what names it in the whole experiment."""
        return f"{self.variant}/{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a search ended, and the bracket it ended with.

    capacity      λ*: a proved rate, or None; ABOVE_RANGE: "at least this"
    proved        largest proved rate below the smallest failing or undecided one, however the search ended
    lower         largest passing rate below the smallest failing or undecided one, as firmly as `support` says
    upper         smallest failing rate; None: none failed
    upper_stands  it failed, and there is no lone failing run there that was still to be repeated
    undecided     smallest rate below `upper` that the runs there could not decide; None: there is none
    inversions    (failing rate, passing rate above it), each worth a look
    rates         exploring runs at each rate tested; proofs: the fresh runs of each candidate, in rate order
    proof         0.05^(1/n) for the n of n fresh passes at `capacity`, else None
    """

    name: OutcomeName
    reason: str
    capacity: float | None = None
    proved: float | None = None
    lower: float | None = None
    upper: float | None = None
    upper_stands: bool = False
    undecided: float | None = None
    support: Support | None = None
    inversions: tuple[tuple[float, float], ...] = ()
    rates: tuple[RateVerdict, ...] = ()
    proofs: tuple[RateVerdict, ...] = ()
    proof_passes: int = 0
    proof: float | None = None
    runs: int = 0
    findings: tuple[Finding, ...] = field(default=())


def exit_code(outcome: Outcome, require: float | None = None) -> int:
    """The exit code of `sweep`: 0 an answer, 1 `require` refuted, 3 unfit target, 4 cannot tell, 5 aborted.

    `require` (requests/s) is met only by a proved rate of at least that, and refuted by a rate of at most that whose
    failure stands, even where the search could not end: capacity lies below every failing rate.
    """
    if outcome.name in ("UNSTABLE_TARGET", "ABORTED"):
        return 3 if outcome.name == "UNSTABLE_TARGET" else 5
    if require is None:
        return 4 if outcome.name in ("UNDECIDED", "CLIENT_LIMITED", "BUDGET_EXHAUSTED", "UNFINISHED") else 0
    if outcome.proved is not None and outcome.proved >= require:
        return 0
    return 1 if outcome.upper_stands and outcome.upper is not None and outcome.upper <= require else 4
