"""Requests that met no other one: whether a configuration keeps the SLO where there is no load (method, section 8)."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
import pandas as pd

from analysis.indicator import joint
from analysis.records import derive, numbers
from analysis.slo import Slo

__all__ = ["LONE_MIN", "lone_counts", "meets"]

LONE_MIN: Final = 20  # requests: fewer decide nothing about a share of 95 %


def lone_counts(requests: pd.DataFrame, slo: Slo) -> tuple[int, int]:
    """How many requests of a run were alone from their release to their end, and how many of these are joint-good.

    A request that never ended leaves none behind it alone.
    """
    if requests.empty:
        return 0, 0
    table = derive(requests)
    released, ended = numbers(table, "released_ns"), numbers(table, "ended_ns")
    order = np.argsort(released, kind="stable")
    released, ended = released[order], ended[order]
    never = np.iinfo(np.int64).max
    until = np.maximum.accumulate(np.where(ended < 0, never, ended))
    free_before = np.concatenate(([True], released[1:] >= until[:-1]))
    free_after = np.concatenate((ended[:-1] <= released[1:], [True]))
    alone = (released >= 0) & (ended >= 0) & free_before & free_after
    return int(alone.sum()), int((alone & joint(table, slo)[order]).sum())


def meets(requests: int, good: int, attain: Fraction) -> bool | None:
    """Whether at least the share `attain` of lone requests is joint-good; `None` below LONE_MIN of them."""
    return None if requests < LONE_MIN else Fraction(good, requests) >= attain
