"""A recorded load: which part of a trace is sent, how fast, and how its files are read."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, field_validator

from loadgen.scenario.option import SAMPLED, Settings, setting
from loadgen.scenario.reading import TraceSource
from loadgen.scenario.settings import Text, parse_window_s

__all__ = ["TraceSettings"]

_setting = partial(setting, panel="Traces")


class _Replay(Settings):
    replicates: Literal["blocks", "repeats", "once"] = _setting(  # once: loadgen replay
        "blocks",
        "Runs of a trace: blocks (disjoint stretches) or repeats (the same window).",
        metavar="HOW",
        on=SAMPLED,
    )
    rate_method: Literal["time", "thin", "superpose"] = _setting(
        "time", "How a trace is brought to a rate: time, thin or superpose.", metavar="HOW"
    )
    trace_window: Text | None = _setting(
        None, "Use only this part of the trace, such as 10m..40m.", metavar="A..B", on=SAMPLED
    )
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = _setting(
        None, "Replay this many times faster than recorded.", on=("replay",)
    )
    jitter_within_tick: bool = _setting(False, "Spread requests that share one tick of a coarse clock over the tick.")
    sessions: Literal["timestamps", "dependent"] = _setting(
        "timestamps",
        "When the turns of a session are sent: timestamps (as recorded) or dependent (after the previous answer).",
        metavar="HOW",
        on=("replay",),
    )
    share_content: bool = _setting(False, "Give a block the same tokens in every run.")
    trace_sha256: str | None = None  # of what is read from the file; filled in where it is not given
    lengths_sha256: str | None = None

    @field_validator("trace_window")
    @classmethod
    def _trace_window_parses(cls, text: str | None) -> str | None:
        if text is not None:
            parse_window_s(text)
        return text


class TraceSettings(TraceSource, _Replay):
    """A trace as the load."""
