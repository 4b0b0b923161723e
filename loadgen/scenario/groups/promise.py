"""The promise: the SLO, and the share of requests that must keep it."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from analysis.slo import Slo, parse_slo
from analysis.units import parse_share
from loadgen.common import defaults
from loadgen.scenario.option import Settings, setting
from loadgen.scenario.settings import Share, Texts

__all__ = ["PromiseSettings"]

_setting = partial(setting, panel="Promise")


class PromiseSettings(Settings):
    """What must hold for a run to pass."""

    slo: Texts = _setting(
        (),
        "Bound on ttft, tpot, e2e or client_queue; repeat it for a joint SLO. < needs quotes: 'ttft<=800ms'.",
        metavar="ttft:800ms",
    )
    slo_clock: Literal["scheduled", "sent"] = _setting(
        "scheduled",
        "Where latencies start: scheduled (the planned arrival: what the user waits) or sent.",
        metavar="CLOCK",
    )
    attain: Share = _setting(defaults.ATTAIN, "Share of requests that must meet the SLO.")
    max_error_rate: Share = _setting(defaults.MAX_ERROR_RATE, "Largest share of errors.")
    min_requests: Annotated[int, Field(ge=1)] | None = _setting(
        None,
        "Smallest number of requests in a run that may pass.",
        shown=f"{defaults.MIN_REQUESTS}, or {defaults.MIN_MISSES}/(1 - attain) if that is more",
    )
    require: Annotated[float, Field(gt=0)] | None = _setting(
        None,
        "Test this rate and nothing else: exit with 0 only if R fresh runs keep the SLO there.",
        on=("sweep",),
        hashed=False,
    )
    search: bool = _setting(
        False, "With --require: search the rest of --rate after the required rate.", on=("sweep",), hashed=False
    )

    @field_validator("slo")
    @classmethod
    def _slo_parses(cls, terms: tuple[str, ...]) -> tuple[str, ...]:
        parse_slo(terms)
        return terms

    @field_validator("attain")
    @classmethod
    def _attain_above_zero(cls, attain: str) -> str:
        if parse_share(attain) == 0:
            raise ValueError("an attainment of 0 promises nothing; write the share that must meet the SLO, such as 95%")
        return attain

    @model_validator(mode="after")
    def _require_needs_an_slo(self) -> Self:
        if self.require is not None and not self.slo:
            raise ValueError("require needs an SLO of your own: the placeholder SLO decides nothing; set slo")
        if self.search and self.require is None:
            raise ValueError("search says what comes after a required rate: set require, or drop it; a sweep searches")
        return self

    @property
    def least_requests(self) -> int:
        """The smallest cohort that may pass: max(200, ⌈10/(1 − q)⌉) where it is not asked otherwise.

        At a share q of 99 %, 200 requests would pass with two misses, and say little of a thousand.
        """
        if self.min_requests is not None:
            return self.min_requests
        missing = 1 - parse_share(self.attain)
        return max(defaults.MIN_REQUESTS, math.ceil(defaults.MIN_MISSES / missing) if missing else 0)

    @cached_property
    def objective(self) -> Slo:
        """The SLO, or the placeholder that every output names."""
        if self.slo:
            return parse_slo(self.slo, clock=self.slo_clock)
        placeholder = parse_slo(defaults.PLACEHOLDER_SLO, clock=self.slo_clock)
        return Slo(ttft_s=placeholder.ttft_s, tpot_s=placeholder.tpot_s, clock=self.slo_clock, placeholder=True)
