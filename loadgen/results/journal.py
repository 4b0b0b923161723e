"""The journal of one run: every finished request, appended while the run is on.

Theory of operation. The sender calls `add` on its event loop; that appends to a list and returns. A thread wakes ten
times a second, takes what is there, encodes it a few rows at a time (so that it never holds the interpreter for long)
and appends whole lines to the file. A killed process loses at most what was added since the last wake-up; the last
line may be torn, and `read` drops it. A write error (a full disk) is kept in `failure`, and nothing more is written:
the run must stop, because an unrecorded run is useless.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import orjson

from loadgen.send.api import RequestValues

__all__ = ["Journal", "read"]

_BATCH_ROWS = 64
_PERIOD_S = 0.1

Row = tuple[RequestValues, list[tuple[int, int]]]


class Journal:
    """An append-only file of request rows; a context manager, whose exit writes what is left."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises `OSError` when it cannot be."""
        self.path = path
        self.failure: OSError | None = None
        self._file = path.open("xb", buffering=0)
        self._pending: list[Row] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="journal", daemon=True)

    def part(self, worker: int) -> Path:
        """The file of one sending process, where several send: its requests' journal, beside this one."""
        return self.path.with_name(f"{self.path.stem}-{worker}{self.path.suffix}")

    def add(self, row: RequestValues, events: list[tuple[int, int]]) -> None:
        """Append one finished request; never blocks."""
        self._pending.append((row, events))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        self._file.close()

    def _write_until_closed(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            self._write_pending()
        self._write_pending()

    def _write_pending(self) -> None:
        rows, self._pending = self._pending, []
        if self.failure is not None:
            return
        try:
            for start in range(0, len(rows), _BATCH_ROWS):
                self._write_all(b"".join(map(_encode, rows[start : start + _BATCH_ROWS])))
        except OSError as error:
            self.failure = error

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


def _encode(row: Row) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def read(path: Path) -> Iterator[Row]:
    """The whole lines of a journal, in the order the requests ended; a torn last line is dropped."""
    with path.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                return
            values, events = orjson.loads(line)
            yield tuple(values), [(at, tokens) for at, tokens in events]
