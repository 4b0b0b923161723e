"""The joint service-level objective, its grammar, and the indicator I of one request (method, section 3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from analysis.units import format_duration, parse_duration_s

__all__ = ["Slo", "parse_slo"]

SloClock = Literal["scheduled", "sent"]
_TERM = re.compile(r"\s*(?P<metric>[A-Za-z_0-9.]+)\s*(?:<=|≤|<|:)\s*(?P<bound>\S.*?)\s*")
_PERCENTILE = re.compile(r"(?:p(?P<before>\d\d?(?:\.\d+)?)_?)?(?P<metric>[a-z0-9]+?)(?:_?p(?P<after>\d\d?(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Upper bounds in seconds that a request must meet together; `None`: not bounded.

    `clock` says where TTFT and E2E start: at the scheduled instant (what the user lives through) or at the send.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    client_queue_s: float | None = None
    clock: SloClock = "scheduled"
    placeholder: bool = False  # the user set no SLO: a stand-in that every output names

    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by metric name without unit (`ttft`, `tpot`, `e2e`, `client_queue`), seconds."""
        named = {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self) if f.name.endswith("_s")}
        return {name: bound for name, bound in named.items() if bound is not None}

    def __str__(self) -> str:
        terms = " and ".join(f"{name} ≤ {format_duration(bound)}" for name, bound in self.bounds().items())
        return (terms or "no SLO") + (" from send" if self.clock == "sent" else "")


def parse_slo(terms: Sequence[str], *, clock: SloClock = "scheduled") -> Slo:
    """An `Slo` from terms such as `ttft<=800ms` or `ttft:800ms`, several of them in one text with commas between.

    Raises `ValueError` naming the term.
    """
    bounds: dict[str, float] = {}
    for term in (part for text in terms for part in text.split(",")):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(
                f"SLO {term!r} is not of the form metric<=duration; write ttft:800ms, or 'ttft<=800ms' in quotes, "
                "for the shell takes < for itself"
            )
        metric = match["metric"]
        if metric not in _METRICS:
            raise ValueError(f"SLO {term!r}: {_unknown(metric, match['bound'])}")
        if metric in bounds:
            raise ValueError(f"SLO {term!r}: {metric} is bounded twice")
        try:
            bounds[metric] = parse_duration_s(match["bound"])
        except ValueError as error:
            raise ValueError(f"SLO {term!r}: {error}") from None
        if bounds[metric] <= 0:
            raise ValueError(f"SLO {term!r}: the bound must be above 0")
    return Slo(**{f"{metric}_s": bound for metric, bound in bounds.items()}, clock=clock)  # type: ignore[arg-type]


def _unknown(metric: str, bound: str) -> str:
    """What to write in place of a metric that there is none of."""
    lower = metric.lower()
    if lower in _METRICS:
        return f"metrics are written in lower case: {lower}<={bound}"
    found = _PERCENTILE.fullmatch(lower)
    if found is not None and found["metric"] in _METRICS:
        share = found["before"] or found["after"]
        return f"a percentile is not part of a bound: write {found['metric']}<={bound} and --attain {share}%"
    return f"unknown metric {metric!r}; known are {', '.join(sorted(_METRICS))}"


_METRICS = frozenset(f.name.removesuffix("_s") for f in fields(Slo) if f.name.endswith("_s"))
