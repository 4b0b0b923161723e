"""Profiles: the servers that the emulator simulates, as TOML files with documented constants.

A profile is named by the stem of a file shipped in the directory beside this module, or is a path to a user's own
file. Its `kind` says which model it describes; `KINDS` is the one list of them. Unknown keys and impossible values are
refused with the file and the key.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loadgen.common.errors import UsageError
from loadgen.emulator.fcfs import FcfsModel, ServiceMix
from loadgen.emulator.model import Model
from loadgen.emulator.service import WeibullService

_SHIPPED = resources.files("loadgen.emulator").joinpath("profiles")

__all__ = ["FcfsProfile", "Profile", "ProfileFile", "ServerLimits", "load_profile", "profile_names", "read_profile"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerLimits(_Strict):
    """What the HTTP face needs to know of the pretended model, and vLLM's options that concern it, by their names."""

    max_model_len: int = Field(default=32768, ge=2)
    vocab_size: int = Field(default=32000, ge=2048, le=1_000_000)
    eos_mean_tokens: float = Field(default=64.0, ge=1, allow_inf_nan=False)
    stream_interval: int = Field(default=1, ge=1)  # tokens merged into one event
    enable_prompt_tokens_details: bool = False  # usage tells what of the prompt was cached


class Service(_Strict):
    """Service times: a discrete mixture (`times_ms`, `shares`), or a Weibull law (`mean_ms`, `weibull_shape`)."""

    times_ms: tuple[Positive, ...] = ()
    shares: tuple[Positive, ...] = ()
    mean_ms: Positive | None = None
    weibull_shape: Annotated[float, Field(ge=0.1, le=10)] | None = None  # 1: exponential
    seed: int = Field(default=0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _match(self) -> Self:
        if (self.mean_ms is None) != (self.weibull_shape is None):
            raise ValueError("mean_ms and weibull_shape go together")
        if (self.mean_ms is None) == (not self.times_ms and not self.shares):
            raise ValueError("give either times_ms and shares, or mean_ms and weibull_shape")
        if self.mean_ms is not None:
            return self
        if len(self.times_ms) != len(self.shares):
            raise ValueError("times_ms and shares must have the same number of entries")
        if abs(sum(self.shares) - 1) > 1e-9:
            raise ValueError(f"shares must sum to 1, not {sum(self.shares):g}")
        return self


class Profile(_Strict):
    """What every kind of profile has. `simulated` is always true: nothing measured on it says anything of a GPU."""

    kind: str
    description: str = Field(min_length=1)
    simulated: Literal[True] = True
    server: ServerLimits = ServerLimits()

    def build(self) -> Model:
        """A fresh model of this profile, empty and idle."""
        raise NotImplementedError


class FcfsProfile(Profile):
    """The single-server queue."""

    kind: Literal["fcfs"]
    service: Service

    def mix(self) -> ServiceMix | WeibullService:
        """The service distribution in nanoseconds."""
        service = self.service
        if service.mean_ms is not None and service.weibull_shape is not None:
            return WeibullService(mean_ns=service.mean_ms * 1e6, shape=service.weibull_shape)
        return ServiceMix(times_ns=tuple(round(time_ms * 1e6) for time_ms in service.times_ms), shares=service.shares)

    def build(self) -> Model:
        """An empty queue."""
        return FcfsModel(self.mix(), self.service.seed)


# kind -> module and class, imported when a profile of it is read: a kind's module builds on this one
KINDS: Final = {
    "fcfs": ("loadgen.emulator.profiles", "FcfsProfile"),
    "batching": ("loadgen.emulator.engine.profile", "BatchingProfile"),
}


def profile_names() -> list[str]:
    """The names of the shipped profiles, sorted."""
    files = _SHIPPED.iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_profile(name: str, settings: Sequence[str] = ()) -> Profile:
    """The profile of that name, or of the file at that path (it ends in .toml or has a slash). Raises `UsageError`.

    A name may bring settings of its own: `llama8b-80gb?step.jitter=0.05&parallel.replicas=2`. Each of `settings` is
    `key=value` with a dotted key of the file and a value as TOML writes it (a word needs no quotes); it takes the place
    of the file's, and the description says so.
    """
    return read_profile(name, settings).profile()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileFile:
    """A profile file as it is written: its TOML `tables`, not checked yet, and `where` they are, for messages."""

    where: str
    tables: dict[str, Any]

    def profile(self) -> Profile:
        """The profile that the tables describe. Raises `UsageError` naming the file and the key."""
        try:
            kind = self.tables.get("kind")
            if not isinstance(kind, str) or kind not in KINDS:
                raise ValueError(f"key kind must be one of {', '.join(sorted(KINDS))}, not {kind!r}")
            module, name = KINDS[kind]
            profile: Profile = getattr(import_module(module), name).model_validate(self.tables)
        except ValueError as error:
            raise UsageError(f"emulator profile {self.where}: {_first_line(error)}") from None
        return profile

    def put(self, setting: str) -> None:
        """Replace a key by what `key=value` says. Raises `UsageError`."""
        key, equals, text = setting.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise UsageError(f"--set {setting}: write it as key=value, such as --set scheduler.max_num_seqs=4")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        section = self.tables
        for name in path[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise UsageError(f"--set {setting}: {name} is not a section of the profile")
        section[path[-1]] = value

    def text(self) -> str:
        """The tables as TOML: keys of no section first, then one section after the other."""
        sections = {key: value for key, value in self.tables.items() if isinstance(value, dict)}
        lines = [_line(key, value) for key, value in self.tables.items() if key not in sections]
        for name, section in sections.items():
            lines += ["", f"[{name}]", *(_line(key, value) for key, value in section.items())]
        return "\n".join(lines) + "\n"


def read_profile(name: str, settings: Sequence[str] = ()) -> ProfileFile:
    """A profile file by name or path with `settings` put in, as for `load_profile`. Raises `UsageError`."""
    name, asked, own = name.partition("?")
    settings = (*(own.split("&") if asked else ()), *settings)
    if name.endswith(".toml") or "/" in name:
        where = name
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(f"emulator profile {name}: cannot be read: {reason}") from None
    elif name in profile_names():
        where = f"{name}.toml"
        text = _SHIPPED.joinpath(where).read_text(encoding="utf-8")
    else:
        known = ", ".join(profile_names())
        raise UsageError(f"unknown emulator profile {name!r}; there are {known}, or give the path of a .toml file")
    try:
        file = ProfileFile(where=where, tables=tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"emulator profile {where}: {error}") from None
    for setting in settings:
        file.put(setting)
    if settings and isinstance(file.tables.get("description"), str):
        file.tables["description"] += f" [with {', '.join(settings)}]"
    return file


def _line(key: str, value: object) -> str:
    # strings, numbers, booleans and lists of them are written alike in JSON and TOML
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _first_line(error: Exception) -> str:
    """One line that names the key."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if not key:  # said of several sections at once: the message names the key
        return first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}"
    return f"key {key}: {first['msg'].removeprefix('Value error, ')}"
