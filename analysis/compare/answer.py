"""The answer of a comparison, from its searches and the runs of its paired phase (method, section 8).

Every two compared variants get a verdict on the primary endpoint, G_card at the λ* of each, which must not be
contradicted at the larger of both; and a second one of the best alternative of each, where there are some. Where rates
were listed there is no λ*: a single one is the primary point, of several all are exploratory. A verdict needs all pairs
that were declared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

from analysis.compare.decision import costs, decide
from analysis.compare.frontier import envelope, frontier
from analysis.compare.lone import meets
from analysis.compare.pairs import (
    EXPLORATORY,
    at_larger_rate,
    compare_capacities,
    holm_adjusted,
    paired,
    primary_verdict,
)
from analysis.compare.types import (
    NAMES,
    OWN,
    TUNED,
    CapacityPerGpu,
    Comparison,
    ComparisonOutcome,
    LoneRequests,
    PairedDifference,
    PrimaryVerdict,
    VariantRun,
    VariantSpec,
)
from analysis.report.types import Conditions

__all__ = ["Declared", "compared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was fixed before the first run. `price_per_gpu_hour` in a currency of the user's."""

    variants: tuple[VariantSpec, ...]
    replicates: int
    attain: Fraction
    indifference: float
    together: bool
    per_gpu: bool
    price_per_gpu_hour: float | None = None
    too_large_for_one_gpu: bool = False

    @property
    def bases(self) -> tuple[VariantSpec, ...]:
        """The variants that are compared; the others are alternatives of these."""
        return tuple(one for one in self.variants if one.alternative_of is None)


def compared(
    declared: Declared,
    *,
    outcome: ComparisonOutcome,
    reason: str,
    conditions: Mapping[str, Conditions],
    seeds: Sequence[int],
    lost: Mapping[str, str],
    capacities: Sequence[CapacityPerGpu],
    lone: Mapping[str, tuple[int, int]],
    runs: Sequence[VariantRun],
    notes: Iterable[str],
) -> Comparison:
    """The answer. `lone` counts lone requests and the good ones among them, by variant; `runs` are those that count.

    Raises `ValueError` for runs that are no pairs: other seeds, schedules or workloads.
    """
    specs = declared.variants
    labels = tuple(dict.fromkeys(run.label for run in runs))
    primary_labels = {OWN, TUNED} & set(labels) or (set(labels) if len(labels) == 1 else set())
    primary = tuple(
        _judged(
            paired(a, b, "g_card"),
            at_larger_rate(runs, a, b) if outcome == "COMPLETE" else (),
            declared,
            outcome,
            {one.variant: one for one in capacities},
        )
        for label in labels
        if label in primary_labels
        for a, b in _pairs(runs, label, specs)
    )
    alone = tuple(_lone(name, counts, declared.attain) for name, counts in lone.items())
    points = frontier(runs, specs)
    return Comparison(
        outcome=outcome,
        reason=reason,
        variants=specs,
        conditions=conditions,
        together=declared.together,
        per_gpu=declared.per_gpu,
        indifference=declared.indifference,
        replicates=declared.replicates,
        seeds=tuple(seeds),
        pairs_sha256=_pairs_sha256(runs),
        lost=lost,
        capacities=tuple(capacities),
        capacity_words=tuple(_capacity_words(capacities, declared.bases)),
        lone=alone,
        runs=tuple(runs),
        primary=primary,
        exploratory=holm_adjusted(
            [
                paired(a, b, endpoint)
                for label in labels
                for a, b in _pairs(runs, label, specs)
                for endpoint in EXPLORATORY
                if not (label in primary_labels and endpoint == "g_card")
            ]
        ),
        frontier=points,
        envelope=envelope(points) if len(specs) > len(declared.bases) else (),
        decision=decide(
            specs,
            primary,
            fits_one_gpu=_fits_one_gpu(declared, runs),
            single_request_meets_slo={one.variant: one.meets for one in alone if one.meets is not None},
        ),
        costs=() if declared.price_per_gpu_hour is None else costs(runs, declared.price_per_gpu_hour),
        notes=tuple(notes),
    )


def _pairs(
    runs: Iterable[VariantRun], label: str, specs: Sequence[VariantSpec]
) -> Iterator[tuple[list[VariantRun], list[VariantRun]]]:
    """The runs of every two variants at a point that have a replicate in common."""
    here = [[run for run in runs if run.label == label and run.variant == spec.name] for spec in specs]
    for a, b in combinations([group for group in here if group], 2):
        if {run.replicate for run in a} & {run.replicate for run in b}:
            yield a, b


def _judged(
    difference: PairedDifference,
    same_rate: tuple[PairedDifference, ...],
    declared: Declared,
    outcome: ComparisonOutcome,
    capacities: Mapping[str, CapacityPerGpu],
) -> PrimaryVerdict:
    d = difference
    verdict = primary_verdict(d, indifference=declared.indifference, same_rate=same_rate)
    if outcome != "COMPLETE" or d.n < declared.replicates:
        return replace(
            verdict,
            winner="cannot tell",
            replicates_needed=None,
            words=f"cannot tell: {d.n} of {declared.replicates} declared pairs of {d.a} and {d.b} are there "
            f"({outcome}), and a verdict needs all of them; so far {NAMES[d.endpoint]} differs by {d.mean:+.2%} "
            "of their mean.",
        )
    if d.label not in (OWN, TUNED):
        return verdict
    ends = {name: capacities[name].outcome for name in (d.a, d.b)}
    winner = {"A": d.a, "B": d.b}.get(verdict.winner, "")
    above = [name for name, end in ends.items() if end == "ABOVE_RANGE" and name != winner]
    below = [name for name, end in ends.items() if end == "BELOW_RANGE" and (not winner or name == winner)]
    # what it shows at the end of the range bounds it from one side only
    if not above and not below:
        open_ends = {"ABOVE_RANGE": ("above", "highest"), "BELOW_RANGE": ("below", "lowest")}
        caveats = [(name, *open_ends[end]) for name, end in ends.items() if end in open_ends]
        said = "".join(
            f" The λ* of {name} lies {side} the rates that were offered; it ran at the {end} of them."
            for name, side, end in caveats
        )
        return replace(verdict, words=verdict.words + said)
    where = [f"the λ* of {name} lies above the rates that were offered" for name in above]
    where += [f"the λ* of {name} lies below the rates that were offered" for name in below]
    return replace(
        verdict,
        winner="cannot tell",
        replicates_needed=None,
        words=f"cannot tell: {' and '.join(where)}, so {NAMES[d.endpoint]} at the λ* of each is not known; widen "
        f"--rate. At the end of the range it differs by {d.mean:+.2%} of their mean "
        f"(n = {d.n}).",
    )


def _lone(name: str, counts: tuple[int, int], attain: Fraction) -> LoneRequests:
    requests, good = counts
    return LoneRequests(variant=name, requests=requests, good=good, meets=meets(requests, good, attain))


def _capacity_words(capacities: Sequence[CapacityPerGpu], bases: Sequence[VariantSpec]) -> Iterator[str]:
    known = {one.variant: one for one in capacities}
    for a, b in combinations([known[spec.name] for spec in bases if spec.name in known], 2):
        yield compare_capacities(a, b)


def _fits_one_gpu(declared: Declared, runs: Sequence[VariantRun]) -> bool | None:
    """Whether the model fits one GPU, where a variant with a server on each GPU shows that it does."""
    if declared.too_large_for_one_gpu:
        return False
    served = {run.variant for run in runs}
    single = [one for one in declared.variants if one.gpus == one.replicas and (one.tp or 1) == (one.pp or 1) == 1]
    return True if any(one.name in served for one in single) else None


def _pairs_sha256(runs: Iterable[VariantRun]) -> str:
    """Over seed, schedule and workload of every run: what both variants of a pair met."""
    met = sorted({(run.replicate, run.rate, run.seed, run.schedule_sha256, run.workload_sha256) for run in runs})
    return hashlib.sha256(repr(met).encode()).hexdigest()
