"""The result broken down by (input, output) length: equal totals hide unlike TTFT and TPOT (method, section 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import pandas as pd

from analysis.cohort import nearest_rank, percentiles
from analysis.indicator import joint
from analysis.records import Ints, numbers, outcome_is
from analysis.slo import Slo

__all__ = ["Bucket", "by_length"]

QUARTILES: Final = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
METRICS: Final = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Requests of alike (input, output) lengths; latencies in s.

    Lengths are the smallest and the largest in the bucket. Each metric has `p50`, `p95`, `p99` over ok requests and,
    with suffix `_all`, over all, where `None` is a failure's +∞.
    """

    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    n: int
    ok: int
    attainment: float
    ttft_s: Mapping[str, float | None]
    tpot_s: Mapping[str, float | None]
    e2e_s: Mapping[str, float | None]


def by_length(
    cohort: pd.DataFrame,
    slo: Slo,
    *,
    input_edges: Sequence[int] | None = None,
    output_edges: Sequence[int] | None = None,
) -> list[Bucket]:
    """The non-empty (input, output) buckets of a table with derived columns, short ones first.

    Edges are the buckets' inclusive upper ends; one more bucket takes what is longer. The default is the quartiles of
    each length. Lengths are those planned, or those reported where none was planned.
    """
    inputs, outputs = _lengths(cohort, "input_tokens"), _lengths(cohort, "output_tokens")
    rows, columns = _bucket(inputs, input_edges), _bucket(outputs, output_edges)
    good, ok = joint(cohort, slo), outcome_is(cohort, "ok")
    found: list[Bucket] = []
    for row, column in sorted(set(zip(rows.tolist(), columns.tolist(), strict=True))):
        among = (rows == row) & (columns == column)
        n = int(np.count_nonzero(among))
        found.append(
            Bucket(
                input_tokens=(int(inputs[among].min()), int(inputs[among].max())),
                output_tokens=(int(outputs[among].min()), int(outputs[among].max())),
                n=n,
                ok=int(np.count_nonzero(ok[among])),
                attainment=int(np.count_nonzero(good[among])) / n,
                **{
                    metric: percentiles(cohort[metric].to_numpy(dtype=np.float64)[among], ok[among])
                    for metric in METRICS
                },
            )
        )
    return found


def _lengths(cohort: pd.DataFrame, name: str) -> Ints:
    planned = numbers(cohort, f"{name}_planned")
    return np.where(planned >= 0, planned, numbers(cohort, name))


def _bucket(lengths: Ints, edges: Sequence[int] | None) -> Ints:
    """Which bucket each length falls into, counted from 0, shape (n,)."""
    if edges is None:
        ordered = np.sort(lengths)
        edges = [] if not lengths.size else sorted({int(nearest_rank(ordered, p)) for p in QUARTILES})
    return np.searchsorted(np.asarray(sorted(edges), dtype=np.int64), lengths, side="left").astype(np.int64)
