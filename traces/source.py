"""A trace file as bytes: compression, encodings and placeholders told apart, text cut into blocks of whole lines.

Theory of operation. A file is opened once and its first 64 KiB are looked at: compression (gzip, zstd, by magic
number, never by name), a byte-order mark, UTF-16, a Git-LFS pointer, Parquet. Text then comes in blocks of about
16 MiB, each cut behind a line end that is not inside a quoted CSV value, with the number of its first line, so that
memory is bounded by a block whatever the file's size, and every row has an exact line number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from traces.errors import TraceError, printable

__all__ = ["Block", "Source", "open_source"]

BLOCK_BYTES: Final = 16 << 20
MAX_LINE_BYTES: Final = 64 << 20
HEAD_BYTES: Final = 64 << 10
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole lines: `data` ends with a line end, except perhaps at the file's end."""

    data: bytes
    first_line: int
    lines: int


@dataclass(slots=True, kw_only=True)
class Source:
    """An open trace file, its first bytes, and what is known of it. `blocks()` can be run once."""

    path: Path
    head: bytes  # decompressed, without byte-order mark
    container: str  # "text" or "parquet"
    stream: Any
    pending: bytes  # read already, not yet given out

    def fault(self, what: str, *, line: int = 0, rows: str = "", remedy: str = "") -> TraceError:
        """A `TraceError` about this file, to be raised by the caller."""
        return TraceError(what, path=self.path, line=line, rows=rows, remedy=remedy)

    def blocks(self, *, quoted: bool, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
        """Blocks of whole lines; with `quoted`, a line end inside a CSV value in double quotes does not count.

        Raises `TraceError` for NUL bytes, a line over 64 MiB, and compressed data that ends early or is damaged.
        """
        line, rest, at_end = 1, self.pending, False
        while not at_end:
            piece = self._read(block_bytes, line)
            at_end = not piece
            data = rest + piece
            cut = len(data) if at_end else _last_line_end(data, quoted)
            if not cut and len(data) > MAX_LINE_BYTES:
                raise self.fault("a line longer than 64 MiB", line=line, remedy="look for a quote that is never closed")
            rest, data = data[cut:], data[:cut]
            if not data:
                continue
            if b"\0" in data:
                bad = line + data.count(b"\n", 0, data.index(b"\0"))
                raise self.fault(
                    "a NUL byte",
                    line=bad,
                    rows="nothing was read",
                    remedy="pass a text file; this one is binary or damaged",
                )
            ends = data.count(b"\n")
            yield Block(data=data, first_line=line, lines=ends + (not data.endswith(b"\n")))
            line += ends

    def _read(self, size: int, line: int) -> bytes:
        try:
            return bytes(self.stream.read(size))
        except OSError as fault:
            what = f"the compressed data is damaged or ends early ({printable(fault)})"
            raise self.fault(
                what, line=line, rows=f"{line - 1} lines could be read", remedy="fetch the file again"
            ) from None


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Open a trace file. Raises `TraceError` for what is no trace: missing, empty, UTF-16, a Git-LFS pointer."""
    path = Path(path)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "no such file"
        raise TraceError(what, path=path, remedy="pass the path of one trace file")
    with path.open("rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        codec = "gzip" if magic[:2] == b"\x1f\x8b" else "zstd" if magic == b"\x28\xb5\x2f\xfd" else None
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec) if codec else raw
        source = Source(path=path, head=b"", container="text", stream=stream, pending=b"")
        first = source._read(HEAD_BYTES, 1)
        if first[:4] == b"PAR1":
            if codec:
                raise source.fault(f"Parquet inside {codec}", remedy="unpack it first: Parquet is compressed already")
            source.container = "parquet"
        _refuse_placeholders(source, first)
        source.head = source.pending = first.removeprefix(_BOM)
        yield source


def _refuse_placeholders(source: Source, first: bytes) -> None:
    if not first.removeprefix(_BOM).strip():
        raise source.fault("the file is empty", rows="0 rows", remedy="pass a file with requests")
    if first.startswith(b"version https://git-lfs.github.com/spec/"):
        raise source.fault(
            "a Git-LFS pointer, not the data", rows="0 rows", remedy="run `git lfs pull` and pass the real file"
        )
    if source.container == "parquet":
        return
    every_other_byte_is_0 = first[1::2][:64].count(0) > 16 or first[::2][:64].count(0) > 16
    if first[:2] in (b"\xff\xfe", b"\xfe\xff") or every_other_byte_is_0:
        raise source.fault("UTF-16 text", rows="nothing was read", remedy="convert it: iconv -f UTF-16 -t UTF-8")
    if b"\n" not in first and b"\r" in first.rstrip(b"\r"):
        raise source.fault("lines end in a bare carriage return", remedy="convert the line ends: tr '\\r' '\\n'")


def _last_line_end(data: bytes, quoted: bool) -> int:
    cut = data.rfind(b"\n") + 1
    while quoted and cut and b'"' in data and data.count(b'"', 0, cut) % 2:
        # the last quote before the cut opens a value that holds the line end: cut before it
        cut = data.rfind(b"\n", 0, data.rfind(b'"', 0, cut)) + 1
    return cut
