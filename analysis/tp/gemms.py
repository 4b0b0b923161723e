"""GEMMs of a rank: the kernels of each, their shapes and times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from analysis.records import Floats, Ints
from analysis.tp.intervals import US, array, intervals_us
from analysis.tp.kineto import GEMM, Columns, Recorded
from analysis.tp.names import gemm_shape
from analysis.tp.types import GemmTotal

__all__ = ["Gemms", "gemm_totals", "gemms_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gemms:
    """GEMMs of known shape, or parts of such: shape and element of each, the columns' rows, seconds."""

    shape: list[tuple[int, int, int, str]]
    row: Ints  # in `source`
    operator: Ints  # rows of the operators; kernels of one call share it
    took_s: Floats
    source: Columns


def gemms_of(recorded: Recorded, on_device: bool) -> tuple[Gemms, tuple[int, float]]:
    """GEMMs of known shape, and how many kernels seem to be others, with their seconds."""
    shapes = [  # one object a shape, however many calls have it
        None if (shape := gemm_shape(one.name, one.dims)) is None else (*shape, one.element)
        for one in recorded.operators
    ]
    operators = recorded.gemms
    if on_device:
        source = recorded.compute
        external = array(operators.external)
        order = np.argsort(external, kind="stable")
        wanted = array(source.external)
        at = np.minimum(np.searchsorted(external[order], wanted), max(0, len(order) - 1))
        linked = (wanted >= 0) & (external[order][at] == wanted) if len(order) else np.zeros(len(wanted), dtype=bool)
        row, operator = np.flatnonzero(linked), order[at[linked]] if len(order) else np.empty(0, dtype=np.int64)
        lost = ~linked & (array(source.what) == GEMM)
    else:
        source, times, lane = operators, intervals_us(operators), array(operators.lane)
        order = np.lexsort((-times[:, 1], times[:, 0], lane)) if len(times) else np.empty(0, dtype=np.int64)
        outer, until, on = [], -np.inf, -1
        for index in order.tolist():  # an operator calls others: the outermost stands for them
            if lane[index] != on or times[index, 1] > until:
                outer.append(index)
                on, until = int(lane[index]), float(times[index, 1])
        row = operator = np.asarray(outer, dtype=np.int64)
        lost = np.zeros(len(operators), dtype=bool)
    took_s = np.asarray(source.took_us, dtype=np.float64) * US
    what = array(operators.what)[operator]
    known = np.array([shapes[one] is not None for one in what.tolist()], dtype=bool)
    full = [shape for one in what[known].tolist() if (shape := shapes[one]) is not None]
    gemms = Gemms(
        shape=full, row=row[known], operator=operator[known], took_s=took_s[row[known]], source=source
    )  # fmt: skip
    return gemms, (int(lost.sum()), float(took_s[lost].sum()))


def gemm_totals(gemms: Gemms) -> tuple[GemmTotal, ...]:
    """Calls and seconds by shape, most seconds first."""
    seconds: Counter[tuple[int, int, int, str]] = Counter()
    seen: dict[tuple[int, int, int, str], set[int]] = {}
    for shape, took_s, operator in zip(gemms.shape, gemms.took_s.tolist(), gemms.operator.tolist(), strict=True):
        seconds[shape] += took_s
        seen.setdefault(shape, set()).add(operator)
    return tuple(
        GemmTotal(rows=m, columns=n, depth=k, element=element, calls=len(seen[m, n, k, element]), total_s=took_s)
        for (m, n, k, element), took_s in sorted(seconds.items(), key=lambda one: -one[1])
    )
