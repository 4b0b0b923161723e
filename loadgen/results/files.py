"""Files that are there whole or not at all, and what the disk refuses in one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from loadgen.common.documents import to_json
from loadgen.common.errors import ResultsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["BEGUN", "check_free", "explained", "write_json", "write_whole"]

BEGUN: Final = ("experiment.json", "comparison.json")  # whose presence says that something was begun in a directory


def check_free(directory: Path) -> None:
    """Raise `ResultsError` unless something new may be made in that directory."""
    with explained(directory):
        if directory.exists() and any(directory.iterdir()):
            begun = next((name.removesuffix(".json") for name in BEGUN if (directory / name).exists()), "")
            held = f"another {begun}" if begun else "files that are not an experiment's"
            hint = f", or go on with it: --resume {directory}" if begun else ""
            raise ResultsError(f"{directory} holds {held}: choose another --out{hint}")
        above = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            why = "is not a directory" if not above.is_dir() else "cannot be written"
            raise ResultsError(f"{directory}: {above} {why}: choose another --out")


@contextmanager
def explained(path: Path, remedy: str = "free some (a sweep goes on with --resume)") -> Iterator[None]:
    """Raise `ResultsError` in one line for what the disk refuses inside; `remedy` says what to do when it is full."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise ResultsError(f"{path}: no space left on this disk; {remedy}") from None
        raise ResultsError(f"{error.filename or path}: {error.strerror or error}") from None


def write_json(path: Path, value: DataclassInstance) -> None:
    """Write a document; raises `OSError`."""
    data = to_json(value, indent=2) + b"\n"
    write_whole(path, lambda stream: stream.write(data))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its name, flush it to the disk and rename it; raises `OSError`."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
