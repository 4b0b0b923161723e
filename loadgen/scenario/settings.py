"""The kinds of value a setting can have, however it was written: in TOML, as an option, or as stored with results."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field, PlainSerializer

from analysis.units import parse_duration_s, parse_share
from loadgen.common.headers import stored_header
from loadgen.scenario.option import Written

__all__ = [
    "Command",
    "Extras",
    "Headers",
    "Notes",
    "ScrapeInterval",
    "Seconds",
    "SecondsOrZero",
    "Share",
    "Text",
    "Texts",
    "parse_token_ids",
    "parse_window_s",
]


def _seconds(value: object) -> float:
    return parse_duration_s(str(value))


def _interval(value: object) -> float:
    """Seconds between two readings of the target's metrics; 0 for never."""
    if value in (0, "off"):
        return 0.0
    seconds = parse_duration_s(str(value))
    if not 0.2 <= seconds <= 60:
        raise ValueError(f"{value!r} is not between 200ms and 60s; 'off' reads nothing while load is on")
    return seconds


def _share(value: object) -> str:
    """One spelling for one value: `0.05`, `.05`, `5.0 %` and `5e-2` are `5%`."""
    percent = parse_share(str(value)) * 100
    places = 0  # what is written in decimals ends in decimals
    while percent * 10**places % 1:
        places += 1
    digits = str(int(percent * 10**places)).zfill(places + 1)
    return f"{digits[:-places]}.{digits[-places:]}%" if places else f"{digits}%"


def _many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _words(value: object) -> object:
    """A command as a shell would split it; no shell runs it."""
    words = shlex.split(value) if isinstance(value, str) else value
    if isinstance(value, str) and not words:
        raise ValueError("the command is empty")
    return words


def _notes(value: object) -> object:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    notes = {}
    for text in value:
        key, equals, told = str(text).partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{text!r} is not of the form KEY=VALUE, such as gpu='H100 SXM'")
        notes[key.strip()] = told
    return notes


def _extras(value: object) -> object:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    extras = {}
    for text in value:
        key, equals, raw = str(text).partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{text!r} is not of the form KEY=JSON, such as priority=1 or user='\"me\"'")
        try:
            extras[key.strip()] = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{text!r}: the part after = is not JSON ({error})") from None
    return extras


def parse_window_s(text: str) -> tuple[float, float]:
    """Start and end in seconds of `10m..40m`; `10m..` and `..40m` are open at one end. Raises `ValueError`."""
    start, dots, end = text.partition("..")
    if not dots or not (start.strip() or end.strip()):
        raise ValueError(f"{text!r} is not a window of a trace; write START..END, such as 10m..40m, 10m.. or ..40m")
    bounds = parse_duration_s(start) if start.strip() else 0.0, parse_duration_s(end) if end.strip() else math.inf
    if not bounds[0] < bounds[1]:
        raise ValueError(f"{text!r} is an empty window: its end must lie behind its start")
    return bounds


def parse_token_ids(text: str) -> tuple[int, int]:
    """Both ends of a range of vocabulary ids, `1000..4000`. Raises `ValueError`."""
    low, dots, high = text.partition("..")
    if not dots or not low.strip().isdecimal() or not high.strip().isdecimal() or int(low) >= int(high):
        raise ValueError(f"{text!r} is not a range of vocabulary ids; write it as 1000..4000")
    return int(low), int(high)


_AS_TEXT = PlainSerializer(lambda seconds: f"{seconds!r}s", when_used="json")
_DURATION = Written(metavar="DURATION")
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0), _AS_TEXT, _DURATION]
SecondsOrZero = Annotated[float, BeforeValidator(_seconds), Field(ge=0), _AS_TEXT, _DURATION]
ScrapeInterval = Annotated[
    float, BeforeValidator(_interval), PlainSerializer(lambda s: f"{s!r}s" if s else "off", when_used="json"), _DURATION
]
Share = Annotated[str, BeforeValidator(_share), Written(metavar="SHARE")]
Text = Annotated[str, BeforeValidator(str), Written(metavar="TEXT")]
Texts = Annotated[tuple[str, ...], BeforeValidator(_many), Written(metavar="TEXT", many=True)]
Command = Annotated[tuple[str, ...], BeforeValidator(_words), Written(metavar="COMMAND")]
Headers = Annotated[
    Texts, PlainSerializer(lambda entries: [stored_header(entry) for entry in entries], when_used="json")
]
Notes = Annotated[dict[str, Text], BeforeValidator(_notes), Written(metavar="KEY=VALUE", many=True)]
Extras = Annotated[dict[str, Any], BeforeValidator(_extras), Written(metavar="KEY=JSON", many=True)]
