"""Events of a Chrome trace, as PyTorch's profiler (Kineto) writes them, one after the other in bounded memory.

Theory of operation. A trace is one JSON object whose `traceEvents` is a list of millions of objects, or that list.
The text comes in pieces. What has come is cut behind some `}` that a comma and a `{` follow, and brackets are put
around it. If that is valid JSON, the cut lies between two events: a cut inside a string or inside a nested value leaves
something unclosed. So each batch costs one call of a fast parser and no scan of our own. If no cut works, more text is
awaited, up to a bound. The end is parsed together with the keys that follow the list.

Kineto writes NaN, inf and text that is not UTF-8 in places; only where a batch does not parse are these replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from analysis.text import bounded

__all__ = ["Event", "EventStream", "Malformed"]

Event = dict[str, Any]
BATCH_BYTES: Final = 1 << 20
LIMIT_BYTES: Final = 64 << 20  # of one event, of what precedes the list and of what follows it
_TRIES: Final = 32
_LIST: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN: Final = re.compile(rb"\}\s*,(?=\s*\{)")
_NO_NUMBER: Final = re.compile(rb"(?<=[:,\[])(\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)


class Malformed(ValueError):
    """The text is no Chrome trace; the message says why and where, in one line."""


class EventStream:
    """The events of a trace whose text comes in pieces, in the order of the file; can be run through once.

    `header` holds the keys before the list of events. Raises `Malformed`, also while it is run through.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._offset = 0  # of the text that is not used yet
        self._rest = b""
        self._bare = False  # the list alone
        self.header: Event = self._begin()

    @property
    def read_bytes(self) -> int:
        """How much text was used so far."""
        return self._offset

    def __iter__(self) -> Iterator[Event]:
        text, wanted = self._rest, BATCH_BYTES
        for piece in self._pieces:
            text += piece
            if len(text) < wanted:
                continue
            found = _batch(text)
            if found is None:
                if len(text) > LIMIT_BYTES:
                    where = f"within {LIMIT_BYTES >> 20} MiB from byte {self._offset} on"
                    raise Malformed(f"no event ends {where}: write the profile again")
                wanted = 2 * len(text)
                continue
            events, used = found
            text, wanted = text[used:], BATCH_BYTES
            self._offset += used
            yield from _objects(events)
        opening = b"[" if self._bare else b'{"traceEvents":['
        try:
            document = _loads(opening + text)
        except orjson.JSONDecodeError:
            self._refuse(opening + text, len(opening))
        self._offset += len(text)
        yield from _objects(document if self._bare else document["traceEvents"])

    def _begin(self) -> Event:
        """Read up to the first event."""
        text, searched = b"", 0
        for piece in self._pieces:
            text += piece
            for found in _LIST.finditer(text, searched):
                header = _header(text[: found.start()])
                if header is not None:
                    self._offset, self._rest = found.end(), text[found.end() :]
                    return header
            first = text.lstrip()[:1]
            if first == b"[":
                self._bare, self._offset = True, text.index(b"[") + 1
                self._rest = text[self._offset :]
                return {}
            if first and first != b"{":
                raise Malformed(f'not JSON: it begins with "{bounded(text.lstrip()[:20])}"')
            if len(text) > LIMIT_BYTES:
                raise Malformed(f"no traceEvents in its first {LIMIT_BYTES >> 20} MiB: not a Chrome trace")
            searched = max(0, len(text) - 64)
        if not text.strip():
            raise Malformed("the file is empty")
        try:
            _loads(text)
        except orjson.JSONDecodeError:
            self._refuse(text, 0)
        raise Malformed("no list traceEvents in it: not a Chrome trace")

    def _refuse(self, text: bytes, added: int) -> None:
        """Raise what is wrong with the text, the first `added` bytes of which are not the file's."""
        try:
            _loads(text)
        except orjson.JSONDecodeError as error:
            at = self._offset + max(0, error.pos - added)
            if error.pos >= len(text.rstrip()):
                raise Malformed(
                    f"the file ends inside the trace, at byte {at}: copy it again, or profile again"
                ) from None
            raise Malformed(f"not valid JSON near byte {at}: write the profile again") from None
        raise AssertionError("text that parses is not refused")


def _batch(text: bytes) -> tuple[list[Any], int] | None:
    """The events before the last possible cut, and how many bytes they and their comma take."""
    cuts: list[tuple[int, int]] = []
    for begin in (max(0, len(text) - 65536), 0):
        cuts = [(found.start() + 1, found.end()) for found in _BETWEEN.finditer(text, begin)]
        for end, used in reversed(cuts[-_TRIES:]):
            try:
                return _loads(b"[" + text[:end] + b"]"), used
            except orjson.JSONDecodeError:
                continue
    return None


def _header(text: bytes) -> Event | None:
    """The keys before the list, if this text is just that."""
    try:
        header = _loads(text.rstrip().rstrip(b",") + b"}")
    except orjson.JSONDecodeError:
        return None
    return header if isinstance(header, dict) else None


def _loads(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        repaired = _NO_NUMBER.sub(rb"\1null", text).decode("utf-8", "replace").encode()
        if repaired == text:
            raise
        return orjson.loads(repaired)


def _objects(events: list[Any]) -> Iterator[Event]:
    return (event for event in events if isinstance(event, dict))
