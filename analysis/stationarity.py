"""Does outstanding work rise? The drift of N(t), of one run, of a rate's runs, and of any sampled gauge.

N(t) is the number of requests scheduled at or before t and not ended: the client queue counts, so that a concurrency
cap cannot hide it. The drift ratio d = slope of N(t)/λ is the share of arrivals that is not being served. The measured
window is cut into K = 10 batches; the slope is least squares through the batch means, which are exact time averages
for records and sample averages for a gauge. Batches of at least 3 mean residence times are close to independent; with
shorter ones a run's own test would fire on stable runs, so the run is *undecided* and only the rate-level test, over
independent runs, decides. Method, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtr

from analysis.records import NS_PER_S, Floats, Ints, numbers

__all__ = [
    "BATCHES",
    "DRIFT_LIMIT",
    "SIGNIFICANCE",
    "Drift",
    "RateDrift",
    "area_s",
    "correlation_time_s",
    "drift",
    "mean_residence_s",
    "outstanding_drift",
    "rate_drift",
    "spans",
]

BATCHES: Final = 10
DRIFT_LIMIT: Final = 0.02  # of λ
SIGNIFICANCE: Final = 0.05
RESIDENCES_PER_BATCH: Final = 3
MIN_RUNS: Final = 3  # of a rate-level test
CORRELATION_SAMPLES: Final = 2048
SOKAL_WINDOW: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One run's drift: `ratio` = slope/λ, `p` of the one-sided t-test on the slope (8 degrees of freedom).

    `needed_window_s` is the window from which on this run's own test may decide.
    """

    state: Literal["ok", "rising", "undecided"]
    ratio: float
    p: float
    needed_window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDrift:
    """A rate's drift over its independent runs: mean of the ratios, p of the one-sided t-test on them."""

    rising: bool
    ratio: float
    p: float


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


def mean_residence_s(requests: pd.DataFrame, *, start_ns: int, end_ns: int) -> float:
    """Mean time from scheduled to ended of what was scheduled in [start, end), seconds; NaN of nothing.

    A request that never ended counts as lasting until the latest instant of the table.
    """
    scheduled, ended = numbers(requests, "scheduled_ns"), numbers(requests, "ended_ns")
    among = (scheduled >= start_ns) & (scheduled < end_ns)
    if not among.any():
        return float("nan")
    latest = max(int(ended.max()), int(scheduled.max()))
    return float((np.where(ended >= 0, ended, latest) - scheduled)[among].mean() / NS_PER_S)


def outstanding_drift(
    requests: pd.DataFrame, *, start_ns: int, end_ns: int, rate: float, replicates: int
) -> Drift | None:
    """The run-level test of N(t) over [start, end) at offered `rate` λ, one of `replicates` R runs.

    Rising: d > 2 % and p < 0.05/R. `None` where nothing was offered in the window. O(n log n).
    """
    residence_s = mean_residence_s(requests, start_ns=start_ns, end_ns=end_ns)
    if rate <= 0 or np.isnan(residence_s):
        return None
    edges_ns = np.linspace(start_ns, end_ns, BATCHES + 1)
    scheduled, ended = spans(requests, until_ns=end_ns)
    area_ns = _started_before(scheduled, edges_ns) - _started_before(ended, edges_ns)
    window_s = (end_ns - start_ns) / NS_PER_S
    means = np.diff(area_ns) / ((end_ns - start_ns) / BATCHES)
    return _run_level(means, window_s=window_s, rate=rate, residence_s=residence_s, replicates=replicates)


def drift(
    times_s: Floats,
    values: Floats,
    *,
    start_s: float,
    end_s: float,
    rate: float,
    residence_s: float,
    replicates: int,
) -> Drift | None:
    """The same test of a sampled gauge, such as the server's waiting requests; shapes (n,), times on the run's clock.

    `None` where a batch has no sample: a gap in the scrapes is no evidence.
    """
    if rate <= 0 or not end_s > start_s:
        return None
    batch = np.floor((times_s - start_s) / (end_s - start_s) * BATCHES)
    known = (batch >= 0) & (batch < BATCHES) & np.isfinite(values)
    at = batch[known].astype(np.int64)
    samples = np.bincount(at, minlength=BATCHES)
    if not samples.all():
        return None
    means = np.bincount(at, weights=values[known], minlength=BATCHES) / samples
    return _run_level(means, window_s=end_s - start_s, rate=rate, residence_s=residence_s, replicates=replicates)


def rate_drift(ratios: Sequence[float]) -> RateDrift | None:
    """The rate-level test on the drift ratios of independent runs at one rate; `None` for fewer than 3.

    Rising: their mean > 2 % and a one-sided t-test of mean > 0 gives p < 0.05.
    """
    if len(ratios) < MIN_RUNS:
        return None
    among = np.asarray(ratios, dtype=np.float64)
    mean = float(among.mean())
    p = _p_above_zero(mean, float(among.std(ddof=1)) / np.sqrt(len(among)), len(among) - 1)
    return RateDrift(rising=mean > DRIFT_LIMIT and p < SIGNIFICANCE, ratio=mean, p=p)


def _run_level(means: Floats, *, window_s: float, rate: float, residence_s: float, replicates: int) -> Drift:
    slope_per_s, p = _slope(means, window_s / BATCHES)
    ratio = slope_per_s / rate
    needed_window_s = BATCHES * RESIDENCES_PER_BATCH * residence_s
    state: Literal["ok", "rising", "undecided"] = "ok"
    if window_s < needed_window_s:
        state = "undecided"
    elif ratio > DRIFT_LIMIT and p < SIGNIFICANCE / max(replicates, 1):
        state = "rising"
    return Drift(state=state, ratio=ratio, p=p, needed_window_s=needed_window_s)


def _started_before(at_ns: Ints, edges_ns: Floats) -> Floats:
    """Σ max(0, edge − at) for each edge: the area under the count of instants passed so far."""
    at = np.sort(at_ns).astype(np.float64)
    passed = np.searchsorted(at, edges_ns)
    area: Floats = passed * edges_ns - np.concatenate([[0.0], np.cumsum(at)])[passed]
    return area


def _slope(means: Floats, step_s: float) -> tuple[float, float]:
    """Least-squares slope through equally spaced batch means, 1/s, and its one-sided p."""
    x = (np.arange(len(means)) - (len(means) - 1) / 2) * step_s
    spread = float(x @ x)
    slope = float(x @ means) / spread
    residual = means - means.mean() - slope * x
    freedom = len(means) - 2
    return slope, _p_above_zero(slope, float(np.sqrt(residual @ residual / freedom / spread)), freedom)


def _p_above_zero(estimate: float, error: float, freedom: int) -> float:
    if error == 0.0:
        return 0.0 if estimate > 0 else 1.0
    return float(stdtr(freedom, -estimate / error))  # Student's t; scipy.stats would take a second to import
