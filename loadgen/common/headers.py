"""Request headers as the user writes them: `Name: value`, or `Name: env:VARIABLE`. Values are secrets throughout.

No message, log or file ever holds a value that was written out; `stored_header` is what an experiment keeps of one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from loadgen.common.errors import UsageError

__all__ = ["fault_of_header", "load_headers", "sendable", "stored_header"]

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ENV: Final = "env:"
_OURS: Final = frozenset({"content-length", "transfer-encoding", "host", "connection", "content-type"})


def sendable(value: str) -> bool:
    """Whether a header can carry this value: one line of printable ASCII."""
    return value.isascii() and value.isprintable()


def fault_of_header(name: str, value: str) -> str:
    """What is wrong with a request header, without its value; empty if nothing is."""
    if not _NAME.fullmatch(name):
        return "its name is not one of letters, digits and dashes"
    if name.lower() in _OURS:
        return "loadgen sets that header itself"
    return "" if sendable(value) else "its value is not one line of printable ASCII"


def load_headers(entries: Iterable[str]) -> dict[str, str]:
    """Names and values. Raises `UsageError` that names the header and never holds its value."""
    headers: dict[str, str] = {}
    for entry in entries:
        name, colon, value = (part.strip() for part in entry.partition(":"))
        if not colon or not _NAME.fullmatch(name):
            raise UsageError("--header is not of the form 'Name: value', with a name of letters, digits and dashes")
        if not value:
            raise UsageError(f"--header {name}: it has no value (none is stored): give it as --header '{name}: …'")
        if name.lower() in map(str.lower, headers):
            raise UsageError(f"--header {name} is given twice")
        if value.startswith(_ENV):
            variable = value.removeprefix(_ENV)
            if variable not in os.environ:
                raise UsageError(f"--header {name}: environment variable {variable} is not set")
            value = os.environ[variable].strip()
        if fault := fault_of_header(name, value):
            raise UsageError(f"--header {name}: {fault}")
        headers[name] = value
    return headers


def stored_header(entry: str) -> str:
    """What may be kept of an entry: all of it where it names a variable, else the header's name alone."""
    name, _, value = (part.strip() for part in entry.partition(":"))
    return f"{name}: {value}" if value.startswith(_ENV) else f"{name}:"
