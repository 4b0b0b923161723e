"""Disjoint time blocks of a trace, its replicates, and how long they must be (method, section 11)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traces.errors import TraceError
from traces.trace import NS, Int64s, Trace

__all__ = ["Block", "Blocks", "autocorrelation_time_s", "block_edges", "block_end", "split_blocks"]

MIN_CORRELATION_TIMES: Final = 3
MAX_BINS: Final = 1 << 20
WARNING: Final = (
    "replicates are time blocks of one sample path, not independent runs: no binomial sentence follows from them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block's requests. `start_ns` from the trace's first arrival; `lead_ns` from there to the block's first one."""

    index: int
    start_ns: int
    lead_ns: int
    trace: Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of equal length from the trace's start; `left_over` requests lie behind the last whole one.

    `warnings` always holds the one of method, section 11, and one more where blocks are shorter than three
    autocorrelation times.
    """

    blocks: tuple[Block, ...]
    length_s: float
    autocorrelation_time_s: float
    left_over: int
    warnings: tuple[str, ...]


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


def split_blocks(trace: Trace, *, count: int | None = None, length_s: float | None = None) -> Blocks:
    """Cut a trace into disjoint blocks: `count` of the longest possible length, or as many of `length_s` as it holds.

    With both, the first `count` of that length; with neither, the shortest length of three autocorrelation times.
    Raises `TraceError` where fewer than 2 blocks fit, or a block would be empty.
    """
    tau = autocorrelation_time_s(trace)
    span_s = trace.span_ns / NS
    if length_s is None:
        length_s = MIN_CORRELATION_TIMES * tau if count is None else span_s / max(count, 1)
    fitting = math.floor(span_s / length_s + 1e-9) if length_s > 0 else 0
    wanted = fitting if count is None else count
    if wanted < 2 or wanted > fitting:
        raise TraceError(
            f"{wanted} blocks of {length_s:g} s do not fit into a trace of {span_s:g} s",
            remedy="pass fewer or shorter blocks; at least 2 are needed",
        )
    width = math.floor(length_s * NS)
    blocks = []
    for index in range(wanted):
        rows = np.arange(*np.searchsorted(trace.at_ns, [index * width, (index + 1) * width]))
        if not rows.size:
            raise TraceError(f"block {index + 1} of {length_s:g} s has no request", remedy="pass longer blocks")
        lead = int(trace.at_ns[rows[0]]) - index * width
        blocks.append(Block(index=index, start_ns=index * width, lead_ns=lead, trace=trace.take(rows)))
    warnings = [WARNING]
    if length_s < MIN_CORRELATION_TIMES * tau:
        warnings.append(
            f"blocks of {length_s:.1f} s are shorter than {MIN_CORRELATION_TIMES} autocorrelation times of {tau:.1f} s "
            "and resemble their neighbours"
        )
    used = sum(len(block.trace) for block in blocks)
    return Blocks(
        blocks=tuple(blocks),
        length_s=length_s,
        autocorrelation_time_s=tau,
        left_over=len(trace) - used,
        warnings=tuple(warnings),
    )


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
