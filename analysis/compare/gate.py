"""Worse than before? Paired differences against a baseline's runs of the same seeds (method, section 8).

The test. Four endpoints, turned so that above 0 is worse: attainment (points), token goodput (relative), mean log TTFT
and mean log E2E. Each takes a one-sided paired t test of "not worse at all"; p-values are adjusted by Holm, which holds
the family-wise error for any dependence between endpoints. An alarm needs p ≤ 5 % *and* a mean at least `margin` worse.

Why both. Significance alone alarms at changes that nobody asked about: of a true 2.5 % in 49 % of gates with R = 6 and
a paired sd of 3 %. A test against the margin instead of 0 catches a true 10 % at a margin of 5 % in only 62 % of gates
(R = 6, sd 5 %) and 33 % (sd 8 %). With both conditions it is 98.5 % and 78 %, and A against A alarms in at most 4.2 %
(`python -m benchmarks.gate_error`, docs/adr/0022). That holds for normal differences: skewed ones of sd 8 % alarm in
10.8 % at R = 6 and in 4.8 % at R = 8.

NOT_WORSE is claimed only if the one-sided 95 % upper bound of every endpoint lies below the margin: all must pass, so
no adjustment is needed. Anything else is CANNOT_TELL, with the number of replicates that would do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t: P(T ≤ x), and its inverse

from analysis.compare.pairs import holm, paired
from analysis.compare.types import NAMES, SCALE, WORSE_SIGN, Endpoint, PairedDifference, VariantRun

__all__ = ["GATE_ENDPOINTS", "LEAST_PAIRS", "GateAnswer", "GateEndpoint", "gate", "in_percent"]

GATE_ENDPOINTS: Final[tuple[Endpoint, ...]] = ("attainment", "token_goodput", "log_ttft", "log_e2e")
LEAST_PAIRS: Final = 6  # the fewest whose error rates were measured (docs/adr/0022)
ALPHA: Final = 0.05
_MOST: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEndpoint:
    """One endpoint: how much worse it is on average, its one-sided 95 % bounds, and p adjusted by Holm.

    `worse` is in the scale of the difference. `None`: not tested, for want of pairs or because all are identical.
    """

    endpoint: Endpoint
    difference: PairedDifference
    worse: float
    at_least: float | None
    at_most: float | None
    p_holm: float | None
    alarm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswer:
    """Whether the new runs are worse than the baseline's by the test of this module."""

    name: Literal["WORSE", "NOT_WORSE", "CANNOT_TELL"]
    margin: float
    n: int
    endpoints: tuple[GateEndpoint, ...]
    replicates_needed: int | None
    words: str


def gate(new: Sequence[VariantRun], baseline: Sequence[VariantRun], *, margin: float = 0.05) -> GateAnswer:
    """Hold new runs against the baseline's. Raises `ValueError` as `paired` does, and for a margin not above 0."""
    if margin <= 0:
        raise ValueError("the margin must be above 0")
    found = [_endpoint(paired(new, baseline, endpoint)) for endpoint in GATE_ENDPOINTS]
    p_values = holm([one.p for one in found if one.p is not None])
    adjusted = iter(p_values)
    endpoints = []
    for one in found:
        p = None if one.p is None else next(adjusted)
        alarm = p is not None and p <= ALPHA and one.worse >= margin
        endpoints.append(
            GateEndpoint(
                endpoint=one.difference.endpoint,
                difference=one.difference,
                worse=one.worse,
                at_least=one.at_least,
                at_most=one.at_most,
                p_holm=p,
                alarm=alarm,
            )
        )
    return _answer(tuple(endpoints), margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneSided:
    difference: PairedDifference
    worse: float
    at_least: float | None = None
    at_most: float | None = None
    p: float | None = None


def _endpoint(d: PairedDifference) -> _OneSided:
    worse = WORSE_SIGN[d.endpoint] * d.mean
    if d.identical or d.sd is None:
        return _OneSided(difference=d, worse=worse)
    error = d.sd / math.sqrt(d.n)
    half = float(stdtrit(d.n - 1, 1 - ALPHA)) * error
    p = float(stdtr(d.n - 1, -worse / error)) if error else float(worse <= 0)
    return _OneSided(difference=d, worse=worse, at_least=worse - half, at_most=worse + half, p=p)


def _answer(endpoints: tuple[GateEndpoint, ...], margin: float) -> GateAnswer:
    n = min(one.difference.n for one in endpoints)
    alarms = [one for one in endpoints if one.alarm]
    open_ = [one for one in endpoints if not one.difference.identical and not _below(one, margin)]
    needed = None
    name: Literal["WORSE", "NOT_WORSE", "CANNOT_TELL"]
    if alarms:
        name = "WORSE"
        words = "; ".join(
            f"{NAMES[one.endpoint]} by {_amount(one, one.worse)} (Holm p = {one.p_holm:.2g})" for one in alarms
        )
        words += f", margin {100 * margin:.3g} %, {n} pairs of runs"
    elif not open_ and all(one.difference.identical for one in endpoints):
        name, words = "NOT_WORSE", f"all {n} pairs of runs are bit-identical"
    elif not open_:
        name = "NOT_WORSE"
        words = f"at 95 % confidence by less than {100 * margin:.3g} % on every endpoint, {n} pairs of runs"
    else:
        name = "CANNOT_TELL"
        each = [_needed(one, margin) for one in open_]
        needed = None if None in each else max(k for k in each if k is not None)
        words = f"whether it is worse by {100 * margin:.3g} %, {n} pairs of runs: " + "; ".join(map(_range, open_))
        words += f"; about {needed} pairs would do" if needed else ""
    return GateAnswer(name=name, margin=margin, n=n, endpoints=endpoints, replicates_needed=needed, words=words + ".")


def in_percent(endpoint: Endpoint, worse: float) -> float:
    """How much worse, in points of a share or per cent; a difference of logarithms as one of geometric means."""
    return 100 * (math.expm1(worse) if SCALE[endpoint] == "log" else worse) + 0.0  # no minus before a zero


def _amount(one: GateEndpoint, worse: float) -> str:
    unit = "points" if SCALE[one.endpoint] == "points" else "%"
    return f"{in_percent(one.endpoint, worse):+.2f} {unit}"


def _range(one: GateEndpoint) -> str:
    name = NAMES[one.endpoint]
    if one.at_most is None or one.at_least is None:
        return f"{name} has too few pairs"
    return f"{name} is worse by {_amount(one, one.at_least)} to {_amount(one, one.at_most)}"


def _below(one: GateEndpoint, margin: float) -> bool:
    return one.at_most is not None and one.at_most < margin


def _needed(one: GateEndpoint, margin: float) -> int | None:
    """Pairs with which the one-sided interval around the mean seen would keep clear of the margin."""
    gap, sd = abs(margin - one.worse), one.difference.sd
    if sd is None:
        return None
    more = np.arange(one.difference.n + 1, _MOST)
    enough = np.flatnonzero(stdtrit(more - 1, 1 - ALPHA) * sd / np.sqrt(more) < gap)
    return int(more[enough[0]]) if enough.size else None
