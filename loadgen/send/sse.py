"""Server-sent events out of bytes, without I/O: lines, fields and blank lines as the WHATWG standard has them.

How the network cut a body into pieces cannot change its events, and what they cost grows with their bytes alone: a
`Splitter` keeps the open event as the pieces it came in, and joins them once, when a blank line ends it. An event's
`end` is the number of bytes after which it is complete: just past the first byte of the line end that closes its blank
line.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["Event", "Splitter", "split_events"]

_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BLANK: Final = (b"\n\n", b"\n\r", b"\r\r")  # the two bytes at which a blank line is known

Event = tuple[int, bytes, bytes]  # end, event name (b"" if none), data


class Splitter:
    """Cuts a stream into events while it arrives."""

    __slots__ = ("_begun", "_last", "_open", "open_bytes")

    def __init__(self) -> None:
        self._open: list[bytes] = []  # what no blank line has ended yet
        self._last = b""  # its last byte
        self._begun = False  # an event went before: a byte order mark is none any more
        self.open_bytes = 0

    def feed(self, piece: bytes) -> list[Event]:
        """The events with data that `piece` completes; each `end` counts from the beginning of `piece`."""
        if piece.endswith(b"\n\n"):
            end = len(piece)
        else:
            end = max(map(piece.rfind, _BLANK)) + 2 if b"\r" in piece else piece.rfind(b"\n\n") + 2
            if end < 2:
                end = 1 if self._last + piece[:1] in _BLANK else 0
        if not end:
            self._keep(piece)
            return []
        before = self.open_bytes
        block = piece[:end] if not before else b"".join((*self._open, piece[:end]))
        events = split_events(block, flush=False, begun=self._begun)
        self._begun = True
        if before:
            self._open, self.open_bytes = [], 0
        self._last = b""
        if end < len(piece):
            self._keep(piece[end:])
        return [(at - before, name, data) for at, name, data in events] if before else events

    def rest(self) -> list[Event]:
        """The event that the end of the body cut off before its blank line, if it has data.

        The standard drops it, but servers exist that end on `data: [DONE]` without one.
        """
        return split_events(self.open, flush=True, begun=self._begun)

    @property
    def open(self) -> bytes:
        """The event that is not over, as far as it has come."""
        return b"".join(self._open)

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._open.append(piece)
            self._last = piece[-1:]
            self.open_bytes += len(piece)


def split_events(body: bytes, *, flush: bool, begun: bool = False) -> list[Event]:
    """All events of `body` that carry data, as (end, name, data).

    `flush` also yields an event that the end of the body cut off before its blank line. `begun`: `body` is not the
    beginning of its stream.
    """
    start = len(_BOM) if not begun and body.startswith(_BOM) else 0
    if b"\r" in body:
        return _split_by_line(body, start, flush=flush)
    if body.startswith(b"data: ") and body.endswith(b"\n\n"):  # nearly all there is: nothing but one-line data
        pieces = body[6:-2].split(b"\n\ndata: ")
        if body.count(b"\n") == 2 * len(pieces) and all(pieces):
            end = 0
            return [(end := end + len(data) + 8, b"", data) for data in pieces]
    events: list[Event] = []
    blocks = (body[start:] if start else body).split(b"\n\n")
    rest = blocks.pop()
    end = start
    for block in blocks:
        end += len(block) + 2
        if b"data" in block and (event := _fields(block.split(b"\n"))) is not None:
            events.append((end, *event))
    if flush and (event := _fields(rest.split(b"\n"))) is not None:
        events.append((len(body), *event))
    return events


def _split_by_line(body: bytes, start: int, *, flush: bool) -> list[Event]:
    events: list[Event] = []
    lines: list[bytes] = []
    for match in _LINE_END.finditer(body, start):
        line = body[start : match.start()]
        start = match.end()
        if line:
            lines.append(line)
        elif lines:
            if (event := _fields(lines)) is not None:
                events.append((match.start() + 1, *event))
            lines = []
    if flush:
        lines.append(body[start:])
        if (event := _fields(lines)) is not None:
            events.append((len(body), *event))
    return events


def _fields(lines: list[bytes]) -> tuple[bytes, bytes] | None:
    """Name and data of one event; `None` for one without data, such as a comment."""
    name, data = b"", []
    for line in lines:
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value[1:] if value.startswith(b" ") else value)
        elif field == b"event":
            name = value.strip()
    joined = b"\n".join(data)
    return (name, joined) if joined else None
