"""The tables and sentences of a rehearsal (see analysis.report.repeats)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from analysis.report.repeats import WANTED_SHARE, GridPlace, PlanRow, RehearsalReport, SettlingPlan, settling
from analysis.report.tables import Table
from analysis.units import format_duration

__all__ = ["rehearsal_sentences", "rehearsal_tables"]


def rehearsal_tables(report: RehearsalReport) -> list[Table]:
    """λ* by quantile, the bill, and what other windows and replicates would give."""
    tables = []
    if quantiles := report.quantiles:
        tables.append(
            Table(
                title="Where λ* lands (requests/s), quantiles over the repeats",
                columns=tuple(quantiles),
                rows=(tuple(_rate(value) for value in quantiles.values()),),
            )
        )
    cost = report.cost
    tables.append(
        Table(
            title="What it would cost on a live server",
            columns=("", "runs", "hours", "requests", "tokens"),
            rows=tuple(
                (name, f"{runs:.0f}", f"{hours:.2f}", f"{requests:,.0f}", f"{tokens:,.0f}")
                for name, runs, hours, requests, tokens in (
                    ("mean", cost.runs.mean, cost.hours.mean, cost.requests.mean, cost.tokens.mean),
                    ("p90", cost.runs.p90, cost.hours.p90, cost.requests.p90, cost.tokens.p90),
                )
            ),
            left=frozenset({""}),
        )
    )
    if report.plans:
        luck = math.sqrt(WANTED_SHARE * (1 - WANTED_SHARE) / min(row.repeats for row in report.plans))
        rows = tuple(
            (
                _measured(row),
                str(row.runs),
                *(_rate(place) for place in (row.p10, row.median, row.p90)),
                f"{row.within_one_step:.0%} of {row.repeats}",
                f"{row.runs_made:.0f}",
                f"{row.hours:.2f}",
                f"{row.requests:,.0f}",
            )
            for row in report.plans
        )
        tables.append(
            Table(
                title=f"Other windows and replicates, simulated (shares ± {100 * luck:.0f} points)",
                columns=("window", "R", "p10", "median", "p90", "within a step", "runs", "hours", "requests"),
                rows=rows,
            )
        )
    return tables


def rehearsal_sentences(report: RehearsalReport) -> list[str]:
    """The chance of each outcome, whether the width is resolved, what would resolve it, and for what that holds."""
    return list(_sentences(report))


def _sentences(report: RehearsalReport) -> Iterator[str]:
    total = report.repeats
    ends = ", ".join(f"{name} {count / total:.1%}" for name, count in report.outcomes.items())
    yield f"Outcomes of {total} repeats: {ends}."
    if (required := report.require) is not None:
        yield (
            f"--require {required.rate:g}: met {required.met / total:.1%}, refuted {required.refuted / total:.1%}, "
            f"cannot tell {required.cannot_tell / total:.1%}."
        )
    if report.quantiles:
        verdict = "is" if report.within_one_step >= WANTED_SHARE else "is not"
        yield (
            f"The width of {report.width} {verdict} resolved, which asks for {WANTED_SHARE:.0%} of repeats within "
            f"one grid step of the median: {report.within_one_step:.0%} are, {report.within_two_steps:.0%} "
            f"within two."
        )
    if report.plans:
        yield _advice(report.plans)
    else:
        yield "What other windows and replicates would give is simulated too from --rehearse 50 on."
    yield (
        f"Valid for: {report.target} (SIMULATED, no real server: {report.profile}); {report.slo} for "
        f"{report.attain} of requests; R = {report.runs} runs of {_measured(report)} after "
        f"{format_duration(report.warmup_s)} warm-up."
    )
    if report.placeholder_slo:
        yield "placeholder SLO: set --slo"


def _advice(plans: Sequence[PlanRow]) -> str:
    settled = [row for row in plans if row.resolves]
    if settled:
        best = min(settled, key=lambda row: row.hours)
        return (
            f"Cheapest of these that resolves the width: windows of {_measured(best)} with R = {best.runs}, "
            f"{best.hours:.2f} hours. λ* rises towards the long-run capacity as windows grow: compare only what was "
            f"measured with the same window and R."
        )
    plan = settling(plans)
    if plan is None:
        return "None of these resolves the width: λ* leaves the range; widen --rate."
    return (
        f"None of these resolves the width. Extrapolated, not simulated (the spread of λ* falls with the square root "
        f"of the window): {_measured(plan)} or more with R = {plan.runs} would, in about {plan.hours:.1f} hours."
    )


def _measured(row: PlanRow | SettlingPlan | RehearsalReport) -> str:
    return f"{row.cohort} requests" if row.cohort is not None else format_duration(row.window_s or 0)


def _rate(value: GridPlace | None) -> str:
    if value is None:
        return "–"
    if value.outside is not None:
        return "< range" if value.outside == "below" else "≥ range"
    return f"{value.rate:.4g}"
