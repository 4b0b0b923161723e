"""Quantities as people write them: `800ms`, `2m`, `95%`, `1GiB`, `2..18`, as exact as they were written."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

NS_PER_S: Final = 1_000_000_000

_DURATION = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000),
             "s": Fraction(1), "m": Fraction(60), "min": Fraction(60), "h": Fraction(3600)}  # fmt: skip
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-zµ]+)")


def parse_duration_s(text: str | float | int, *, default_unit: str | None = None) -> float:
    """Seconds in a duration such as `800ms`, `2m`, `1h30m`.

    A bare number is refused unless `default_unit` says what it would mean. Raises `ValueError`.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = repr(text)
    compact = str(text).strip()
    if default_unit is not None and re.fullmatch(_NUMBER, compact):
        compact += default_unit
    total, end = Fraction(0), 0
    for match in _PART.finditer(compact):
        if match.start() != end or match[2] not in _DURATION:
            break
        total += Fraction(match[1]) * _DURATION[match[2]]
        end = match.end()
    if end != len(compact) or not compact:
        raise ValueError(f"{text!r} is not a duration; write a number and a unit, such as 800ms, 30s or 2m")
    return float(total)


def parse_share(text: str | float | int) -> Fraction:
    """An exact share in [0, 1] from `95%` or `0.95`. Raises `ValueError`."""
    compact = str(text).strip()
    percent = compact.endswith("%")
    number = compact.removesuffix("%").strip()
    if not re.fullmatch(_NUMBER, number):
        raise ValueError(f"{text!r} is not a share; write it as 95% or 0.95")
    share = Fraction(number) / (100 if percent else 1)
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is not between 0 and 1; write a percentage with its sign, such as 95%")
    return share


def format_duration(seconds: float) -> str:
    """A duration for people: `2.5ms`, `800ms`, `12s`, `2m 05s`, `1h 02m`."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.2g}ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"
