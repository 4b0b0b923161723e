"""The tables and sentences of a comparison's answer (see analysis.compare.answer), as plain cells, without layout."""

from __future__ import annotations

import math

from analysis.compare.decision import layout
from analysis.compare.types import (
    NAMES,
    CapacityPerGpu,
    Comparison,
    FrontierPoint,
    PairedDifference,
    Scale,
    VariantSpec,
)
from analysis.report.tables import Table

__all__ = ["comparison_sentences", "comparison_tables", "verdict_lines"]

_UNITS: dict[Scale, str] = {"relative": "%", "points": " points", "log": "%"}


def verdict_lines(answer: Comparison) -> list[str]:
    """The verdict of every two variants, the outcome where it has not ended well, and the variants that were lost."""
    simulated = [name for name, one in answer.conditions.items() if one.simulated]
    lines = [f"SIMULATED, no real server: {', '.join(simulated)}"] if simulated else []
    if answer.outcome != "COMPLETE":
        lines.append(f"{answer.outcome}: {answer.reason}.")
    lines += [f"at {one.difference.label}: {one.words}" for one in answer.primary]
    if answer.outcome == "COMPLETE" and not answer.primary:
        lines.append("no verdict: several rates were listed, so all of them are exploratory; give one rate, or a range")
    return [*lines, *(f"{name} left the comparison: {reason}" for name, reason in answer.lost.items())]


def comparison_tables(answer: Comparison) -> list[Table]:
    """The variants with their λ*, the frontier of each, and the paired differences."""
    tables = []
    if answer.capacities:
        tables.append(_capacities(answer))
    if answer.frontier:
        tables.append(_frontier("Paired runs: goodput per GPU against rate", answer.frontier))
    if answer.envelope:
        tables.append(_frontier("Each tuned: the best alternative at each rate per GPU", answer.envelope))
    if rows := [_difference(one) for one in (*(p.difference for p in answer.primary), *answer.exploratory)]:
        tables.append(
            Table(
                title="Paired differences (first − second); exploratory ones with Holm's p",
                columns=("at", "variants", "endpoint", "n", "mean", "95 % interval", "sign p", "Holm p"),
                rows=tuple(rows),
                left=frozenset({"at", "variants", "endpoint"}),
            )
        )
    return tables


def comparison_sentences(answer: Comparison) -> list[str]:
    """What the numbers can show, the decision rule, costs, and what they were measured with."""
    lines = list(answer.capacity_words)
    shown = dict.fromkeys(one.difference.words for one in answer.primary if one.difference.words)
    lines += [f"{words[0].upper()}{words[1:]}." for words in shown]
    lines += answer.decision
    lines += [_lone(one.variant, one.requests, one.good, one.meets) for one in answer.lone if one.requests]
    lines += answer.costs
    first = next(iter(answer.conditions.values()))
    how = "interleaved, all variants up" if answer.together else "one variant after the other"
    lines.append(
        f"SLO {first.slo} for {first.attain_text} of requests; {answer.replicates} replicates, {how}; zone of "
        f"indifference ±{100 * answer.indifference:.3g} %. "
        "G_card is output tokens of joint-good requests per second and GPU; relative differences are shares of the "
        "mean of both variants."
    )
    if answer.runs:
        lines.append(
            f"Both runs of a pair had the same seed, and at one total rate the same schedule and bodies "
            f"(checked; sha256 {answer.pairs_sha256[:12]} of all of them)."
        )
    if repeated := {(run.variant, run.rate, run.replicate) for run in answer.runs if run.content}:
        lines.append(
            f"{len(repeated)} runs had bodies of their own, of the same lengths: they were repeated, and the prefix "
            "cache of the target keeps what it has seen."
        )
    return [*lines, *answer.notes]


def _capacities(answer: Comparison) -> Table:
    specs = {one.name: one for one in answer.variants}
    return Table(
        title="Variants: λ* of each search (requests/s)",
        columns=("variant", "layout", "GPUs", "λ*", "fails at", "λ* per GPU", "search"),
        rows=tuple(_capacity(one, specs[one.variant]) for one in answer.capacities),
        left=frozenset({"variant", "layout", "search"}),
    )


def _capacity(one: CapacityPerGpu, spec: VariantSpec) -> tuple[str, ...]:
    upper = None if one.upper is None else one.upper * one.gpus
    tunes = f" (tunes {spec.alternative_of})" if spec.alternative_of else ""
    return (
        one.variant + tunes,
        layout(spec),
        str(one.gpus),
        *("–" if value is None else f"{value:.4g}" for value in (one.at, upper, one.lower)),
        one.outcome,
    )


def _frontier(title: str, points: tuple[FrontierPoint, ...]) -> Table:
    return Table(
        title=f"{title} (worst..best of the runs)",
        columns=("variant", "rate", "per GPU", "runs", "attainment", "G_card"),
        rows=tuple(
            (
                one.configuration,
                f"{one.rate:.4g}",
                f"{one.rate_per_gpu:.4g}",
                str(one.runs),
                f"{one.attainment:.2%} (worst {one.attainment_min:.2%})",
                f"{one.g_card:.4g} ({one.g_card_min:.4g}..{one.g_card_max:.4g})",
            )
            for one in points
        ),
        left=frozenset({"variant"}),
    )


def _difference(d: PairedDifference) -> tuple[str, ...]:
    interval = "identical" if d.identical else "–"
    if d.lo is not None and d.hi is not None:
        interval = f"{_percent(d.lo, d.scale):+.2f} to {_percent(d.hi, d.scale):+.2f}"
    return (
        d.label,
        f"{d.a} − {d.b}",
        NAMES[d.endpoint],
        str(d.n),
        f"{_percent(d.mean, d.scale):+.2f}{_UNITS[d.scale]}",
        interval,
        *("–" if p is None else f"{p:.3g}" for p in (d.sign_p, d.p_holm)),
    )


def _percent(value: float, scale: Scale) -> float:
    """A difference of mean logarithms becomes one of geometric means."""
    return 100 * (math.expm1(value) if scale == "log" else value)


def _lone(name: str, requests: int, good: int, met: bool | None) -> str:
    said = "too few to tell" if met is None else f"the SLO {'holds' if met else 'does not hold even'} without load"
    return f"{name}: {good} of {requests} requests that met no other one kept the SLO; {said}."
