"""Disjoint time blocks of a trace, its replicates, and how long they must be (method, section 11)."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from traces.errors import TraceError
from traces.trace import NS, Int64s, Trace

__all__ = ["autocorrelation_time_s", "block_edges", "block_end"]

MIN_CORRELATION_TIMES: Final = 3
MAX_BINS: Final = 1 << 20
WARNING: Final = (
    "replicates are time blocks of one sample path, not independent runs: no binomial sentence follows from them"
)


def autocorrelation_time_s(trace: Trace, *, bin_s: float | None = None) -> float:
    """Integrated autocorrelation time of the arrival counts in bins, seconds: bin · (1 + 2·Σρ_k).

    The sum ends at the first lag k ≥ 5·τ(k)/bin (Sokal's window). `bin_s`: the larger of 1 s and 4 mean gaps by
    default, and at most 2^20 bins. Counts without correlation give one bin. Raises `TraceError` below 20 bins.
    """
    width = max(1.0, 4 / trace.rate, trace.span_ns / NS / MAX_BINS) if bin_s is None else bin_s
    bins = int(trace.span_ns // round(width * NS)) if width < math.inf else 0
    if bins < 20:
        raise TraceError(
            "too short to find its autocorrelation time",
            rows=f"{bins} bins of {width:g} s, at least 20 are needed",
            remedy="pass a longer trace, or the length of blocks",
        )
    counts = np.bincount(trace.at_ns // round(width * NS))[:bins].astype(np.float64)
    rho = _autocorrelation(counts - counts.mean())
    tau = 1.0
    for lag in range(1, bins):
        if lag >= 5 * tau:
            break
        tau = max(tau + 2 * float(rho[lag]), 1.0)
    return tau * width


def _autocorrelation(centred: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    spectrum = np.fft.rfft(centred, 2 * centred.size)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[: centred.size]
    scaled: npt.NDArray[np.float64] = covariance / covariance[0] if covariance[0] > 0 else np.zeros(centred.size)
    return scaled


def block_edges(trace: Trace, *, requests: int) -> Int64s:
    """Edges of as many disjoint blocks of `requests` requests each as the trace holds, int64 (blocks + 1,) ns.

    An edge lies in the middle of a gap; the first may so lie before 0, and the last behind the last arrival, half of
    the gap that closes the trace as a circle. Ties stay together in the earlier block.
    """
    rows = np.arange(0, len(trace) + 1, max(requests, 1))
    starts = _distinct(trace)
    return _edges(trace, starts[np.searchsorted(starts, rows)])


def block_end(trace: Trace, start_ns: int, requests: int, *, limit_ns: int) -> tuple[int, int]:
    """Where a block from the edge `start_ns` ends that is to have `requests` requests, and how many it has.

    The two differ where ties cannot be parted, or `limit_ns` comes before.
    """
    first = int(np.searchsorted(trace.at_ns, start_ns))
    last = int(np.searchsorted(trace.at_ns, limit_ns))
    ends = _distinct(trace)
    ends = ends[(ends > first) & (ends <= last)]
    if not ends.size:
        return limit_ns, last - first
    row = int(ends[np.argmin(np.abs(ends - first - requests))])
    return min(int(_edges(trace, np.array([row]))[0]), limit_ns), row - first


def _distinct(trace: Trace) -> Int64s:
    """Rows at which another instant begins, and the number of rows."""
    return np.concatenate(([0], np.flatnonzero(np.diff(trace.at_ns)) + 1, [len(trace)]))


def _edges(trace: Trace, rows: Int64s) -> Int64s:
    """The middle of the gap in front of each row; a mean gap closes the trace as a circle."""
    closing_ns = round(trace.span_ns / max(len(trace) - 1, 1))
    before = np.concatenate(([-closing_ns], trace.at_ns))[rows]
    after = np.concatenate((trace.at_ns, [trace.span_ns + closing_ns]))[rows]
    edges: Int64s = after - (after - before) // 2
    return edges
