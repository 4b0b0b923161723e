"""What a user set on the command line, before it is validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Overrides", "Value"]

Value = str | int | float | bool | Sequence[str]  # as a command line gives it


@dataclass(frozen=True, slots=True)
class Overrides:
    """The settings that were given as options, by their keys; false if there are none."""

    values: Mapping[str, Value] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def and_(self, **more: Value) -> Overrides:
        """These and more, which win."""
        return Overrides({**self.values, **more})
