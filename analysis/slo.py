"""The joint service-level objective, its grammar, and the indicator I of one request (method, section 3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from analysis.units import format_duration, parse_duration_s

__all__ = ["Slo", "parse_slo"]

SloClock = Literal["scheduled", "sent"]
_TERM = re.compile(r"\s*(?P<metric>[a-z_0-9]+)\s*(?:<=|≤|<)\s*(?P<bound>\S.*?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Upper bounds in seconds that a request must meet together; `None` is no bound.

    `clock` says where TTFT and E2E start: at the scheduled instant (what the user lives through) or at the send.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    client_queue_s: float | None = None
    clock: SloClock = "scheduled"
    placeholder: bool = False  # nobody set an SLO: a stand-in that every output has to name

    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by metric name without unit (`ttft`, `tpot`, `e2e`, `client_queue`), seconds."""
        named = {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self) if f.name.endswith("_s")}
        return {name: bound for name, bound in named.items() if bound is not None}

    def __str__(self) -> str:
        terms = " and ".join(f"{name} ≤ {format_duration(bound)}" for name, bound in self.bounds().items())
        return (terms or "no SLO") + (" from send" if self.clock == "sent" else "")


def parse_slo(terms: Sequence[str], *, clock: SloClock = "scheduled") -> Slo:
    """An `Slo` from terms such as `ttft<=800ms`. Raises `ValueError` naming the term."""
    known = {f.name.removesuffix("_s") for f in fields(Slo) if f.name.endswith("_s")}
    bounds: dict[str, float] = {}
    for term in terms:
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"SLO {term!r} is not of the form metric<=duration, such as ttft<=800ms")
        metric = match["metric"]
        if metric not in known:
            raise ValueError(f"SLO {term!r}: unknown metric {metric!r}; known are {', '.join(sorted(known))}")
        if metric in bounds:
            raise ValueError(f"SLO {term!r}: {metric} is bounded twice")
        try:
            bounds[metric] = parse_duration_s(match["bound"])
        except ValueError as error:
            raise ValueError(f"SLO {term!r}: {error}") from None
        if bounds[metric] <= 0:
            raise ValueError(f"SLO {term!r}: the bound must be above 0")
    return Slo(**{f"{metric}_s": bound for metric, bound in bounds.items()}, clock=clock)  # type: ignore[arg-type]
