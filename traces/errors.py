"""Errors of a trace, one line each: `file:line: what; how many rows; what to pass`."""

from __future__ import annotations

__all__ = ["TraceError", "printable"]


def printable(text: object, limit: int = 60) -> str:
    """`text` as it may be shown on a terminal: control characters escaped, at most `limit` characters."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text)[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


class TraceError(ValueError):
    """A trace file that cannot be read as asked, or a transform that cannot be made.

    `path`, `line` (1-based, 0 where no line is to blame), `what`, `rows` and `remedy` are kept apart for callers that
    show more than the line.
    """

    def __init__(self, what: str, *, path: object = "", line: int = 0, rows: str = "", remedy: str = "") -> None:
        self.what, self.path, self.line, self.rows, self.remedy = what, str(path), line, rows, remedy
        where = printable(path, 200) if path else ""
        if where:
            where += f":{line}: " if line else ": "
        super().__init__(where + "; ".join(part for part in (what, rows, remedy) if part))
