"""The requested rates: a range to search on a geometric grid, or a list to tabulate."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

__all__ = ["Grid", "RateList", "RatePlan", "RateRange", "parse_rates"]

MAX_RATES: Final = 10_000
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_FORMS = "write 2..18 to search a range, 2,4,6 or 2..18:2 to measure just those rates"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRange:
    """Search between two rates in requests/s, both tested. Raises `ValueError` unless 0 < lo < hi < ∞."""

    lo: float
    hi: float

    def __post_init__(self) -> None:
        _check(self.lo)
        _check(self.hi)
        if self.lo > self.hi:
            raise ValueError(f"the rate range {self.lo:g}..{self.hi:g} runs backwards; write {self.hi:g}..{self.lo:g}")
        if self.lo == self.hi:
            raise ValueError(f"the rate range {self.lo:g}..{self.hi:g} is one rate; to measure it write {self.lo:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateList:
    """Measure exactly these rates in requests/s, no search. Raises `ValueError` unless positive, finite and rising."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates:
            raise ValueError(f"no rate to measure; {_FORMS}")
        for rate in self.rates:
            _check(rate)
        for low, high in zip(self.rates, self.rates[1:], strict=False):
            if not low < high:
                raise ValueError(f"rates must rise, each named once: {high:g} comes after {low:g}")


RatePlan = RateRange | RateList


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The rates a search may test: λ_k = lo·(hi/lo)^(k/n), n = ⌈ln(hi/lo)/ln(1 + w)⌉ (method, section 7).

    Neighbours are at most a factor 1 + width apart; the first is lo and the last is hi, exactly. Raises `ValueError`
    for an impossible range or width, and for a grid of more than 10,000 rates.
    """

    lo: float
    hi: float
    width: float

    def __post_init__(self) -> None:
        RateRange(lo=self.lo, hi=self.hi)
        if not 0 < self.width <= 1:
            raise ValueError(f"the grid width {self.width:g} is not above 0 and at most 1 (5 % is 0.05)")
        if self.steps >= MAX_RATES:
            raise ValueError(f"a grid of {self.steps + 1} rates is too fine; widen the width {self.width:g}")

    @property
    def steps(self) -> int:
        """Number n of steps; there are n + 1 rates."""
        # a range of exactly k widths may come out as k + 1e-15, which is still k steps
        return max(1, math.ceil(math.log(self.hi / self.lo) / math.log1p(self.width) - 1e-9))

    @property
    def rates(self) -> tuple[float, ...]:
        """All n + 1 rates, rising."""
        n, ratio = self.steps, self.hi / self.lo
        return (self.lo, *(self.lo * ratio ** (k / n) for k in range(1, n)), self.hi)


def parse_rates(text: str) -> RatePlan:
    """The rates in `2..18` (a search), or in `2,4,6`, `2..18:2` or `6` (a table; a list may come in any order).

    A stepped range must arrive at its end. Raises `ValueError` naming what is wrong and what to write.
    """
    span, colon, step = text.partition(":")
    if ".." not in span:
        if colon:
            raise ValueError(f"rate {text!r} has a step but no range; {_FORMS}")
        return RateList(rates=tuple(sorted(float(_number(part, text)) for part in text.split(","))))
    low, _, high = span.partition("..")
    lo, hi = _number(low, text), _number(high, text)
    ends = RateRange(lo=float(lo), hi=float(hi))
    return RateList(rates=_stepped(lo, hi, _number(step, text))) if colon else ends


def _stepped(lo: Fraction, hi: Fraction, step: Fraction) -> tuple[float, ...]:
    if step <= 0:
        raise ValueError(f"the step {float(step):g} of a rate range must be above 0")
    steps = (hi - lo) / step
    if steps >= MAX_RATES:
        raise ValueError(f"a step of {float(step):g} from {float(lo):g} to {float(hi):g} makes too many rates")
    if steps.denominator != 1:
        below = lo + int(steps) * step
        raise ValueError(
            f"{float(hi):g} is not reached from {float(lo):g} in steps of {float(step):g}; "
            f"end the range at {float(below):g} or {float(below + step):g}"
        )
    return tuple(float(lo + k * step) for k in range(int(steps) + 1))


def _number(part: str, text: str) -> Fraction:
    part = part.strip()
    if not _NUMBER.fullmatch(part):
        raise ValueError(f"rate {text!r}: {part!r} is not a number; {_FORMS}")
    value = Fraction(part)
    _check(float(value) if abs(value) < Fraction(10) ** 300 else math.inf)
    return value


def _check(rate: float) -> None:
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"a rate must be above 0 and finite, in requests per second; {rate:g} is not")
