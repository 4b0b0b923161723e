"""What a format is: a name, a container, and which column means what. A new flat format is one `Layout`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from traces.decode import Clock

__all__ = ["Columns", "Container", "Filter", "Layout"]

Container = Literal["table", "lines", "records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Rows that are left out for what a column says: where `keep`, given, does not match it, or `drop` does.

    Patterns are matched against the whole value, case ignored; an empty value is never left out.
    """

    column: str
    reason: str
    keep: str = ""
    drop: str = ""

    def leaves_out(self, value: str | None) -> bool:
        """Whether a row with this value goes."""
        if not value:
            return False
        if self.keep and not re.fullmatch(self.keep, value, re.IGNORECASE):
            return True
        return bool(self.drop) and re.fullmatch(self.drop, value, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of one file, as found: names, empty where the file has none."""

    at: str
    input: str
    output: str
    hashes: str = ""
    session: str = ""
    row_id: str = ""
    parent: str = ""
    status: str = ""
    duration: str = ""

    def names(self) -> list[str]:
        """All columns to be read, once each."""
        every = (
            self.at,
            self.input,
            self.output,
            self.hashes,
            self.session,
            self.row_id,
            self.parent,
            self.status,
            self.duration,
        )
        return list(dict.fromkeys(name for name in every if name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One format. Column entries list alternatives; the first that a file has is taken, by name, never by position.

    `clock` is the unit the format defines. `block_tokens` is the size of a hash block, 0 where there are none. `marks`
    and one of `any_of` must be present, `alien` absent, for the format to be recognised; an `explicit` one is never
    chosen by content. `zero_output_fails`: the format records failures as rows without output. `ok_status`: values of
    the status column that mean success. `filters` leave rows out. `duration`: the instant is the request's end, and
    this column, in seconds, goes off it.
    """

    name: str
    about: str
    container: tuple[Container, ...]
    at: tuple[str, ...]
    input: tuple[str, ...]
    output: tuple[str, ...]
    clock: Clock = "iso"
    clocks: dict[str, Clock] = field(default_factory=dict)  # where alternatives of `at` differ in unit
    hashes: tuple[str, ...] = ()
    block_tokens: int = 0
    session: tuple[str, ...] = ()
    row_id: tuple[str, ...] = ()
    parent: tuple[str, ...] = ()
    status: tuple[str, ...] = ()
    ok_status: frozenset[str] = frozenset({"success", "ok", "200", ""})
    duration: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    marks: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    alien: tuple[str, ...] = ()
    zero_output_fails: bool = False
    explicit: bool = False
    notes: tuple[str, ...] = ()

    def resolve(self, names: Collection[str]) -> Columns | None:
        """The columns of a file with these names, or None where a needed one is missing."""
        chosen = {part: _first(getattr(self, part), names) for part in Columns.__dataclass_fields__}
        if not (chosen["at"] and chosen["input"] and chosen["output"]):
            return None
        if self.duration and not chosen["duration"] and self.clock_of(chosen["at"])[1]:
            return None
        return Columns(**chosen)

    def clock_of(self, at: str) -> tuple[Clock, bool]:
        """The unit of the timestamp column, and whether it is the end of the request."""
        return self.clocks.get(at, self.clock), bool(self.duration) and at not in ("start_time", "startTime")

    def claims(self, names: Collection[str]) -> bool:
        """Whether a file with these columns looks like this format."""
        if any(mark not in names for mark in self.marks) or any(name in names for name in self.alien):
            return False
        if self.any_of and not any(name in names for name in self.any_of):
            return False
        return self.resolve(names) is not None


def _first(alternatives: tuple[str, ...], names: Collection[str]) -> str:
    return next((name for name in alternatives if name in names), "")
