"""Server-sent events out of bytes, without I/O: lines, fields and blank lines as the WHATWG standard has them.

The whole body is split at once, so how the network cut it into reads cannot change the result. An event's `end` is the
number of bytes after which it is complete: just past the first byte of the line end that closes its blank line.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["split_events"]

_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")

Event = tuple[int, bytes, bytes]  # end, event name (b"" if none), data


def split_events(body: bytes, *, flush: bool) -> list[Event]:
    """All events of `body` that carry data, as (end, name, data).

    `flush` also yields an event that the end of the body cut off before its blank line: the standard drops it, but
    servers exist that end on `data: [DONE]` without one. Pass it only for a body known to be whole.
    """
    start = len(_BOM) if body.startswith(_BOM) else 0
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
        if (event := _fields(block.split(b"\n"))) is not None:
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
