"""Text that came from a server or a file, made fit for a terminal, a table or a report."""

from __future__ import annotations

from typing import Final

__all__ = ["Passing", "bounded", "printable"]

_BOUND: Final = 200


def printable(text: str, limit: int | None = None) -> str:
    """`text` with everything unprintable escaped (ANSI and bidi controls among it), cut to `limit` characters."""
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return escaped if limit is None or len(escaped) <= limit else escaped[: limit - 1] + "…"


def bounded(text: str | bytes, limit: int = _BOUND) -> str:
    """`printable`, of at most `limit` characters, at a cost that does not grow with what was received."""
    if isinstance(text, bytes):
        text = text[: 4 * (limit + 1)].decode("utf-8", "replace")
    text = text[: limit + 1]
    return text if len(text) <= limit and text.isprintable() else printable(text, limit)


class Passing(str):
    """A line that is soon followed by another one in its place, such as how long something has been waited for."""

    __slots__ = ()
