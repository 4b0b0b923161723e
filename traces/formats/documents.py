"""JSON of any shape as a stream of records: one object a line, one array, one object around an array, or several.

Theory of operation. Where the first line is a whole object, each line is parsed by itself, so that a broken one costs
one row. Anything else is parsed element by element from a buffer that grows only until the next element is whole: an
export of any size on one line takes the memory of its largest record. Numbers stay exact (ints and `Decimal`s).
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from traces.errors import TraceError
from traces.source import MAX_HEAD_BYTES, LineChunk, Source

__all__ = ["Head", "dig", "documents", "expand", "head_objects", "load_json", "one_a_line"]

# what exports call the list of their records
_LISTS: Final = ("data", "Records", "observations", "resourceSpans")
_FIRST_LINES: Final = 20
_LONG_LINE: Final = 1 << 20
_MAX_RECORD: Final = 256 << 20
_SPACE: Final = " \t\r\n\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """The first objects of a JSON file, parsed: what its layout is recognised by."""

    objects: list[dict[str, Any]]

    def names(self) -> list[str]:
        """The keys that any of them has, in the order in which they come."""
        return list(dict.fromkeys(key for one in self.objects for key in one))

    def kind(self, path: tuple[str, ...]) -> type:
        """The Python type of what the first of them has at a path of keys; NoneType where there is nothing."""
        return type(dig(self.objects[0], path)) if self.objects else type(None)


def _exact(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds
        return text


_DECODER: Final = json.JSONDecoder(parse_float=_exact, parse_constant=str)


def load_json(text: str | bytes) -> Any:
    """One JSON value, numbers exact (ints, `Decimal`s), NaN and Infinity as strings. Raises `ValueError`."""
    try:
        return json.loads(text, parse_float=_exact, parse_constant=str)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dig(record: Any, path: tuple[str, ...]) -> Any:
    """The value at a path of keys, None where there is none; a string that holds JSON is looked into."""
    for key in path:
        if isinstance(record, str) and record.lstrip()[:1] == "{":
            try:
                record = load_json(record)
            except ValueError:
                return None
        record = record.get(key) if isinstance(record, dict) else None
    return record


def expand(document: Any) -> Iterator[Any]:
    """The records of one document: itself, or those of the list it is or holds."""
    if isinstance(document, list):
        yield from document
        return
    held = next((document[key] for key in _LISTS[:3] if isinstance(document.get(key), list)), None) \
        if isinstance(document, dict) else None  # fmt: skip
    if held is None:
        yield document
    else:
        yield from held


def one_a_line(source: Source) -> bool:
    """Whether the file has one JSON object a line; the first ones may be broken."""
    lines = source.head.lstrip().split(b"\n", _FIRST_LINES)
    if len(lines) > _FIRST_LINES or not source.whole:
        lines.pop()  # the rest, or a line cut by the head's end
    if not lines or not lines[0].startswith(b"{") or len(lines[0].strip()) < 2:
        return False
    if len(lines[0]) > _LONG_LINE and not b"".join(lines[1:]).strip() and source.whole:
        return False  # one long document, better read by the record
    return any(isinstance(_parsed(line), dict) for line in lines)


def _parsed(text: bytes) -> Any:
    try:
        return load_json(text)
    except ValueError:
        return None


def documents(source: Source) -> Iterator[tuple[int, Any]]:
    """Parsed records with their line, 0 where the file is one document. Unparsable lines give None.

    Raises `TraceError` for a document that is not JSON, or has a record of more than 256 MiB.
    """
    if one_a_line(source):
        for block in source.blocks():
            yield from _by_line(block)
    else:
        yield from ((0, value) for value in _Stream(source, source.pieces()).values())


def _by_line(block: LineChunk) -> Iterator[tuple[int, Any]]:
    for number, text in enumerate(block.data.split(b"\n"), start=block.first_line):
        if text.strip():
            yield number, _parsed(text)


def head_objects(source: Source, limit: int = 200) -> Head:
    """The first objects of a JSON file, for its layout to be recognised by; looks on where the first one is long."""
    while True:
        found: list[dict[str, Any]] = []
        if one_a_line(source):
            lines = source.head.splitlines()
            if len(lines) > 1 and not source.head.endswith(b"\n") and not source.whole:
                lines.pop()
            block = LineChunk(data=b"\n".join(lines[:limit]), first_line=1, lines=0)
            found = [one for _, value in _by_line(block) for one in expand(value) if isinstance(one, dict)]
        else:
            try:
                for value in _Stream(source, iter([source.head])).values():
                    found += [one for one in expand(value) if isinstance(one, dict)][: limit - len(found)]
                    if len(found) == limit:
                        break
            except TraceError:
                # the head ends in the middle of a record, or what is there is broken
                if source.whole and not found:
                    raise
        if (
            found
            or len(source.head) >= MAX_HEAD_BYTES
            or not source.look_further(8 * len(source.head), whole_line=False)
        ):
            return Head(objects=found)


class _Stream:
    """A parser that takes text by the piece and gives values by the record."""

    def __init__(self, source: Source, pieces: Iterator[bytes]) -> None:
        self._source, self._pieces = source, pieces
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._text, self._at, self._line, self._ended = "", 0, 1, False

    def values(self) -> Iterator[Any]:
        while self._peek():
            if self._peek() == "[":
                yield from self._elements()
            elif self._peek() == "{":
                yield from self._object()
            else:
                yield self._value()

    def _elements(self) -> Iterator[Any]:
        self._at += 1
        while self._peek() != "]":
            yield self._value()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "]":
                raise self._fault("Expecting ',' delimiter")
        self._at += 1

    def _object(self) -> Iterator[Any]:
        record: dict[str, Any] = {}
        streamed = False
        self._at += 1
        while self._peek() != "}":
            key = self._value() if self._peek() == '"' else None
            if not isinstance(key, str) or self._peek() != ":":
                raise self._fault("Expecting a property name and ':'")
            self._at += 1
            if key in _LISTS and self._peek() == "[":
                streamed = True
                for element in self._elements():
                    yield {key: [element]} if key == "resourceSpans" else element
            else:
                record[key] = self._value()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != "}":
                raise self._fault("Expecting ',' delimiter")
        self._at += 1
        if not streamed:
            yield record

    def _peek(self) -> str:
        """The next character that is not a space, "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        if not self._peek():
            raise self._fault("Expecting value")
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as fault:
                if self._more():
                    continue
                raise self._fault(fault.msg, fault.pos) from None
            except RecursionError:
                raise self._fault("nested too deeply") from None
            except ValueError as fault:
                raise self._fault(str(fault)) from None
            if end == len(self._text) and not isinstance(value, dict | list | str) and self._more():
                continue  # a number may go on
            self._at = end
            return value

    def _more(self) -> bool:
        """At least as much text again as is waiting to be parsed, so that a long record is not parsed many times."""
        wanted = len(self._text) - self._at
        if self._ended:
            return False
        if wanted > _MAX_RECORD:
            raise self._fault("one record of more than 256 MiB")
        self._line += self._text.count("\n", 0, self._at)
        parts, got = [self._text[self._at :]], 0
        while got <= wanted:
            piece = next(self._pieces, b"")
            text = self._decode(piece, not piece)
            parts.append(text)
            got += len(text)
            if not piece:
                self._ended = True
                break
        self._text, self._at = "".join(parts), 0
        return got > 0

    def _fault(self, message: str, at: int | None = None) -> TraceError:
        line = self._line + self._text.count("\n", 0, self._at if at is None else at)
        return self._source.fault(
            f"not JSON: {message}", line=line, rows="nothing was read", remedy="export it again: it seems cut short"
        )
