"""The cohort, its rates, and nearest-rank percentiles (method, sections 1 and 2)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np
import pandas as pd

from analysis.records import NS_PER_S, Bools, Floats, Ints, numbers

__all__ = [
    "PERCENTILES",
    "cohort_of",
    "cut_to_requests",
    "describe",
    "event_rate",
    "mask",
    "mean_age_s",
    "nearest_rank",
    "percentiles",
    "realised_rate",
    "sent_rate",
]

_ROUNDED_NS: Final = 4
PERCENTILES: Final = {"p50": Fraction(1, 2), "p95": Fraction(95, 100), "p99": Fraction(99, 100)}


def mask(requests: pd.DataFrame, *, warmup_ns: int, window_ns: int) -> Bools:
    """Which requests are scheduled in [warmup, warmup + window), shape (n,)."""
    scheduled = numbers(requests, "scheduled_ns")
    return (scheduled >= warmup_ns) & (scheduled < warmup_ns + window_ns)


def cohort_of(requests: pd.DataFrame, *, warmup_ns: int, window_ns: int) -> pd.DataFrame:
    """The rows of the cohort; of a table in order of schedule, which has them in one stretch, without a copy."""
    among = mask(requests, warmup_ns=warmup_ns, window_ns=window_ns)
    count, start = int(np.count_nonzero(among)), int(among.argmax()) if len(among) else 0
    return requests.iloc[start : start + count] if among[start : start + count].all() else requests[among]


def nearest_rank(sorted_values: Floats | Ints, p: Fraction | float) -> float:
    """The p-quantile sorted[⌈p·n⌉ − 1] of values sorted upwards; NaN of nothing.

    `p` in (0, 1] is taken as the decimal it is written as: ⌈0.07·100⌉ is 7, although 0.07·100 is not in floats.
    Raises `ValueError` for another p.
    """
    exact = p if isinstance(p, Fraction) else Fraction(repr(float(p)))
    if not 0 < exact <= 1:
        raise ValueError(f"a quantile's p is in (0, 1], not {p}")
    n = len(sorted_values)
    if n == 0:
        return float("nan")
    rank = -(-exact.numerator * n // exact.denominator)
    return float(sorted_values[rank - 1])


def describe(values: Floats, ok: Bools) -> dict[str, float]:
    """p50, p95, p99, max and mean over ok requests, and the same with suffix `_all`, where a failure is +∞.

    `values` has shape (n,), NaN where undefined: an ok request without a value is in neither. Nothing to describe
    leaves its keys out. Method, section 2: percentiles twice.
    """
    defined = np.sort(values[ok & ~np.isnan(values)])
    failed = int(np.count_nonzero(~ok))
    found: dict[str, float] = {}
    if not defined.size and ok.any():
        return found  # defined for no request here (TPOT where O = 1): failures make no distribution of it
    for suffix, among in (("", defined), ("_all", np.concatenate([defined, np.full(failed, np.inf)]))):
        if among.size:
            found |= {name + suffix: nearest_rank(among, p) for name, p in PERCENTILES.items()}
            found |= {f"max{suffix}": float(among[-1]), f"mean{suffix}": float(among.mean())}
    return found


def percentiles(values: Floats, ok: Bools) -> dict[str, float | None]:
    """The percentiles of `describe` alone; `None` is a failure's infinity, which JSON cannot hold."""
    return {
        name: value if math.isfinite(value) else None
        for name, value in describe(values, ok).items()
        if name.removesuffix("_all") in PERCENTILES
    }


def mean_age_s(residences_s: Floats) -> float:
    """E[S²]/E[S] of residences S, shape (n,), seconds; NaN of nothing, and where all are 0.

    The mean residence of what is in service at an instant, where long requests are met more often: a few long ones in
    a hundred fill a server for as long as they last, which neither the mean nor the median of S shows.
    """
    total = float(residences_s.sum())
    return float(residences_s @ residences_s) / total if total > 0 else float("nan")


def event_rate(at_ns: Ints) -> float | None:
    """(n − 1)/(last − first) of instants in any order, 1/s; `None` where that says nothing."""
    if at_ns.size < 2:
        return None
    span_ns = int(at_ns.max() - at_ns.min())
    return (at_ns.size - 1) * NS_PER_S / span_ns if span_ns else None


def realised_rate(cohort: pd.DataFrame, *, warmup_ns: int, window_ns: int) -> float | None:
    """Rate of the cohort's scheduled instants, 1/s: n/window, so that the window's silence counts.

    (n − 1)/(last − first) where the window was cut to its requests, by a cohort count or as a whole trace replayed.
    """
    at_ns = numbers(cohort, "scheduled_ns")
    if cut_to_requests(at_ns, warmup_ns=warmup_ns, window_ns=window_ns):
        return event_rate(at_ns)
    return at_ns.size * NS_PER_S / window_ns if window_ns > 0 else None


def sent_rate(requests: pd.DataFrame, *, warmup_ns: int, window_ns: int) -> float | None:
    """Rate at which requests of the run's whole table were handed to sockets in the window, 1/s.

    Where the window was cut to its last request, the rate of the cohort's own sends, (n − 1)/(last − first).
    """
    among = mask(requests, warmup_ns=warmup_ns, window_ns=window_ns)
    scheduled, sent_ns = numbers(requests, "scheduled_ns"), numbers(requests, "sent_ns")
    if cut_to_requests(scheduled[among], warmup_ns=warmup_ns, window_ns=window_ns):
        return event_rate(sent_ns[among & (sent_ns >= 0)])
    sent = np.count_nonzero((sent_ns >= warmup_ns) & (sent_ns < warmup_ns + window_ns))
    return int(sent) * NS_PER_S / window_ns if window_ns > 0 else None


def cut_to_requests(scheduled_ns: Ints, *, warmup_ns: int, window_ns: int) -> bool:
    """Whether a window was cut to its requests: a plan ends it 1 ns behind the last one of a cohort count.

    Or begins it with the first one and ends it where the last one may be moved to by rounding: a trace replayed whole.
    """
    if not scheduled_ns.size:
        return False
    behind = warmup_ns + window_ns - int(scheduled_ns.max())
    return behind == 1 or (behind <= _ROUNDED_NS and int(scheduled_ns.min()) == warmup_ns)
