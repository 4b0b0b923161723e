"""Intervals of a trace as columns of begins and ends, and what of some the others cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from analysis.records import Bools, Floats, Ints
from analysis.tp.kineto import Columns

__all__ = ["US", "array", "exposed_s", "intervals_us", "united"]

US: Final = 1e-6


def array(values: Sequence[int]) -> Ints:
    """Whole numbers as a column."""
    return np.asarray(values, dtype=np.int64)


def intervals_us(columns: Columns, marked: Bools | None = None, *, flip: bool = False) -> Floats:
    """(n, 2) begins and ends, µs; of the marked ones, or with `flip` of the others."""
    at = np.asarray(columns.at_us, dtype=np.float64)
    both: Floats = np.column_stack((at, at + np.asarray(columns.took_us, dtype=np.float64)))
    return both if marked is None else both[marked != flip]


def united(times: Floats) -> Floats:
    """Disjoint intervals that cover the same, in order."""
    ordered = times[np.argsort(times[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    reach = np.maximum.accumulate(ordered[:, 1])
    fresh = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(ordered) - 1]))
    return np.column_stack((ordered[fresh, 0], reach[last]))


def _covered(union: Floats, at: Floats) -> Floats:
    """How much of the union lies before each instant."""
    if not len(union):
        return np.zeros_like(at)
    before = np.concatenate(([0.0], np.cumsum(union[:, 1] - union[:, 0])))
    index = np.searchsorted(union[:, 0], at, side="right")
    over: Floats = np.where(index > 0, np.maximum(union[np.maximum(index - 1, 0), 1] - at, 0.0), 0.0)
    covered: Floats = before[index] - over
    return covered


def exposed_s(calls: Floats, compute: Floats) -> Floats:
    """Seconds of each call that neither compute nor an earlier call covers."""
    if not len(calls):
        return np.empty(0)
    order = np.argsort(calls[:, 0], kind="stable")
    reach = np.concatenate(([-np.inf], np.maximum.accumulate(calls[order, 1])[:-1]))
    begin = np.minimum(np.maximum(calls[order, 0], reach), calls[order, 1])
    union = united(compute)
    own = calls[order, 1] - begin - (_covered(union, calls[order, 1]) - _covered(union, begin))
    exposed = np.empty(len(calls))
    exposed[order] = np.maximum(own, 0.0) * US
    return exposed
