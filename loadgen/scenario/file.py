"""Scenarios from TOML files, ready-made or the user's own, under the command line's options."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.common.errors import ScenarioError
from loadgen.scenario.comparison import ComparisonSettings
from loadgen.scenario.groups.load import OF_FILE
from loadgen.scenario.model import Scenario
from loadgen.scenario.overrides import Overrides, Value
from loadgen.scenario.validate import validated

__all__ = ["SHIPPED", "load_comparison", "load_scenario"]

_PATHS = ("api_key_file", "ca_file", "cert_file", "key_file", "lengths", "arrivals")
_NOT_TOML = (".yaml", ".yml", ".json")
# an option on the command line displaces these keys of the file, which it would otherwise contradict
_RIVALS = {
    "seeds": ("seed",),
    "seed": ("seeds",),
    "cv": ("burstiness",),
    "burstiness": ("cv",),
    "lengths": ("input", "output"),
    "window": ("cohort",),
    "cohort": ("window",),
    "input": ("lengths",),
    "output": ("lengths",),
}


def _shipped() -> Path:
    package = Path(__file__).parents[1]
    inside = package / "scenarios"  # in a wheel
    return inside if inside.is_dir() else package.parent / "scenarios"


SHIPPED = _shipped()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A scenario file as it was read, not validated."""

    path: Path
    values: Mapping[str, Any]

    def under(self, overrides: Overrides, *, without: frozenset[str] = frozenset()) -> Scenario:
        """Its scenario under the command line's options; keys `without` are none of it."""
        values = {key: value for key, value in self.values.items() if key not in without}
        validated(Scenario, values, str(self.path), option=False)  # blame the file for what is in the file
        for key in overrides.values:
            for rival in _RIVALS.get(key, ()):
                values.pop(rival, None)
        return validated(Scenario, values | dict(overrides.values), "", option=True)


def _read_toml(source: str) -> _File:
    path = Path(source)
    if not path.suffix and not path.exists():
        path = SHIPPED / f"{source}.toml"
    try:
        with path.open("rb") as stream:
            values = tomllib.load(stream)
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.toml")))
        raise ScenarioError(f"--scenario {source}: no such file; ready scenarios are {known}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        if path.suffix.lower() in _NOT_TOML and not isinstance(error, OSError):
            raise ScenarioError(
                f"--scenario {path}: scenarios are TOML (key = value; keys are the long options with underscores)"
            ) from None
        raise ScenarioError(f"--scenario {path}: {error}") from None
    for key in _PATHS:  # a scenario's files lie beside it
        if isinstance(values.get(key), str):
            kind, colon, file = values[key].partition(":")
            prefixed = bool(colon) and kind in OF_FILE
            if prefixed or key != "arrivals":
                values[key] = (f"{kind}:" if prefixed else "") + str(path.parent / (file if prefixed else values[key]))
    return _File(path=path, values=values)


def load_scenario(source: str | None, overrides: Mapping[str, Any]) -> Scenario:
    """A scenario from a TOML file (or the name of a shipped one) under the command line's options.

    Raises `ScenarioError` with one line that names the file or option, the key and the remedy.
    """
    if source is None:
        return validated(Scenario, overrides, "", option=True)
    file = _read_toml(source)
    if "variant" in file.values:
        raise ScenarioError(
            f"--scenario {file.path}: holds variants, and this command measures one target: use loadgen compare, or "
            "give target in their place"
        )
    return file.under(Overrides(overrides))


def load_comparison(
    source: str | None, overrides: Mapping[str, Value], compared: Mapping[str, Value]
) -> tuple[Scenario, ComparisonSettings]:
    """The settings that all variants share, and the comparison's own, from a file under the command line's options.

    `compared` are options of the comparison; `--variant` takes the place of the file's variants. Raises as
    `load_scenario` does.
    """
    own: dict[str, Any] = {}
    if source is None:
        scenario = validated(Scenario, overrides, "", option=True)
    else:
        file = _read_toml(source)
        own = {key: value for key, value in file.values.items() if key in ComparisonSettings.model_fields}
        if own:
            validated(ComparisonSettings, own, str(file.path), option=False)
        scenario = file.under(Overrides(overrides), without=frozenset(own))
    if "target" in scenario.model_fields_set:
        raise ScenarioError("target: a comparison has variants in its place: name=URL[,URL…],gpus=N")
    if scenario.recorded:
        raise ScenarioError(
            "arrivals = trace: the blocks of a trace have no pairs; compare under fit-gamma:FILE or fit-mmpp:FILE, "
            "with lengths = trace:FILE"
        )
    return scenario, validated(ComparisonSettings, own | dict(compared), "", option=not own)
