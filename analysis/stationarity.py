"""Does outstanding work rise? The drift of N(t), of one run, of a rate's runs, and of any sampled gauge.

N(t) is the number of requests scheduled at or before t and not ended: the client queue counts, so that a concurrency
cap cannot hide it. The drift ratio d = slope of N(t)/λ is the share of arrivals that is not being served.

Null hypothesis: N(t) wanders without trend, as a random walk does. That is what a stable queue near saturation looks
like within a window shorter than its relaxation time, and what independent residuals about a line do not describe.
With σ² the variance of N's increments over 20 equal pieces of the window, per second, and the slope by least squares
through 10 exact batch means, the slope of a Brownian motion has variance 1.2·σ²/T, so z = slope/√(1.2·σ²/T). σ² comes
from the increments about their mean: a trend does not widen it. Nothing in the test scales with how long requests stay,
which overload inflates. Method, section 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analysis.records import NS_PER_S, Floats, Ints, numbers

__all__ = [
    "BATCHES",
    "DRIFT_LIMIT",
    "RATE_Z",
    "RUN_Z",
    "Drift",
    "area_s",
    "correlation_time_s",
    "gauge_drift",
    "outstanding_drift",
    "rate_drift",
    "spans",
]

BATCHES: Final = 10
PIECES: Final = 20
DRIFT_LIMIT: Final = 0.02  # of λ
RATE_Z: Final = 1.96  # Σz/√R over all R runs of a rate
RUN_Z: Final = 3.1  # one run of several: ends gross overload early
SLOPE_VARIANCE: Final = 1.2  # of a unit Brownian motion over unit time, by least squares through its batch means
Z_MAX: Final = 99.0  # JSON has no infinity
CORRELATION_SAMPLES: Final = 2048
SOKAL_WINDOW: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A drift: `ratio` = slope/λ, and `z`, the slope over its standard deviation if N(t) wandered without trend."""

    ratio: float
    z: float

    def rises(self, limit: float) -> bool:
        """Whether d > 2 % and z > `limit`."""
        return self.ratio > DRIFT_LIMIT and self.z > limit


def spans(requests: pd.DataFrame, *, until_ns: int) -> tuple[Ints, Ints]:
    """(scheduled, ended) of the requests scheduled before `until_ns`, cut off there, as is what never ended."""
    scheduled, ended = numbers(requests, "scheduled_ns"), numbers(requests, "ended_ns")
    due = scheduled < until_ns
    ended = np.where(ended >= 0, np.minimum(ended, until_ns), until_ns)
    return scheduled[due], ended[due]


def area_s(requests: pd.DataFrame, *, until_ns: int) -> float:
    """∫N(t)dt over [0, until), request-seconds: the sum of [scheduled, ended], cut off at `until_ns`."""
    scheduled, ended = spans(requests, until_ns=until_ns)
    return float((ended - scheduled).sum() / NS_PER_S)


def correlation_time_s(requests: pd.DataFrame, *, start_ns: int, end_ns: int) -> float | None:
    """Integrated autocorrelation time of N(t) over [start, end), seconds: ∫ρ(s)ds from 0 on, 1/a for ρ = exp(−a·s).

    N is sampled at 2,048 instants. The sum over lags stops at the first that is 5 times the sum so far (Sokal's
    window), for far lags are noise. Taking the window's own mean off hides what is slower than the window: of ρ
    exponential with time τ in a window T, the sum is τ/(1 + 8τ/T) to first order, which is undone here. At most T is
    told, which is all a window can show. Simulated on M/M/∞: right on average from T = 6τ on, and there within 0.3 and
    2.3 times τ in four windows of five. `None` where N never changes.
    """
    scheduled, ended = spans(requests, until_ns=end_ns)
    at_ns = np.linspace(start_ns, end_ns, CORRELATION_SAMPLES, endpoint=False)
    outstanding = np.searchsorted(np.sort(scheduled), at_ns, side="right").astype(np.float64)
    outstanding -= np.searchsorted(np.sort(ended), at_ns, side="right")
    outstanding -= outstanding.mean()
    power = np.abs(np.fft.rfft(outstanding, 2 * CORRELATION_SAMPLES)) ** 2
    covariance = np.fft.irfft(power)[:CORRELATION_SAMPLES]
    if not end_ns > start_ns or covariance[0] < 1e-6:  # an FFT leaves some dust of a constant
        return None
    times = np.cumsum(covariance / covariance[0]) - 0.5  # trapezoids, in steps
    enough = np.arange(CORRELATION_SAMPLES) >= SOKAL_WINDOW * times
    steps = times[np.argmax(enough)] if enough.any() else times[-1]
    share = max(steps, 0.5) / CORRELATION_SAMPLES
    unseen = 1 - 2 * (SOKAL_WINDOW - 1) * share
    return float((end_ns - start_ns) / NS_PER_S * (share / unseen if unseen > share else 1.0))


def outstanding_drift(requests: pd.DataFrame, *, start_ns: int, end_ns: int, rate: float) -> Drift | None:
    """The drift of N(t) over [start, end) at offered `rate` λ; `None` where nothing was offered in it. O(n log n)."""
    scheduled, ended = spans(requests, until_ns=end_ns)
    if rate <= 0 or not end_ns > start_ns or not (scheduled >= start_ns).any():
        return None
    edges_ns = np.linspace(start_ns, end_ns, BATCHES + 1)
    area_ns = _started_before(scheduled, edges_ns) - _started_before(ended, edges_ns)
    means = np.diff(area_ns) / ((end_ns - start_ns) / BATCHES)
    pieces_ns = np.linspace(start_ns, end_ns, PIECES + 1)
    outstanding = np.searchsorted(np.sort(scheduled), pieces_ns) - np.searchsorted(np.sort(ended), pieces_ns)
    return _drift(means, np.diff(outstanding), window_s=(end_ns - start_ns) / NS_PER_S, rate=rate)


def gauge_drift(times_s: Floats, values: Floats, *, start_s: float, end_s: float, rate: float) -> Drift | None:
    """The same of a sampled gauge, such as the server's waiting requests; shapes (n,), times on the run's clock.

    `None` where a piece of the window has no sample: a gap in the scrapes decides nothing.
    """
    if rate <= 0 or not end_s > start_s:
        return None
    piece = np.floor((times_s - start_s) / (end_s - start_s) * PIECES)
    known = (piece >= 0) & (piece < PIECES) & np.isfinite(values)
    at = piece[known].astype(np.int64)
    samples = np.bincount(at, minlength=PIECES)
    if not samples.all():
        return None
    sums = np.bincount(at, weights=values[known], minlength=PIECES)
    pairs = PIECES // BATCHES
    means = sums.reshape(BATCHES, pairs).sum(axis=1) / samples.reshape(BATCHES, pairs).sum(axis=1)
    order = np.argsort(times_s[known], kind="stable")
    firsts = values[known][order][np.searchsorted(at[order], np.arange(PIECES))]
    return _drift(means, np.diff(firsts), window_s=end_s - start_s, rate=rate)


def rate_drift(runs: Sequence[Drift]) -> Drift | None:
    """The drift of a rate over its independent runs: the mean ratio, and Σz/√R. `None` of no run."""
    if not runs:
        return None
    z = sum(run.z for run in runs) / math.sqrt(len(runs))
    return Drift(ratio=sum(run.ratio for run in runs) / len(runs), z=z)


def _drift(means: Floats, increments: Floats | Ints, *, window_s: float, rate: float) -> Drift:
    step_s, piece_s = window_s / BATCHES, window_s / PIECES
    x = (np.arange(BATCHES) - (BATCHES - 1) / 2) * step_s
    slope = float(x @ means) / float(x @ x)
    deviation = math.sqrt(SLOPE_VARIANCE * float(np.var(increments, ddof=1)) / piece_s / window_s)
    z = slope / deviation if deviation > 0 else math.copysign(Z_MAX, slope) if slope else 0.0
    return Drift(ratio=slope / rate, z=min(max(z, -Z_MAX), Z_MAX))


def _started_before(at_ns: Ints, edges_ns: Floats) -> Floats:
    """Σ max(0, edge − at) for each edge: the area under the count of instants passed so far."""
    at = np.sort(at_ns).astype(np.float64)
    passed = np.searchsorted(at, edges_ns)
    area: Floats = passed * edges_ns - np.concatenate([[0.0], np.cumsum(at)])[passed]
    return area
