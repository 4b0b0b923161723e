"""The settings of a comparison: its variants, and what is asked of the difference between them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from analysis.search import RateList, parse_rates
from loadgen.common import defaults
from loadgen.scenario.groups.target import SECRET
from loadgen.scenario.option import Settings, Written, setting
from loadgen.scenario.settings import SecondsOrZero, Share, Text, Texts
from loadgen.send.routing import Routing

__all__ = ["ComparisonSettings", "VariantSettings", "parse_variant"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)
_Table = Mapping[str, object]  # a variant as it was written
_setting = partial(setting, panel="Comparison", on=("compare",))


class VariantSettings(Settings):
    """One configuration of the server: where it is or how it is started, and the GPUs it takes."""

    name: str
    target: Texts = ()
    gpus: Annotated[int, Field(ge=1, le=100_000)] = 1
    model: str | None = None
    routing: Routing | None = None
    launch: str | None = None  # the command that starts the server, with {port}; no shell runs it
    env: Mapping[str, str] = Field(default_factory=dict)  # added to this process's environment for it
    cwd: str | None = None
    ready_timeout: SecondsOrZero | None = None
    tp: Annotated[int, Field(ge=1)] | None = None  # ranks of tensor parallelism
    pp: Annotated[int, Field(ge=1)] | None = None  # stages of pipeline parallelism
    replicas: Annotated[int, Field(ge=1)] | None = None  # servers behind the target, where URLs do not say it
    alternative_of: str | None = None  # the variant that this one tunes

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name in ("all", "none"):
            raise ValueError(f"{name!r} is not a name: use letters, digits, '.', '_' and '-', at most 40")
        return name

    @field_validator("launch")
    @classmethod
    def _launch_is_a_command(cls, launch: str | None) -> str | None:
        if launch is None:
            return None
        try:
            words = shlex.split(launch)
        except ValueError as error:
            raise ValueError(f"the command cannot be split into words: {error}") from None
        if not words:
            raise ValueError("the command is empty")
        if any(SECRET.search(word) for word in words):
            raise ValueError("the command names a secret and would be stored: pass it by env, as 'env:VARIABLE'")
        return launch

    @field_validator("env")
    @classmethod
    def _secrets_come_from_the_environment(cls, env: Mapping[str, str]) -> Mapping[str, str]:
        for key, value in env.items():
            if SECRET.search(key) and not value.startswith("env:"):
                raise ValueError(f"{key} looks like a secret and would be stored: write '{key} = \"env:VARIABLE\"'")
        return env

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if bool(self.target) == (self.launch is not None):
            raise ValueError(f"variant {self.name}: give target, or launch (the command that starts it)")
        simulated = [url for url in self.target if url.partition(":")[0] in ("virtual", "emulator")]
        if simulated and len(self.target) > 1:
            raise ValueError(
                f"variant {self.name}: {simulated[0]} cannot be one of several URLs; simulate replicas by "
                f"{simulated[0]}?parallel.replicas={len(self.target)}"
            )
        if self.launch is None and (self.env or self.cwd is not None):
            raise ValueError(f"variant {self.name}: env and cwd belong to launch")
        if self.replicas is not None and len(self.target) > 1 and len(self.target) != self.replicas:
            raise ValueError(f"variant {self.name}: replicas = {self.replicas} with {len(self.target)} URLs")
        for key, needed in (("tp", self.tp), ("pp", self.pp)):
            if needed is not None and needed > self.gpus:
                raise ValueError(f"variant {self.name}: {key} = {needed} needs {needed} GPUs; gpus = {self.gpus}")
        return self

    @property
    def served_by(self) -> int:
        """Servers that share the load."""
        return self.replicas or max(1, len(self.target))


def parse_variant(text: str) -> VariantSettings:
    """A variant as an option: `tp4=http://127.0.0.1:8000,http://127.0.0.1:8001,gpus=4`. Raises `ValueError`."""
    return _variant(_written(text))


def _written(text: str) -> dict[str, str | tuple[str, ...]]:
    """The keys of a variant that is written as an option."""
    name, equals, rest = text.partition("=")
    if not equals or not rest.strip():
        raise ValueError(f"{text!r} is not a variant: write name=URL[,URL…],gpus=N")
    values: dict[str, str | tuple[str, ...]] = {"name": name.strip()}
    urls = []
    for part in rest.split(","):
        key, equals, value = part.strip().partition("=")
        if equals and key in VariantSettings.model_fields and key not in ("name", "target", "launch", "env", "cwd"):
            values[key] = value
        elif equals and key.isidentifier():
            known = ", ".join(sorted(set(VariantSettings.model_fields) - {"name", "target", "launch", "env", "cwd"}))
            raise ValueError(f"variant {name.strip()}: unknown key {key!r}; known keys are {known}")
        else:
            urls.append(part.strip())
    return {**values, "target": tuple(urls)}


def _variant(values: object) -> VariantSettings:
    try:
        return VariantSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = values.get("name") if isinstance(values, Mapping) else None
        key = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        if text.startswith("variant "):
            raise ValueError(text) from None
        raise ValueError(f"variant {name or '?'}: {key}{': ' if key else ''}{text}") from None


def _inherited(one: _Table, base: _Table) -> _Table:
    """An alternative with what its variant says and itself does not: GPUs, layout, model, how it is launched."""
    keys = ("gpus", "tp", "pp", "model", "ready_timeout", *(("env", "cwd") if one.get("launch") else ("replicas",)))
    return {key: base[key] for key in keys if key in base} | dict(one)


def _variants(value: object) -> object:
    """Variants as options or as tables of a file."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    written = [_written(one) if isinstance(one, str) else one for one in value]
    tables = [one for one in written if isinstance(one, Mapping)]
    bases = {one.get("name"): one for one in tables if one.get("alternative_of") is None}
    return tuple(
        _variant(_inherited(one, bases.get(one.get("alternative_of"), {})) if isinstance(one, Mapping) else one)
        for one in written
    )


class ComparisonSettings(Settings):
    """What is compared, and how large a difference counts."""

    variant: Annotated[
        tuple[VariantSettings, ...], BeforeValidator(_variants), Written(metavar="NAME=URL,gpus=N", many=True)
    ] = _setting(
        (),
        "A configuration to compare: name=URL[,URL…],gpus=N; repeat it. Several URLs are replicas behind one name.",
        metavar="NAME=URL,gpus=N",
    )
    per_gpu: bool = _setting(False, "--rate and --paired-rate are per GPU of a variant, not in all.")
    paired_rate: Text | None = _setting(
        None,
        "Further rates of the paired phase, such as 2,4,6.",
        metavar="RATE",
        shown="each variant's λ*, the larger of every two for both, and the smallest for all",
    )
    indifference: Share = _setting(defaults.INDIFFERENCE, "A difference of G_card below this share does not matter.")
    together: bool = _setting(
        False, "Start all launched variants at once: they do not share GPUs. Otherwise they run one at a time."
    )
    too_large_for_one_gpu: bool = _setting(
        False, "The model does not fit one GPU: the decision rule takes the smallest TP that holds it as its baseline."
    )
    price_per_gpu_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = _setting(
        None, "Price of a GPU hour, for the cost per million joint-good output tokens."
    )

    @field_validator("paired_rate")
    @classmethod
    def _paired_rates_are_a_list(cls, text: str | None) -> str | None:
        if text is not None and not isinstance(parse_rates(text), RateList):
            raise ValueError(f"{text!r} is a range to search; name the rates, such as 2,4,6 or 2..18:2")
        return text

    @model_validator(mode="after")
    def _variants_can_be_compared(self) -> Self:
        names = [one.name for one in self.variant]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"variant {twice} is named twice")
        bases = {one.name for one in self.variant if one.alternative_of is None}
        for one in self.variant:
            if one.alternative_of is not None and one.alternative_of not in bases:
                raise ValueError(f"variant {one.name}: alternative_of = {one.alternative_of!r} is not a variant")
        if len(bases) < 2:
            said = ", ".join(sorted(bases)) or "none"
            raise ValueError(f"a comparison needs two variants or more, not {said}: repeat --variant name=URL,gpus=N")
        return self
