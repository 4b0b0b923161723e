"""How trace files are read: settings that scenarios and `loadgen trace` share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import Field, field_validator

from loadgen.common.errors import ScenarioError
from loadgen.scenario.option import LOADS, Settings, setting
from loadgen.scenario.settings import Text, parse_window_s
from traces.collect import OnInvalid
from traces.read import read_trace
from traces.report import ReadReport
from traces.trace import Trace

__all__ = ["Converting", "Describing", "Reading", "TraceSource", "parse_mapping", "read_files"]

_setting = partial(setting, panel="Traces")
_READERS = (*LOADS, "describe", "convert")


class Reading(Settings):
    """How a trace's files are understood; `None`: as their content says."""

    format: str | None = _setting(
        None, "Format of the trace, where its content does not tell (see docs/traces.md).", metavar="NAME", on=_READERS
    )
    map: str | None = _setting(
        None,
        "Columns of any table, or paths such as usage.prompt_tokens, for timestamp, input, output and, where they "
        "are, session and hashes: timestamp=ts,input=prompt,output=completion.",
        metavar="NAME=COLUMN,…",
        on=_READERS,
    )
    unit: str | None = _setting(
        None, "Unit of the timestamps, with --map: iso, s, ms, us or ns.", metavar="UNIT", on=_READERS
    )
    block_tokens: Annotated[int, Field(ge=1)] | None = _setting(
        None, "Tokens that a block id stands for, instead of the format's own number.", on=_READERS
    )
    on_invalid: OnInvalid = _setting(
        "error", "What to do with rows that cannot be used: error, drop or clip.", metavar="POLICY", on=_READERS
    )


class TraceSource(Reading):
    """A trace as a source of requests."""

    max_model_len: Annotated[int, Field(ge=2)] | None = _setting(
        None,
        "Largest input plus output, tokens; a longer row cannot be used (see --on-invalid).",
        on=(*LOADS, "convert"),
    )


class Converting(TraceSource):
    """The settings of `loadgen trace convert`."""


class Describing(Reading):
    """The settings of `loadgen trace describe`."""

    max_model_len: Annotated[int, Field(ge=2)] | None = _setting(
        None, "Also print the share of requests with more tokens, input plus output.", on=("describe",)
    )
    window: Text | None = _setting(
        None,
        "Describe only this part of the trace, such as 10m..40m, silence included.",
        metavar="A..B",
        on=("describe",),
    )
    bins: Annotated[int, Field(ge=1, le=1000)] = _setting(
        24, "Bars in the plot of the rate over time.", on=("describe",)
    )

    @field_validator("window")
    @classmethod
    def _window_parses(cls, text: str | None) -> str | None:
        if text is not None:
            parse_window_s(text)
        return text


def read_files(
    path: str | Sequence[str], reading: Reading, *, max_tokens: int | None = None
) -> tuple[Trace, ReadReport]:
    """Read files as one trace; rows of more than `max_tokens` in all cannot be used.

    Raises `TraceError`, and `ScenarioError` for the settings themselves.
    """
    return read_trace(
        path,
        format=reading.format,
        mapping=parse_mapping(reading.map),
        unit=reading.unit,
        block_tokens=reading.block_tokens,
        on_invalid=reading.on_invalid,
        max_tokens=max_tokens,
    )


def parse_mapping(text: str | None) -> dict[str, str]:
    """`timestamp=ts,input=prompt_tokens,output=completion_tokens` as a dict. Raises `ScenarioError`."""
    mapping: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        name, equals, column = part.partition("=")
        if not equals or not name.strip() or not column.strip():
            raise ScenarioError(
                f"--map {text!r}: {part!r} is not NAME=COLUMN; write timestamp=ts,input=prompt,output=completion"
            )
        if name.strip() in mapping:
            raise ScenarioError(f"--map {text!r}: {name.strip()} is given twice")
        mapping[name.strip()] = column.strip()
    return mapping
