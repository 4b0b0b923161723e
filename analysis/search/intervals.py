"""What stands beside λ*: what its passes prove, where the mean of attainment crosses q, and how far apart they are.

None of it is the verdict (method, section 1): λ* is decided by the worst of R runs, the crossing by their mean.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist, stdev
from typing import Final

from analysis.verdict import RunVerdict

__all__ = ["Crossing", "mean_crossing", "pass_share_bound", "spread", "window_to_agree"]

_ALPHA: Final = 0.05


def pass_share_bound(passes: int) -> float:
    """Lower 95 % bound on the share of runs that would pass, after `passes` of as many independent runs passed.

    0.05^(1/n), the one-sided Clopper–Pearson bound for n of n (method, section 7). Raises `ValueError` for n < 1.
    """
    if passes < 1:
        raise ValueError("no pass, no bound")
    return math.exp(math.log(_ALPHA) / passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where the mean of attainment falls through q.

    rate      requests/s
    slope     −d(mean attainment)/d(ln rate) of the segment it lies in: attainment lost per e-fold of rate
    is_bound  an end of the segment rests on runs stopped at an early FAIL, whose attainment is an upper bound: so is
              the rate. The fit pools neighbouring rates, so such a run may be at another rate than the two ends
    """

    rate: float
    slope: float
    is_bound: bool


def mean_crossing(verdicts: Iterable[RunVerdict], attain: Fraction) -> Crossing | None:
    """The rate at which the mean of Â_r crosses `attain`, or `None` where the tested rates do not bracket it.

    Means at each rate are made non-increasing by isotonic least squares, weighted by the number of runs (PAVA), and
    the crossing is interpolated linearly between the last rate at or above q and the first below it. INVALID runs
    are left out.
    """
    runs: defaultdict[float, list[RunVerdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.status != "INVALID":
            runs[verdict.rate].append(verdict)
    if len(runs) < 2:
        return None
    from scipy.optimize import isotonic_regression  # takes a second to import, which most commands need not wait for

    rates, q = sorted(runs), float(attain)
    means = [math.fsum(run.attainment for run in runs[rate]) / len(runs[rate]) for rate in rates]
    fit = isotonic_regression(means, weights=[len(runs[rate]) for rate in rates], increasing=False).x
    # equal runs give equal fits only up to rounding
    below = next((k for k, value in enumerate(fit) if value < q - 1e-12), None)
    if not below:
        return None
    (low, high), (above, under) = rates[below - 1 : below + 1], (float(fit[below - 1]), float(fit[below]))
    share = min(1.0, max(0.0, (above - q) / (above - under)))
    return Crossing(
        rate=low + share * (high - low),
        slope=(above - under) / math.log(high / low),
        is_bound=any(
            run.attainment_is_bound
            for rate, value in zip(rates, fit, strict=True)
            if min(abs(value - above), abs(value - under)) < 1e-12  # pooled with an end
            for run in runs[rate]
        ),
    )


def spread(attainments: Iterable[float]) -> float | None:
    """Between-run standard deviation of Â_r (n − 1) over the valid runs of one rate and window; `None` below two."""
    shares = list(attainments)
    return stdev(shares) if len(shares) > 1 else None


def window_to_agree(*, window_s: float, sd: float, slope: float, width: float, runs: int) -> float:
    """The window, s, in which the floor of R runs would cross q at most one grid width below their mean.

    With mean attainment m(λ) and between-run standard deviation σ(W), the smallest of R runs lies about κσ below the
    mean, κ being the expected largest of R standard normals (Blom: Φ⁻¹((R − 0.375)/(R + 0.25))). The floor crosses q
    where m = q + κσ, the mean where m = q; with m falling by b = `slope` per unit of ln λ, the two are κσ/b apart in
    ln λ. A window much longer than the queue's memory gives σ(W) = `sd`·√(`window_s`/W), so κσ/b ≤ ln(1 + w) from

        W = window·(κ·sd / (b·ln(1 + w)))²

    Infinite where the slope is 0, too long where it comes from an upper bound (`Crossing.is_bound`). Raises
    `ValueError` for a window or width that is not above 0, or no runs.
    """
    if window_s <= 0 or width <= 0 or runs < 1:
        raise ValueError("a window and a width above 0 and at least one run are needed")
    kappa = max(0.0, NormalDist().inv_cdf((runs - 0.375) / (runs + 0.25)))
    if kappa * sd == 0:
        return 0.0
    return window_s * (kappa * sd / (slope * math.log1p(width))) ** 2 if slope > 0 else math.inf
