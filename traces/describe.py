"""Statistics of a trace: its arrivals, its lengths and their joint shape, its prefixes and sessions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traces.errors import TraceError
from traces.fit import gamma_shape_mle
from traces.prefix import PrefixBound, prefix_bound
from traces.trace import NS, Int64s, Trace

__all__ = ["ArrivalShape", "Description", "JointLengths", "Lengths", "Sessions", "arrival_shape", "describe",
           "dispersion", "nearest_rank"]  # fmt: skip

DISPERSION_WINDOWS_S: Final = (1.0, 10.0, 60.0)
QUANTILES: Final = (0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
JOINT_EDGES: Final = (0.25, 0.5, 0.75, 0.95)
PIECE: Final = 1 << 20  # rows that are looked at together
TIGHT_NS: Final = 4  # a window that ends so soon behind its last arrival was cut to it (rounding moves it by less)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalShape:
    """Rate and burstiness of arrivals; what a transform reports of its result.

    `rate` is (n − 1)/span of a whole trace, n/length of a window of one, whose silence counts; `span_s` is the span, or
    the window's length. `gap_cv` is the population CV of gaps; those of a window close with the silence at its two
    ends, so that their mean is 1/rate. `dispersion` maps a window in seconds to variance/mean of the counts in it (1
    for Poisson). NaN where a trace is too short to say.
    """

    rate: float
    span_s: float
    gap_cv: float
    dispersion: dict[float, float]

    def __str__(self) -> str:
        windows = ", ".join(f"{value:.3f} at {window:g} s" for window, value in self.dispersion.items())
        return f"rate {self.rate:.4f}/s over {self.span_s:.3f} s, CV of gaps {self.gap_cv:.4f}, dispersion {windows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """One side's token counts: sum, mean and nearest-rank quantiles (method, section 2)."""

    total: int
    mean: float
    quantiles: dict[float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLengths:
    """Input against output: Pearson and Spearman correlation (NaN where a side is constant), and a table of shares.

    `shares[i, j]` float64 (5, 5): share of requests with the input in the i-th and the output in the j-th of the
    classes cut at the 25th, 50th, 75th and 95th percentile of that side; independent sides give products of margins.
    `input_edges` and `output_edges` are the largest lengths of the first four classes.
    """

    pearson: float
    spearman: float
    input_edges: tuple[int, ...]
    output_edges: tuple[int, ...]
    shares: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Conversations: how many, turns in them (nearest rank), and the share of requests that are not a first turn."""

    count: int
    turns_p50: int
    turns_p99: int
    turns_max: int
    follow_ups: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """All of it. `series` holds the counts of arrivals in bins of `series_bin_s` from the first arrival on."""

    rows: int
    arrivals: ArrivalShape
    gamma_shape: float  # maximum likelihood; NaN where ties make gaps of zero
    gamma_shape_moments: float  # 1/CV²
    ties: int
    distinct_instants: int
    resolution_ns: int
    input: Lengths
    output: Lengths
    joint: JointLengths
    prefix: PrefixBound | None
    sessions: Sessions | None
    max_model_len: int | None
    over_long: float | None  # share of requests with input + output above max_model_len
    series_bin_s: float
    series: Int64s


def nearest_rank(values: npt.NDArray[np.integer], share: float) -> int:
    """sorted[⌈p·n⌉ − 1] (method, section 2) of a non-empty column."""
    rank = max(math.ceil(share * values.size), 1) - 1
    return int(np.partition(values, rank)[rank])


def dispersion(at_ns: Int64s, window_s: float, *, length_ns: int | None = None) -> float:
    """Index of dispersion: population variance / mean of the counts in windows from 0 to the last arrival.

    `length_ns`: to there instead, silence counted. The last window may be cut short and counts as the others do. NaN
    below two windows.
    """
    windows = at_ns // round(window_s * NS)
    end = int(windows[-1]) if length_ns is None else max(int(windows[-1]), (length_ns - 1) // round(window_s * NS))
    total = end + 1
    if total < 2:
        return math.nan
    # only windows with arrivals are held: one wrong instant can make a span of billions of empty ones
    ends = np.flatnonzero(np.append(np.diff(windows) != 0, True))
    counts = np.diff(ends, prepend=-1).astype(np.float64)
    mean = at_ns.size / total
    squares = float(((counts - mean) ** 2).sum()) + (total - counts.size) * mean**2
    return squares / total / mean


def arrival_shape(
    trace: Trace,
    windows_s: tuple[float, ...] = DISPERSION_WINDOWS_S,
    *,
    lead_ns: int = 0,
    window_ns: int | None = None,
) -> ArrivalShape:
    """Rate, CV and dispersion of a trace's arrivals.

    `window_ns`: the trace is what arrived in a window of that length, the first `lead_ns` after its start. A window
    that begins and ends with an arrival is measured as a whole trace is.
    """
    n, span_ns = len(trace), trace.span_ns
    whole = window_ns is None or (lead_ns == 0 and window_ns - span_ns <= TIGHT_NS)
    length_ns = span_ns if whole or window_ns is None else window_ns
    closing = () if whole else (length_ns - span_ns,)
    at = trace.at_ns if lead_ns == 0 else trace.at_ns + lead_ns
    return ArrivalShape(
        rate=(n - whole) * NS / length_ns if length_ns else math.nan,
        span_s=length_ns / NS,
        gap_cv=_gap_cv(trace.at_ns, closing),
        dispersion={width: dispersion(at, width, length_ns=None if whole else length_ns) for width in windows_s},
    )


def _gap_cv(at_ns: Int64s, closing: tuple[int, ...]) -> float:
    """Population CV of gaps and those in `closing`, in two passes of pieces: 27 million gaps are not held at once."""
    count = at_ns.size - 1 + len(closing)
    mean = (int(at_ns[-1]) + sum(closing)) / count if count else 0.0
    if not mean > 0:
        return math.nan
    squares = sum((gap - mean) ** 2 for gap in closing)
    for start in range(0, at_ns.size - 1, PIECE):
        gaps = np.diff(at_ns[start : start + PIECE + 1])
        squares += float(((gaps - mean) ** 2).sum())
    return math.sqrt(squares / count) / mean


def describe(
    trace: Trace,
    *,
    max_model_len: int | None = None,
    series_bins: int = 60,
    lead_ns: int = 0,
    window_ns: int | None = None,
) -> Description:
    """Describe a trace, in little more memory than it takes.

    `max_model_len`: also the share of requests with more tokens in all; `series_bins`: how finely the rate is shown;
    `lead_ns`, `window_ns`: as in `arrival_shape`. Raises `TraceError` for a bound or a number of bins below 1.
    """
    if series_bins < 1 or (max_model_len is not None and max_model_len < 1):
        raise TraceError("a bound below 1", remedy="pass --max-model-len, or bins, of at least 1")
    shape = arrival_shape(trace, lead_ns=lead_ns, window_ns=window_ns)
    ties = int(np.count_nonzero(trace.at_ns[1:] == trace.at_ns[:-1]))
    length_ns = trace.span_ns + 1 if window_ns is None else window_ns
    bin_ns = max(-(-length_ns // series_bins), 1)
    edges = np.searchsorted(trace.at_ns, np.arange(1, -(-length_ns // bin_ns)) * bin_ns - lead_ns)
    return Description(
        rows=len(trace),
        arrivals=shape,
        gamma_shape=math.nan if ties else gamma_shape_mle(trace.gaps_s),
        gamma_shape_moments=1 / shape.gap_cv**2 if shape.gap_cv > 0 else math.nan,
        ties=ties,
        distinct_instants=len(trace) - ties,
        resolution_ns=int(np.gcd.reduce(trace.at_ns)),
        input=_lengths(trace.input_tokens),
        output=_lengths(trace.output_tokens),
        joint=_joint(trace),
        prefix=prefix_bound(trace),
        sessions=_sessions(trace),
        max_model_len=max_model_len,
        over_long=None if max_model_len is None else _over(trace, max_model_len),
        series_bin_s=bin_ns / NS,
        series=np.diff(edges, prepend=0, append=len(trace)),
    )


def _over(trace: Trace, bound: int) -> float:
    over = 0
    for rows in _pieces(len(trace)):
        over += int(np.count_nonzero(trace.input_tokens[rows].astype(np.int64) + trace.output_tokens[rows] > bound))
    return over / len(trace)


def _pieces(n: int) -> Iterator[slice]:
    return (slice(start, start + PIECE) for start in range(0, n, PIECE))


def _lengths(tokens: npt.NDArray[np.int32]) -> Lengths:
    total = int(tokens.sum(dtype=np.int64))
    return Lengths(total=total, mean=total / tokens.size, quantiles={q: nearest_rank(tokens, q) for q in QUANTILES})


def _joint(trace: Trace) -> JointLengths:
    sides = (trace.input_tokens, trace.output_tokens)
    edges = [tuple(nearest_rank(side, q) for q in JOINT_EDGES) for side in sides]
    width = len(JOINT_EDGES) + 1
    table = np.zeros(width * width, dtype=np.int64)
    for rows in _pieces(len(trace)):
        # a length equal to an edge belongs to the class below it
        classes = [np.searchsorted(edge, side[rows], side="left") for edge, side in zip(edges, sides, strict=True)]
        table += np.bincount(classes[0] * width + classes[1], minlength=width * width)
    varied = len(trace) > 1 and all(int(side.min()) < int(side.max()) for side in sides)
    return JointLengths(
        pearson=_correlation(*sides, (None, None)) if varied else math.nan,
        spearman=_correlation(*sides, (_ranks(sides[0]), _ranks(sides[1]))) if varied else math.nan,
        input_edges=edges[0],
        output_edges=edges[1],
        shares=table.reshape(width, width) / len(trace),
    )


_Ranks = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]


def _ranks(side: npt.NDArray[np.int32]) -> _Ranks:
    """The distinct values upwards, and the mean rank of each."""
    values, counts = np.unique(side, return_counts=True)
    ends = np.cumsum(counts)
    return values, ends - (counts - 1) / 2


def _correlation(
    x: npt.NDArray[np.int32], y: npt.NDArray[np.int32], ranks: tuple[_Ranks | None, _Ranks | None]
) -> float:
    """Pearson's correlation of two columns, or of their ranks, by the piece."""

    def taken(side: npt.NDArray[np.int32], rank: _Ranks | None) -> npt.NDArray[np.float64]:
        return side.astype(np.float64) if rank is None else rank[1][np.searchsorted(rank[0], side)]

    def mean(side: npt.NDArray[np.int32], rank: _Ranks | None) -> float:
        return sum(float(taken(side[rows], rank).sum()) for rows in _pieces(side.size)) / side.size

    centres = mean(x, ranks[0]), mean(y, ranks[1])
    xx = yy = xy = 0.0
    for rows in _pieces(x.size):
        a, b = taken(x[rows], ranks[0]) - centres[0], taken(y[rows], ranks[1]) - centres[1]
        xx, yy, xy = xx + float(a @ a), yy + float(b @ b), xy + float(a @ b)
    return xy / math.sqrt(xx * yy)


def _sessions(trace: Trace) -> Sessions | None:
    if trace.session is None or trace.parent is None:
        return None
    turns = np.bincount(trace.session[trace.session >= 0])
    if not turns.size:
        return None
    return Sessions(
        count=int(turns.size),
        turns_p50=nearest_rank(turns, 0.5),
        turns_p99=nearest_rank(turns, 0.99),
        turns_max=int(turns.max()),
        follow_ups=float(np.mean(trace.parent >= 0)),
    )
