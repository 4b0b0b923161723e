"""The evidence: how long a run lasts, how many runs prove a rate, with which seeds, and what is kept of them."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from analysis.units import format_duration, parse_share
from loadgen.common import defaults
from loadgen.scenario.option import SAMPLED, Settings, setting
from loadgen.scenario.settings import Seconds, SecondsOrZero, Share, Text

__all__ = ["EvidenceSettings"]

_Seed = Annotated[int, Field(ge=0, lt=2**63)]
_setting = partial(setting, panel="Evidence")
_searched = partial(setting, panel="Evidence", on=("sweep",))


class EvidenceSettings(Settings):
    """How much is measured."""

    window: Seconds = _setting(defaults.WINDOW_S, "Measured window of a run.", on=SAMPLED)
    cohort: Annotated[int, Field(ge=1, le=10_000_000)] | None = _setting(
        None, "Requests in the measured window, instead of --window.", on=SAMPLED
    )
    warmup: SecondsOrZero = _setting(
        defaults.WARMUP_S, "Warm-up of a run.", shown=f"{defaults.WARMUP_S:g}s, or longer if answers are"
    )
    timeout: Seconds | None = _setting(
        None,
        "Time limit of one request, no shorter than the SLO allows it.",
        shown="from the SLO and the longest output, "
        f"{format_duration(defaults.MIN_TIMEOUT_S)} to {format_duration(defaults.MAX_TIMEOUT_S)}",
    )
    runs: Annotated[int, Field(ge=1, le=1000)] = _searched(
        defaults.RUNS, "R, the fresh runs that must all pass at the rate that is published."
    )
    explore: Annotated[int, Field(ge=1, le=1000)] = _searched(
        defaults.EXPLORE, "Runs that must pass at a rate before the search goes on above it."
    )
    all_runs: bool = _searched(False, "In a table, make all R runs of a rate although one of them failed.")
    confirm: Annotated[int, Field(ge=0, le=1000)] | None = _searched(
        None, "Has no effect: R fresh runs prove a rate.", hidden=True
    )
    width: Share = _searched(defaults.WIDTH, "Width of the rate grid.")
    seeds: Text | None = _setting(
        None, "Seeds of the R fresh runs (of a table: of its runs), such as 101..110.", metavar="A..B"
    )
    seed: _Seed | None = _setting(None, "One seed that all others derive from.", shown=str(defaults.SEED))
    seeding: Literal["paired", "fresh"] = _searched(
        "paired", "paired (the same seeds at every rate) or fresh (not with --seeds).", metavar="HOW"
    )
    arrival_seed: _Seed | None = _setting(None, "Change the arrivals alone.")
    workload_seed: _Seed | None = _setting(None, "Change lengths and content alone.")

    @field_validator("width")
    @classmethod
    def _width_is_sensible(cls, width: str) -> str:
        if not Fraction(1, 1000) <= parse_share(width) <= 1:
            raise ValueError(f"{width!r} is not a grid width between 0.1% and 100%")
        return width

    @model_validator(mode="after")
    def _window_and_seeds_agree(self) -> Self:
        if self.seeds is not None and self.seed is not None:
            raise ValueError(
                "seeds and seed exclude each other: give the replicates' seeds, or one seed that derives them"
            )
        if self.seeds is not None and self.seeding == "fresh":
            raise ValueError(
                "seeds and seeding = fresh exclude each other: fresh draws new seeds for every rate; give seed"
            )
        if self.cohort is not None and "window" in self.model_fields_set:
            raise ValueError(
                "cohort and window exclude each other: the window lasts until the cohort's requests are in it"
            )
        return self
