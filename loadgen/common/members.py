"""Members of a JSON object that is sent: composed here, never taken apart."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.common.errors import UsageError

__all__ = ["JsonMembers"]


@dataclass(frozen=True, slots=True)
class JsonMembers:
    """The members of a request's JSON object in their order, each value encoded already."""

    encoded: Mapping[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of(**members: Any) -> JsonMembers:
        """Raises `UsageError` for a value that JSON cannot hold."""
        encoded = {}
        for name, value in members.items():
            try:
                encoded[name] = orjson.dumps(value)
            except TypeError as error:
                raise UsageError(f"the API extra {name!r} has no JSON form: {error}") from None
        return JsonMembers(encoded)

    def __contains__(self, name: str) -> bool:
        return name in self.encoded

    def __or__(self, more: JsonMembers) -> JsonMembers:
        """These and more, which win; a member that is replaced keeps its place."""
        return JsonMembers({**self.encoded, **more.encoded})

    def only(self, names: Container[str]) -> JsonMembers:
        """Those of the given names."""
        return JsonMembers({name: value for name, value in self.encoded.items() if name in names})

    def to_json(self) -> bytes:
        """The object."""
        return b"{" + b",".join(b"%s:%s" % (orjson.dumps(name), value) for name, value in self.encoded.items()) + b"}"
