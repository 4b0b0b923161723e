"""Request headers as the user writes them: `Name: value`, or `Name: env:VARIABLE`. Values are secrets throughout.

No message, log or file ever holds a value that was written out; `stored_header` is what an experiment keeps of one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from loadgen.common.errors import UsageError

__all__ = ["load_headers", "stored_header"]

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ENV: Final = "env:"
_OURS: Final = frozenset({"content-length", "transfer-encoding", "host", "connection", "content-type"})


def load_headers(entries: Iterable[str]) -> dict[str, str]:
    """Names and values. Raises `UsageError` that names the header and never holds its value."""
    headers: dict[str, str] = {}
    for entry in entries:
        name, colon, value = (part.strip() for part in entry.partition(":"))
        if not colon or not _NAME.fullmatch(name):
            raise UsageError("--header is not of the form 'Name: value', with a name of letters, digits and dashes")
        if not value:
            raise UsageError(f"--header {name}: it has no value (none is stored): give it as --header '{name}: …'")
        if name.lower() in _OURS:
            raise UsageError(f"--header {name}: loadgen sets that header itself")
        if name.lower() in map(str.lower, headers):
            raise UsageError(f"--header {name} is given twice")
        if value.startswith(_ENV):
            variable = value.removeprefix(_ENV)
            if variable not in os.environ:
                raise UsageError(f"--header {name}: environment variable {variable} is not set")
            value = os.environ[variable].strip()
        if not (value.isascii() and value.isprintable()):
            raise UsageError(f"--header {name}: its value is not one line of printable ASCII")
        headers[name] = value
    return headers


def stored_header(entry: str) -> str:
    """What may be kept of an entry: all of it where it names a variable, else the header's name alone."""
    name, _, value = (part.strip() for part in entry.partition(":"))
    return f"{name}: {value}" if value.startswith(_ENV) else f"{name}:"
