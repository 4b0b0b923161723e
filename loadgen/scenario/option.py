"""A setting as an option of the command line: its help, panel and default stand in the settings' own field.

`setting(…)` declares a field; `options_of(Scenario, "sweep")` gives what a command line needs of each field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

__all__ = ["ANYWHERE", "LOADS", "SAMPLED", "Option", "Settings", "Written", "not_hashed", "options_of", "setting"]

LOADS: Final = ("sweep", "run", "replay")
ANYWHERE: Final = (*LOADS, "check")
SAMPLED: Final = ("sweep", "run")  # a replayed trace has its own arrivals and lengths

_Kind = Literal["text", "texts", "int", "float", "flag"]


class Settings(BaseModel):
    """Settings that belong together; field names are the keys of a scenario file."""

    # built at the first use: the groups of a scenario are never read by themselves
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How a kind of value is written on the command line, where its Python type does not say it."""

    metavar: str
    many: bool = False  # the option may be repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command."""

    name: str  # the setting's key
    help: str  # with the default in it
    panel: str
    metavar: str
    kind: _Kind
    hidden: bool

    @property
    def flag(self) -> str:
        """As it is typed."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """What `setting` keeps beside a field."""

    panel: str = ""
    on: Sequence[str] = ()
    metavar: str = ""
    shown: str = ""
    hidden: bool = False
    hashed: bool = True


def setting(
    default: Any,
    text: str,
    *,
    panel: str,
    on: Sequence[str] = LOADS,
    metavar: str = "",
    shown: str = "",
    hidden: bool = False,
    hashed: bool = True,
    secret: bool = False,
) -> Any:
    """A field that is an option of the commands `on`.

    `shown` names a default that is not a constant; `metavar` is the kind's own if it is empty. A setting that is not
    `hashed` cannot change a result; a `secret` one is in no repr.
    """
    how = _How(panel=panel, on=list(on), metavar=metavar, shown=shown, hidden=hidden, hashed=hashed)
    return Field(default, description=text, repr=not secret, json_schema_extra=asdict(how))


def options_of(settings: type[BaseModel], command: str) -> list[Option]:
    """The options that a command takes, in the order of the fields."""
    found = []
    for name, field in settings.model_fields.items():
        how = _how(field)
        if command not in how.on:
            continue
        written = _written(field)
        found.append(
            Option(
                name=name,
                help=_help(field, how.shown or _default(field, written)),
                panel=how.panel,
                metavar=how.metavar or (written.metavar if written else _METAVARS[_plain(field)]),
                kind=_kind(field, written),
                hidden=how.hidden,
            )
        )
    return found


def not_hashed(settings: type[BaseModel]) -> frozenset[str]:
    """The keys that cannot change a result."""
    return frozenset(name for name, field in settings.model_fields.items() if not _how(field).hashed)


_METAVARS: Final[dict[_Kind, str]] = {"text": "TEXT", "texts": "TEXT", "int": "N", "float": "X", "flag": ""}


def _how(field: FieldInfo) -> _How:
    kept: Any = field.json_schema_extra
    return _How(**kept) if isinstance(kept, dict) else _How()


def _help(field: FieldInfo, default: str) -> str:
    text = (field.description or "").rstrip(".")
    return f"{text} (default {default})." if default else f"{text}."


def _default(field: FieldInfo, written: Written | None) -> str:
    value = field.default
    if value is None or value is False or value in ((), {}):
        return ""
    if written is not None and written.metavar == "DURATION":
        return f"{value:g}s"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _written(field: FieldInfo) -> Written | None:
    """Of the field's kind, or of a member of `kind | None`."""
    members = (field.metadata, *(getattr(member, "__metadata__", ()) for member in get_args(field.annotation)))
    return next((entry for entries in members for entry in entries if isinstance(entry, Written)), None)


def _kind(field: FieldInfo, written: Written | None) -> _Kind:
    if written is not None:
        return "texts" if written.many else "text"
    return _plain(field)


def _plain(field: FieldInfo) -> _Kind:
    types = {field.annotation, *get_args(field.annotation)}
    types |= {inner for member in types for inner in get_args(member)[:1]}  # of Annotated[int, …]
    for kind, name in ((bool, "flag"), (int, "int"), (float, "float")):
        if kind in types:
            return name  # type: ignore[return-value]
    return "text"
