"""ServeGen's client rate tables: a generator, not events. Read one, and draw arrivals from it.

A table has no header; each row is one window of a client: start (s), rate (requests/s), CV, family (Gamma, Weibull, or
empty where the client is silent), and two parameters, shape and scale. We draw gaps of the given family and shape,
scaled so that their mean is 1/rate: the table's own scale disagrees with its rate where a client was active in part of
a window.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traces.errors import TraceError, printable
from traces.source import open_source
from traces.trace import NS, Int64s

__all__ = ["RateWindow", "draw_arrivals", "read_rates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """One client in one window: a renewal process; rate 0 means silence."""

    start_s: float
    rate: float
    cv: float
    family: str
    shape: float


def read_rates(path: str | Path) -> tuple[RateWindow, ...]:
    """The windows of a rate table, in order. Raises `TraceError`."""
    with open_source(path) as source:
        text = b"".join(block.data for block in source.blocks()).decode("utf-8", errors="replace")
    windows: list[RateWindow] = []
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        if not row:
            continue
        try:
            start, rate, cv, family, shape, _scale = row
            window = RateWindow(start_s=float(start), rate=float(rate), cv=float(cv), family=family, shape=float(shape))
        except ValueError:
            what = f"not `start,rate,cv,family,shape,scale` ({printable(','.join(row))!r})"
            raise TraceError(what, path=path, line=number, remedy="pass a chunk-*-trace.csv of ServeGen") from None
        active = window.rate > 0
        if (
            not math.isfinite(window.rate + window.shape)
            or window.rate < 0
            or (active and (family not in ("Gamma", "Weibull") or window.shape <= 0))
        ):
            what = f"a window with rate {window.rate:g}, family {printable(family)!r}, shape {window.shape:g}"
            raise TraceError(what, path=path, line=number, remedy="the families are Gamma and Weibull")
        if windows and window.start_s <= windows[-1].start_s:
            raise TraceError("windows that are not in order of time", path=path, line=number, remedy="sort the table")
        windows.append(window)
    if len(windows) < 2:
        raise TraceError("fewer than 2 windows", path=path, rows=f"{len(windows)} rows", remedy="pass a whole table")
    return tuple(windows)


def draw_arrivals(windows: tuple[RateWindow, ...], *, seed: int) -> Int64s:
    """Arrival instants from the table's first window on, sorted int64 ns; each window starts with one full gap.

    A window lasts to the start of the next, the last one as long as the one before it.
    """
    rng = np.random.default_rng(seed)
    starts = [window.start_s for window in windows]
    ends = [*starts[1:], 2 * starts[-1] - starts[-2]]
    pieces = [np.empty(0)]
    for window, end in zip(windows, ends, strict=True):
        at, length = 0.0, end - window.start_s
        while window.rate > 0 and at < length:
            # enough gaps for most windows at once; a short draw is continued
            size = math.ceil(window.rate * length * 1.1) + 16
            gaps = (
                rng.gamma(window.shape, size=size) if window.family == "Gamma" else rng.weibull(window.shape, size=size)
            )
            mean = window.shape if window.family == "Gamma" else math.gamma(1 + 1 / window.shape)
            times = at + np.cumsum(gaps / (mean * window.rate))
            pieces.append(window.start_s - starts[0] + times[times < length])
            at = float(times[-1])
    return np.floor(np.concatenate(pieces) * NS).astype(np.int64)
