"""An experiment on disk: created once, appended to, and never half-written.

    DIR/experiment.json                 scenario, its hash, seeds, versions, machine, target
        verdicts.jsonl                  the ledger: one line a sealed run; the search is a fold over it
        runs/<variant>/<run key>/       run.json and the tables: requests, events where they are kept, target where it
                                        was watched (journal.jsonl while it is on)
        capacity.json                   the answer

A run is sealed in this order: its tables and run.json are written beside their names, flushed to the disk and renamed;
then its line goes to the ledger, then the journal is removed. The ledger alone says what counts. A run directory that
the ledger does not know is an interrupted run: it is set aside under another name, and repeated with its seed.
One process owns a directory at a time (an advisory lock on the ledger, released by the system when the process dies).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.report.types import CapacityAnswer
from analysis.schema import SCHEMA_VERSION
from analysis.search import RunRequest
from loadgen.common.documents import parse, read, to_json
from loadgen.common.errors import ResultsError
from loadgen.results.events import EVENTS, write_events
from loadgen.results.files import check_free, explained, write_json, write_whole
from loadgen.results.journal import Journal
from loadgen.results.types import LedgerLine, Manifest, RunDocument

__all__ = [
    "ExperimentStore",
    "RunStore",
    "holds_experiment",
    "read_answer",
    "read_experiment",
    "read_ledger",
    "read_run",
    "read_whole_ledger",
    "run_directory",
]

EXPERIMENT, LEDGER, CAPACITY, RUN = "experiment.json", "verdicts.jsonl", "capacity.json", "run.json"


class ExperimentStore:
    """The directory of one experiment. Every method raises `ResultsError` with one line when the disk refuses."""

    def __init__(self, directory: Path, ledger: FileIO) -> None:
        self.directory = directory
        self._ledger = ledger

    @classmethod
    def create(cls, directory: Path, experiment: Manifest) -> Self:
        """Make a new experiment; refuse a directory that holds anything."""
        check_free(directory)
        with explained(directory, "free some"):
            directory.mkdir(parents=True, exist_ok=True)
            store = cls(directory, _locked(directory))
            try:
                write_json(directory / EXPERIMENT, experiment)
            except OSError:  # an empty directory may be used again, one with a ledger alone may not
                store.close()
                (directory / LEDGER).unlink(missing_ok=True)
                raise
            return store

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Go on with an experiment: cut a torn last line off the ledger and set interrupted runs aside."""
        with explained(directory):
            if not (directory / EXPERIMENT).exists():
                raise ResultsError(f"{directory} holds no experiment to resume (no {EXPERIMENT} in it)")
            read_experiment(directory)
            store = cls(directory, _locked(directory))
            ledger = (directory / LEDGER).read_bytes()
            whole = ledger.rfind(b"\n") + 1
            if whole != len(ledger):
                store._ledger.truncate(whole)
            known = {line.run.path for line in read_ledger(directory)}
            for journal in sorted(directory.glob("runs/*/**/journal.jsonl")):
                run = journal.parent
                if ".interrupted-" in run.name:
                    continue
                if run.relative_to(directory / "runs").as_posix() in known:
                    _unlink_journals(journal)  # sealed, and killed before this last step
                else:
                    _set_aside(run)
            return store

    def begin(self, request: RunRequest) -> RunStore:
        """The directory of a run about to start."""
        run = run_directory(self.directory, request)
        with explained(run):
            if run.exists():
                _set_aside(run)
            run.mkdir(parents=True)
            return RunStore(run)

    def record(self, line: LedgerLine) -> None:
        """Append one sealed run to the ledger, flushed to the disk."""
        with explained(self.directory / LEDGER):
            before = self._ledger.seek(0, os.SEEK_END)
            try:
                view = memoryview(to_json(line) + b"\n")
                while view:
                    view = view[self._ledger.write(view) :]
                os.fsync(self._ledger.fileno())
            except OSError:
                self._ledger.truncate(before)
                raise

    def answer(self, capacity: CapacityAnswer) -> None:
        """Write capacity.json."""
        with explained(self.directory / CAPACITY):
            write_json(self.directory / CAPACITY, capacity)

    def close(self) -> None:
        """Release the directory."""
        self._ledger.close()


class RunStore:
    """The directory of one run: a journal while it is on, then its sealed tables."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._journal_path = directory / "journal.jsonl"

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """The run's journal; a write error inside is raised at the end as `ResultsError`."""
        with explained(self._journal_path), Journal(self._journal_path) as journal:
            yield journal
        self.check(journal)

    def check(self, journal: Journal) -> None:
        """Raise what the journal's thread could not."""
        if journal.failure is not None:
            with explained(self._journal_path):
                raise journal.failure

    def seal(
        self,
        requests: pd.DataFrame,
        events: pd.DataFrame | None,
        run: RunDocument,
        target: pd.DataFrame | None = None,
    ) -> None:
        """Write tables and run.json so that each is there whole or not at all.

        `events` where they are kept, `target` where it was watched; `requests` are REQUEST_COLUMNS and more.
        """
        with explained(self.directory):
            write_whole(self.directory / "requests.parquet", lambda stream: _write_table(requests, stream))
            if events is not None:
                write_whole(self.directory / EVENTS, lambda stream: write_events(events, requests, stream))
            if target is not None:
                write_whole(self.directory / "target.parquet", lambda stream: _write_table(target, stream))
            write_json(self.directory / RUN, run)

    def forget_journal(self) -> None:
        """Remove the journal of a run that the ledger now knows."""
        with explained(self._journal_path):
            _unlink_journals(self._journal_path)


def _unlink_journals(path: Path) -> None:
    """Remove the journal, last, and those of the sending processes."""
    for part in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        part.unlink()
    path.unlink(missing_ok=True)


def holds_experiment(directory: Path) -> bool:
    """Whether an experiment was begun there."""
    return (directory / EXPERIMENT).exists()


def run_directory(directory: Path, request: RunRequest) -> Path:
    """Where a run of the experiment in `directory` is kept."""
    return directory / "runs" / request.path


def read_experiment(directory: Path) -> Manifest:
    """What is constant in the experiment. Raises `ResultsError`."""
    return read(directory / EXPERIMENT, Manifest)


def read_ledger(directory: Path) -> list[LedgerLine]:
    """The ledger's whole lines. Raises `ResultsError` naming the line that cannot be read."""
    path = directory / LEDGER
    with explained(path):
        lines = path.read_bytes().split(b"\n")[:-1]  # what comes after the last line break is torn
    return [parse(line, LedgerLine, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def read_whole_ledger(directory: Path) -> list[LedgerLine]:
    """The ledger of an experiment that nobody goes on with.

    Raises `ResultsError` where another process owns it, and where its last line is torn.
    """
    path = directory / LEDGER
    with explained(path), path.open("rb") as ledger:
        try:
            fcntl.flock(ledger, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(f"{directory} is in use by another loadgen process: wait until it has ended") from None
        if not ledger.read().endswith(b"\n"):
            raise ResultsError(f"{path} ends within a line: it is cut off; restore the file, or go on with --resume")
    return read_ledger(directory)


def read_run(run: Path) -> RunDocument:
    """The document of the sealed run in a directory. Raises `ResultsError`."""
    return read(run / RUN, RunDocument)


def read_answer(directory: Path) -> CapacityAnswer | None:
    """The answer of a sweep that ended; `None` where none was written. Raises `ResultsError`."""
    path = directory / CAPACITY
    return read(path, CapacityAnswer) if path.exists() else None


def _locked(directory: Path) -> FileIO:
    ledger = (directory / LEDGER).open("ab", buffering=0)  # nothing is left to be written when it is closed
    try:
        fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        ledger.close()
        raise ResultsError(f"{directory} is in use by another loadgen process") from None
    return ledger


def _set_aside(run: Path) -> None:
    number = 1
    while (aside := run.with_name(f"{run.name}.interrupted-{number}")).exists():
        number += 1
    run.rename(aside)


def _write_table(table: pd.DataFrame, stream: IO[bytes]) -> None:
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    metadata = {**(arrow.schema.metadata or {}), b"loadgen.schema": str(SCHEMA_VERSION).encode()}
    kinds = {field.name: field.type for field in arrow.schema}
    # stamps rise and never repeat: a dictionary of them costs more time than all else, and more space
    encoding = {name: "DELTA_BINARY_PACKED" for name, kind in kinds.items() if pa.types.is_integer(kind)}
    encoding |= {name: "BYTE_STREAM_SPLIT" for name, kind in kinds.items() if pa.types.is_floating(kind)}
    pq.write_table(
        arrow.replace_schema_metadata(metadata),
        stream,
        compression="zstd",
        use_dictionary=[name for name in kinds if name not in encoding],
        column_encoding=encoding,
        write_statistics=False,
    )
