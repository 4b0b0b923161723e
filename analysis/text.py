"""Text that came from a server or a file, made fit for a terminal, a table or a report."""

from __future__ import annotations

__all__ = ["Passing", "printable"]


def printable(text: str, limit: int | None = None) -> str:
    """`text` with everything unprintable escaped (ANSI and bidi controls among it), cut to `limit` characters."""
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return escaped if limit is None or len(escaped) <= limit else escaped[: limit - 1] + "…"


class Passing(str):
    """A line that is soon followed by another one in its place, such as how long something has been waited for."""

    __slots__ = ()
