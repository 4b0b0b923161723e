"""A trace file as bytes: recognises compression, archives, encodings and placeholders; cuts text into whole lines.

Theory of operation. A file, a pipe or standard input is opened once and its beginning looked at: compression (gzip,
zstd, bzip2, xz) and archives (zip, tar) by magic number, never by name; a byte-order mark, UTF-16, a Git-LFS pointer,
Parquet. Text then comes in blocks of about 16 MiB, each cut behind a line end that is not inside a quoted CSV value,
with the number of its first line, so that memory is bounded by a block for any file size, and every row has an
exact line number. What needs to be read in any order (Parquet, archives) is copied to a temporary file where it comes
through a pipe.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from traces.errors import TraceError, printable

__all__ = ["MAX_HEAD_BYTES", "STDIN", "Block", "Source", "open_source"]

STDIN: Final = "-"
BLOCK_BYTES: Final = 16 << 20
MAX_LINE_BYTES: Final = 64 << 20
HEAD_BYTES: Final = 64 << 10
MAX_HEAD_BYTES: Final = 16 << 20
_BOM: Final = b"\xef\xbb\xbf"
_TAR_MAGIC: Final = slice(257, 262)
_ARCHIVED_NOISE: Final = ("__MACOSX/", "._", ".DS_Store")
_DAMAGE: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole lines: `data` ends with a line end, except perhaps at the file's end."""

    data: bytes
    first_line: int
    lines: int


@dataclass(slots=True, kw_only=True)
class Source:
    """An open trace file, its first bytes, and what is known of it. `blocks()` or `pieces()` can be run once."""

    path: Path
    head: bytes  # decompressed, without byte-order mark
    container: str  # "text" or "parquet"
    stream: Any
    pending: bytes  # read already, not yet given out
    notes: list[str] = field(default_factory=list)  # what readers found that a person should know

    def fault(self, what: str, *, line: int = 0, rows: str = "", remedy: str = "") -> TraceError:
        """A `TraceError` about this file, to be raised by the caller."""
        return TraceError(what, path=self.path, line=line, rows=rows, remedy=remedy)

    @property
    def whole(self) -> bool:
        """Whether `head` is all there is."""
        return not self.stream

    def look_further(self, size: int, *, whole_line: bool = True) -> bool:
        """Make `head` at least `size` bytes long, and end behind the first line end; False where nothing is added."""
        before = len(self.head)
        parts = [self.head]
        length, lined = before, b"\n" in self.head
        while self.stream and (length < size or (whole_line and not lined and length < MAX_HEAD_BYTES)):
            piece = self.read(max(HEAD_BYTES, min(size - length, BLOCK_BYTES)), 1)
            lined = lined or b"\n" in piece
            parts.append(piece)
            length += len(piece)
        self.head = self.pending = b"".join(parts)
        return length > before

    def pieces(self) -> Iterator[bytes]:
        """The whole text in pieces of any length."""
        yield self.pending
        while self.stream:
            yield self.read(BLOCK_BYTES >> 4, 1)

    def blocks(self, *, quoted: bytes = b"", block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
        """Blocks of whole lines; with `quoted`, a CSV's delimiter, a line end inside a value in quotes does not count.

        Raises `TraceError` for NUL bytes, a line over 64 MiB, and compressed data that ends early or is damaged.
        """
        line, rest, at_end = 1, self.pending, False
        while not at_end:
            piece = self.read(block_bytes, line)
            at_end = not piece
            data = rest + piece
            cut = len(data) if at_end else _last_line_end(data, quoted)
            if not cut and len(data) > MAX_LINE_BYTES:
                raise self.fault("a line longer than 64 MiB", line=line, remedy="look for a quote that is never closed")
            rest, data = data[cut:], data[:cut]
            if not data:
                continue
            self.refuse_nul(data, line)
            ends = data.count(b"\n")
            yield Block(data=data, first_line=line, lines=ends + (not data.endswith(b"\n")))
            line += ends

    def refuse_nul(self, data: bytes, line: int) -> None:
        """Raise `TraceError` where the bytes from `line` on hold a NUL."""
        if b"\0" in data:
            raise self.fault(
                "a NUL byte",
                line=line + data.count(b"\n", 0, data.index(b"\0")),
                rows="nothing was read",
                remedy="pass a text file; this one is binary or damaged",
            )

    def read(self, size: int, line: int) -> bytes:
        """The next bytes, none at the end; `line` is where the reader stands, for the message of a fault."""
        if not self.stream:
            return b""
        try:
            data = bytes(self.stream.read(size))
        except _DAMAGE as fault:
            what = f"the compressed data is damaged or ends early ({printable(fault)})"
            raise self.fault(
                what, line=line, rows=f"{line - 1} lines could be read", remedy="fetch the file again"
            ) from None
        if not data:
            self.stream = None
        return data


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Open a trace file, a pipe, or standard input (`-`).

    Raises `TraceError` if it is not a trace: missing, empty, UTF-16, a Git-LFS pointer, an archive of several files.
    """
    with ExitStack() as stack:
        named = Path("standard input") if str(path) == STDIN else Path(path)
        source = Source(path=named, head=b"", container="text", stream=None, pending=b"")
        raw = sys.stdin.buffer if str(path) == STDIN else stack.enter_context(_opened(source))
        source.stream, layers = raw, []
        first = source.read(HEAD_BYTES, 1)
        while kind := _kind_of(first):
            layers.append(kind)
            if len(layers) > 3:
                raise source.fault("compressed more than three times over", remedy="unpack it first")
            inner = source.stream
            if kind in ("zip", "tar", "parquet"):
                inner = stack.enter_context(_seekable(raw if len(layers) == 1 else None, first, inner))
            else:
                inner = _Again(first, inner)
            if kind == "parquet":
                if len(layers) > 1 and layers[-2] not in ("zip", "tar"):
                    what = f"Parquet inside {layers[-2]}"
                    raise source.fault(what, remedy="unpack it first: Parquet is compressed already")
                source.container, source.stream = "parquet", inner
                break
            source.stream = _unpacked(source, kind, inner, stack)
            first = source.read(HEAD_BYTES, 1)
        _refuse_placeholders(source, first)
        source.head = source.pending = first.removeprefix(_BOM)
        if source.container == "text":
            source.look_further(HEAD_BYTES)
            if b"\n" not in source.head and b"\r" in source.head.rstrip(b"\r"):
                raise source.fault(
                    "lines end in a bare carriage return", remedy="convert the line ends: tr '\\r' '\\n'"
                )
        yield source


def _opened(source: Source) -> Any:
    path = source.path
    if path.is_dir():
        raise source.fault("is a directory", remedy="pass the path of one trace file")
    if not path.exists():
        raise source.fault("no such file", remedy="pass the path of one trace file")
    try:
        return path.open("rb")
    except OSError as fault:
        raise source.fault(f"cannot be read ({fault.strerror})", remedy="pass a file that can") from None


def _kind_of(first: bytes) -> str:
    magics = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"PAR1": "parquet"}
    found = next((kind for magic, kind in magics.items() if first.startswith(magic)), "")
    if found == "bz2" and first[4:10] not in (b"1AY&SY", b"\x17rE8P\x90"):
        found = ""
    if first[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        found = "zip"
    return "tar" if first[_TAR_MAGIC] == b"ustar" else found


class _Again(io.RawIOBase):
    """Bytes that were read already, then the rest of the stream."""

    def __init__(self, first: bytes, rest: Any) -> None:
        super().__init__()
        self._first, self._rest = first, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._first:
            given, self._first = (self._first, b"") if size < 0 else (self._first[:size], self._first[size:])
            return given
        return bytes(self._rest.read(size)) if self._rest else b""


def _unpacked(source: Source, kind: str, inner: Any, stack: ExitStack) -> Any:
    if kind in ("gzip", "zstd"):
        return pa.CompressedInputStream(pa.PythonFile(inner, mode="r"), kind)
    if kind == "bz2":
        return bz2.BZ2File(inner)
    if kind == "xz":
        return lzma.LZMAFile(inner)
    return _member(source, kind, inner, stack)


def _member(source: Source, kind: str, inner: Any, stack: ExitStack) -> Any:
    """The one file in an archive."""
    try:
        if kind == "zip":
            archive = stack.enter_context(zipfile.ZipFile(inner))
            if any(info.flag_bits & 1 for info in archive.infolist()):
                raise source.fault("an encrypted zip archive", remedy="unpack it first")
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
        else:
            bundle = stack.enter_context(tarfile.open(fileobj=inner))  # noqa: SIM115
            names = [member.name for member in bundle if member.isfile()]
    except _DAMAGE as fault:
        raise source.fault(f"a damaged {kind} archive ({printable(fault)})", remedy="fetch it again") from None
    names = [name for name in names if not any(f"/{name}".rpartition("/")[2].startswith(n) or n in name
                                               for n in _ARCHIVED_NOISE)]  # fmt: skip
    if len(names) != 1:
        shown = ", ".join(printable(name, 40) for name in names[:5]) + (", …" if len(names) > 5 else "")
        what = f"a {kind} archive of {len(names)} files" + (f" ({shown})" if names else "")
        raise source.fault(what, rows="nothing was read", remedy="unpack it and pass the files")
    try:
        return archive.open(names[0]) if kind == "zip" else bundle.extractfile(names[0])
    except (*_DAMAGE, NotImplementedError, RuntimeError) as fault:
        raise source.fault(f"a {kind} archive that cannot be read ({printable(fault)})", remedy="unpack it") from None


@contextmanager
def _seekable(raw: Any, first: bytes, rest: Any) -> Iterator[Any]:
    """The stream from its beginning, as a file that can be read in any order."""
    if raw is not None and raw.seekable():
        raw.seek(0)
        yield raw
        return
    with tempfile.TemporaryFile() as copy:
        copy.write(first)
        shutil.copyfileobj(rest, copy)
        copy.seek(0)
        yield copy


def _refuse_placeholders(source: Source, first: bytes) -> None:
    if not first.removeprefix(_BOM).strip():
        raise source.fault("the file is empty", rows="0 rows", remedy="pass a file with requests")
    if first.startswith(b"version https://git-lfs.github.com/spec/"):
        raise source.fault(
            "a Git-LFS pointer, not the data", rows="0 rows", remedy="run `git lfs pull` and pass the real file"
        )
    if source.container == "parquet":
        return
    if first.startswith((b"7z\xbc\xaf\x27\x1c", b"Rar!")):
        raise source.fault("a 7z or rar archive", rows="nothing was read", remedy="unpack it and pass the file")
    every_other_byte_is_0 = first[1::2][:64].count(0) > 16 or first[::2][:64].count(0) > 16
    if first[:2] in (b"\xff\xfe", b"\xfe\xff") or (every_other_byte_is_0 and first[:64].count(0) < 40):
        raise source.fault("UTF-16 text", rows="nothing was read", remedy="convert it: iconv -f UTF-16 -t UTF-8")


# a quote opens a value only at its start; a stray one inside a value is a character like any other
_QUOTED: Final = {
    mark: re.compile(rb"(?:(?<=[\n\r" + re.escape(mark) + rb'])|\A)"[^"]*+(?:""[^"]*+)*+("?)')
    for mark in (b",", b";", b"\t", b"|")
}


def _last_line_end(data: bytes, quoted: bytes) -> int:
    cut = data.rfind(b"\n") + 1
    if not quoted or not cut or b'"' not in data:
        return cut
    for match in _QUOTED[quoted].finditer(data):
        if not match[1] or match.end() >= cut:  # never closed, or holds the last line end: cut before it
            return min(cut, data.rfind(b"\n", 0, match.start()) + 1)
    return cut
