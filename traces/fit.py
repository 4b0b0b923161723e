"""Arrival processes fitted to a trace: Gamma gaps, and a two-state Markov-modulated Poisson process."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.errors import TraceError
from traces.trace import NS, Int64s, Trace

__all__ = ["GammaFit", "Mmpp2Fit", "fit_gamma", "fit_mmpp2", "gamma_shape_mle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaFit:
    """Gamma gaps of shape k (the plan's `burstiness`) at a rate; `method` is mle or moments (k = 1/CV²)."""

    rate: float
    shape: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mmpp2Fit:
    """A Poisson process whose rate jumps between two values, requests/s, at the given jump rates, 1/s.

    `idc_error`: root mean square of fitted minus measured index of dispersion, over `windows_s`.
    """

    low_rate: float
    high_rate: float
    up: float  # low -> high
    down: float  # high -> low
    windows_s: tuple[float, ...]
    measured_idc: tuple[float, ...]
    idc_error: float

    @property
    def rate(self) -> float:
        """Mean rate."""
        return (self.down * self.low_rate + self.up * self.high_rate) / (self.up + self.down)

    def idc(self, window_s: float) -> float:
        """Var/mean of the counts in a window (Fischer and Meier-Hellstern 1993, section 2)."""
        b = self.up + self.down
        variance = self.up * self.down / b**2 * (self.high_rate - self.low_rate) ** 2
        return float(1 + 2 * variance / (self.rate * b) * _ramp(np.array(b * window_s)))

    def draw(self, horizon_s: float, rng: np.random.Generator) -> Int64s:
        """Arrival instants in [0, horizon), sorted int64 ns; the state at 0 is drawn from its equilibrium."""
        high = bool(rng.random() < self.up / (self.up + self.down))
        pieces, start = [], 0.0
        while start < horizon_s:
            stay = rng.exponential(1 / (self.down if high else self.up))
            end = min(start + stay, horizon_s)
            count = rng.poisson((self.high_rate if high else self.low_rate) * (end - start))
            pieces.append(rng.uniform(start, end, size=count))
            start, high = end, not high
        at = np.sort(np.concatenate(pieces))
        return np.floor(at * NS).astype(np.int64)


def _ramp(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    ramp: npt.NDArray[np.float64] = 1 + np.expm1(-x) / x
    return ramp


def gamma_shape_mle(gaps_s: npt.NDArray[np.float64]) -> float:
    """Maximum-likelihood shape k of Gamma gaps: ln k − ψ(k) = ln(mean gap) − mean(ln gap).

    NaN where a gap is zero (ties: the likelihood has no maximum) or all gaps are equal.
    """
    if gaps_s.size < 2 or float(gaps_s.min()) <= 0:
        return math.nan
    excess = math.log(float(gaps_s.mean())) - float(np.log(gaps_s).mean())
    if excess < 1e-9:
        return math.nan
    from scipy import optimize, special  # slow to import, and most commands never come here

    # 1/(2k) < ln k − ψ(k) < 1/k brackets the root
    low, high = 0.49 / excess, 1.01 / excess
    return float(optimize.brentq(lambda k: math.log(k) - special.digamma(k) - excess, low, high, xtol=1e-12))


def fit_gamma(trace: Trace) -> GammaFit:
    """Gamma gaps with the trace's rate: by maximum likelihood, by moments where ties rule that out.

    Raises `TraceError` for fewer than 3 requests or a span of 0.
    """
    gaps = trace.gaps_s
    if gaps.size < 2 or trace.span_ns == 0:
        raise TraceError("too few arrivals to fit gaps to", rows=f"{len(trace)} rows", remedy="pass a longer trace")
    shape = gamma_shape_mle(gaps)
    if not math.isnan(shape):
        return GammaFit(rate=trace.rate, shape=shape, method="mle")
    cv = float(gaps.std() / gaps.mean())
    if cv < 1e-9:
        raise TraceError("all gaps are equal: the arrivals are constant, not random", remedy="use constant arrivals")
    return GammaFit(rate=trace.rate, shape=1 / cv**2, method="moments")


def fit_mmpp2(trace: Trace) -> Mmpp2Fit:
    """A two-state MMPP with the trace's rate, its curve of dispersion over windows, and its skewness of rate.

    Windows grow by factors of 2 from about 4 mean gaps to a 20th of the span. The curve gives the variance of the rate
    and its time constant (least squares); the third central moment of the counts gives how rare the high state is.
    Raises `TraceError` where the span holds too few windows, or the counts are no more dispersed than Poisson's.
    """
    rate, span_s = trace.rate, trace.span_ns / NS
    first = 4 / rate if rate > 0 else math.inf
    steps = math.floor(math.log2(span_s / 20 / first)) + 1 if span_s / 20 > first else 0
    if steps < 3:
        raise TraceError(
            "too few arrivals to fit a modulated rate to",
            rows=f"{len(trace)} rows",
            remedy="pass a trace of several hundred requests",
        )
    windows = tuple(first * 2**i for i in range(steps))
    counts = [_whole_windows(trace.at_ns, window) for window in windows]
    measured = np.array([c.var(ddof=1) / c.mean() for c in counts])
    if float(measured.max()) <= 1.02:
        raise TraceError(
            "the counts are not more dispersed than Poisson's: there is no modulation to fit",
            remedy="use Poisson or Gamma arrivals",
        )
    x = np.array(windows)

    def miss(log_parameters: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        amplitude, b = np.exp(log_parameters)
        relative: npt.NDArray[np.float64] = (1 + amplitude * _ramp(b * x) - measured) / measured
        return relative

    from scipy import optimize

    start = [math.log(max(float(measured[-1]) - 1, 0.05)), math.log(1 / float(np.median(x)))]
    bounds = ([-12.0, math.log(0.05 / x[-1])], [12.0, math.log(20 / x[0])])
    solved = optimize.least_squares(miss, np.clip(start, *bounds), bounds=bounds).x
    amplitude, b = (float(v) for v in np.exp(solved))
    variance = amplitude * rate * b / 2
    share = _high_share(counts, windows, rate, variance, b)
    # the low rate, mean − sd·√(share/(1 − share)), cannot be negative: a rarer high state takes its place
    share = min(share, rate**2 / (rate**2 + variance))
    deviation = math.sqrt(variance)
    fit = Mmpp2Fit(
        low_rate=max(rate - deviation * math.sqrt(share / (1 - share)), 0.0),
        high_rate=rate + deviation * math.sqrt((1 - share) / share),
        up=b * share,
        down=b * (1 - share),
        windows_s=windows,
        measured_idc=tuple(float(v) for v in measured),
        idc_error=0.0,
    )
    error = math.sqrt(float(np.mean([(fit.idc(w) - m) ** 2 for w, m in zip(windows, measured, strict=True)])))
    return Mmpp2Fit(**{name: getattr(fit, name) for name in fit.__slots__} | {"idc_error": error})


def _whole_windows(at_ns: Int64s, window_s: float) -> Int64s:
    width = round(window_s * NS)
    return np.bincount(at_ns // width)[: int(at_ns[-1]) // width]


def _high_share(counts: list[Int64s], windows: tuple[float, ...], rate: float, variance: float, b: float) -> float:
    """Equilibrium share of the high state from the counts' skewness, in the window nearest to half a time constant."""
    nearest = int(np.argmin([abs(math.log(w * b * 2)) for w in windows]))
    n, width = counts[nearest].astype(np.float64), windows[nearest]
    third = float(np.mean((n - n.mean()) ** 3))
    modulated = max(float(n.var()) - float(n.mean()), 1e-12)
    # cumulants of a mixed Poisson: κ3(N) = κ3(Λ) + 3·Var(Λ) + E(Λ)
    skew = (third - 3 * modulated - float(n.mean())) / width**3 / variance**1.5 if variance > 0 else 0.0
    # two-point law with share π at the high value: skew = (1 − 2π)/√(π(1 − π))
    share = 0.5 * (1 - skew / math.sqrt(4 + skew**2))
    return min(max(share, 0.005), 0.995)
