"""The SLO–goodput frontier: G_card against rate with attainment beside it, and the best of tuned alternatives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from analysis.compare.types import FrontierPoint, VariantRun, VariantSpec

__all__ = ["envelope", "frontier"]


def frontier(runs: Sequence[VariantRun], specs: Sequence[VariantSpec]) -> tuple[FrontierPoint, ...]:
    """Each configuration's points, in the order of `specs` and rising rates. `variant` is the one that it tunes."""
    base = {spec.name: spec.alternative_of or spec.name for spec in specs}
    # points that offer one rate share a run
    at: defaultdict[tuple[str, float], dict[int, VariantRun]] = defaultdict(dict)
    for run in runs:
        at[run.variant, run.rate][run.replicate] = run
    names = list(base)
    return tuple(
        FrontierPoint(
            variant=base[name],
            configuration=name,
            rate=rate,
            rate_per_gpu=group[0].rate_per_gpu,
            runs=len(group),
            g_card=fmean(run.g_card for run in group),
            g_card_min=min(run.g_card for run in group),
            g_card_max=max(run.g_card for run in group),
            attainment=fmean(run.attainment for run in group),
            attainment_min=min(run.attainment for run in group),
        )
        for (name, rate), found in sorted(at.items(), key=lambda item: (names.index(item[0][0]), item[0][1]))
        for group in [list(found.values())]
    )


def envelope(points: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """The best mean G_card of each variant's alternatives at each rate per GPU ("each tuned").

    The best of several noisy means is biased upwards; each point names the configuration that reached it.
    """
    best: dict[tuple[str, float], FrontierPoint] = {}
    for point in points:
        key = point.variant, round(point.rate_per_gpu, 9)
        if key not in best or point.g_card > best[key].g_card:
            best[key] = point
    return tuple(sorted(best.values(), key=lambda point: (point.variant, point.rate_per_gpu)))
