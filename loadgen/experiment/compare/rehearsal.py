"""A comparison rehearsed many times in virtual time: how often each verdict comes, and what it costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from analysis.cohort import nearest_rank
from analysis.compare.types import Comparison
from analysis.search import Bill
from analysis.units import format_duration
from loadgen.common import defaults
from loadgen.common.errors import Aborted
from loadgen.experiment.compare.memory import RehearsedComparison, rehearse_comparison
from loadgen.experiment.compare.setup import ComparisonSetup, prepare_comparison
from loadgen.experiment.forecast import bill_words
from loadgen.experiment.pool import cores_for, spread
from loadgen.experiment.progress import Progress
from loadgen.plan.seeds import derive

__all__ = ["ComparisonRehearsal", "rehearse_repeatedly"]

_SAID_EVERY_S: Final = 10.0
_QUANTILES: Final = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedVerdict:
    """How often each verdict on two variants came, and the quantiles of the difference of G_card."""

    a: str
    b: str
    label: str
    verdicts: Mapping[str, int]  # "A", "B", "no difference", "cannot tell"
    p10: float
    median: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRehearsal:
    """What N repeats of a comparison came to. λ* in requests/s, at its 10 %, 50 % and 90 % quantiles."""

    simulated: bool = True
    repeats: int
    outcomes: Mapping[str, int]
    capacities: Mapping[str, tuple[float, ...]]  # of the repeats that found one
    verdicts: tuple[RehearsedVerdict, ...]
    cost: Bill  # mean of a repeat, as it would be live

    def lines(self) -> list[str]:
        """For people."""
        ends = ", ".join(f"{count} {name}" for name, count in self.outcomes.items())
        lines = [f"SIMULATED in virtual time: {self.repeats} repeats, {ends}"]
        for name, (p10, median, p90) in self.capacities.items():
            lines.append(f"λ* of {name}: median {median:.4g} requests/s, 10 % to 90 % of repeats {p10:.4g}..{p90:.4g}")
        for one in self.verdicts:
            counts = ", ".join(f"{_word(one, name)} {count}" for name, count in one.verdicts.items())
            lines.append(
                f"{one.a} against {one.b} at {one.label}: {counts}; G_card differs by {one.median:+.2%} in the median, "
                f"10 % to 90 % of repeats {one.p10:+.2%} to {one.p90:+.2%}"
            )
        return [*lines, f"a comparison takes {bill_words(self.cost)} on average"]


def rehearse_repeatedly(
    setup: ComparisonSetup,
    repeats: int,
    *,
    progress: Progress,
    stopped: Callable[[], bool] = lambda: False,
    processes: int | None = None,
) -> ComparisonRehearsal:
    """Repeat the comparison under other seeds; what that says.

    Raises `ScenarioError` for a variant that is not `virtual:PROFILE`, `LoadgenError` as the runs do, and `Aborted` for
    Ctrl-C and where `stopped`, asked after each repeat, says so.
    """
    master = defaults.SEED if setup.scenario.seed is None else setup.scenario.seed
    seeds = derive(master, "rehearsal", repeats)
    cores = cores_for(4 * repeats, processes)  # a comparison is several searches
    names = ", ".join(one.name for one in setup)
    progress.note(f"rehearsing the comparison of {names} {repeats} times in virtual time")
    done: list[RehearsedComparison] = []
    began = said = time.monotonic()
    try:
        with closing(spread(_repeat, setup, seeds, cores)) as finished:
            for one in finished:
                done.append(one)
                if stopped():
                    raise KeyboardInterrupt
                now = time.monotonic()
                if now - said >= _SAID_EVERY_S:
                    said = now
                    left_s = (now - began) / len(done) * (repeats - len(done))
                    progress.note(f"{len(done)} of {repeats} rehearsed, at most {format_duration(max(left_s, 1))} left")
    except KeyboardInterrupt:
        raise Aborted(f"stopped by the user, with {len(done)} of {repeats} repeats made; they are not kept") from None
    return _report(setup, done)


def _repeat(setup: ComparisonSetup, seed: int) -> RehearsedComparison:
    scenario = setup.scenario.model_copy(update={"seeds": None, "seed": seed})
    return rehearse_comparison(prepare_comparison(scenario, setup.settings))


def _report(setup: ComparisonSetup, done: Sequence[RehearsedComparison]) -> ComparisonRehearsal:
    answers = [one.answer for one in done]
    own = {one.name: [c.at for a in answers for c in a.capacities if c.variant == one.name and c.at] for one in setup}
    bills = [one.cost for one in done]
    return ComparisonRehearsal(
        repeats=len(done),
        outcomes=dict(Counter(one.outcome for one in answers).most_common()),
        capacities={name: _quantiles(found) for name, found in own.items() if found},
        verdicts=_verdicts(answers),
        cost=Bill(**{name: fmean(getattr(bill, name) for bill in bills) for name in Bill.__dataclass_fields__}),
    )


def _verdicts(answers: Sequence[Comparison]) -> tuple[RehearsedVerdict, ...]:
    found: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for answer in answers:
        for one in answer.primary:
            key = one.a, one.b, one.difference.label
            found.setdefault(key, []).append((one.winner, one.difference.mean))
    verdicts = []
    for (a, b, label), each in found.items():
        p10, median, p90 = _quantiles([mean for _, mean in each])
        counts = dict(Counter(winner for winner, _ in each).most_common())
        verdicts.append(RehearsedVerdict(a=a, b=b, label=label, verdicts=counts, p10=p10, median=median, p90=p90))
    return tuple(verdicts)


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    ordered = np.sort(values)
    return tuple(float(nearest_rank(ordered, share)) for share in _QUANTILES)


def _word(one: RehearsedVerdict, winner: str) -> str:
    return {"A": f"{one.a} is better", "B": f"{one.b} is better"}.get(winner, winner)
