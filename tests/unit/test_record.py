"""What lies on the disk is whole or absent, and an interrupted run is never taken for a sealed one."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.schema import ABSENT, REQUEST_COLUMNS
from loadgen.common.errors import ResultsError
from loadgen.results import journal as journals
from loadgen.results.store import ExperimentStore, read_json, read_ledger


def row(index: int) -> dict[str, Any]:
    return {
        name: ("" if kind == "str" else index if name == "index" else ABSENT) for name, kind in REQUEST_COLUMNS.items()
    }


def test_the_journal_gives_back_every_row_and_its_events(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journals.Journal(path) as journal:
        for index in range(200):
            journal.add(row(index), [(index * 10, 1), (index * 10 + 5, -1)])
    back = list(journals.read(path))
    assert [columns for columns, _ in back] == [row(index) for index in range(200)]
    assert back[7][1] == [(70, 1), (75, -1)]


def test_a_torn_last_line_is_dropped_and_whole_lines_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journals.Journal(path) as journal:
        for index in range(3):
            journal.add(row(index), [])
    path.write_bytes(path.read_bytes()[:-5])
    assert [columns["index"] for columns, _ in journals.read(path)] == [0, 1]


def test_what_was_added_survives_kill_9_after_a_second(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from loadgen.results.journal import Journal
from tests.unit.test_record import row
with Journal(Path({str(path)!r})) as journal:
    for index in range(50):
        journal.add(row(index), [(1, 1)])
    while Path({str(path)!r}).stat().st_size == 0:
        time.sleep(0.01)
    print("written", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.kill()
    process.wait()
    process.stdout.close()
    assert len(list(journals.read(path))) >= 1


def test_a_disk_that_refuses_is_said_in_one_line_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
import pandas as pd
from loadgen.results.store import ExperimentStore
store = ExperimentStore.create(Path({str(tmp_path / "e")!r}), {{"name": "x"}})
run = store.begin("rate=1.000")
try:
    run.seal(pd.DataFrame({{"text": [str(i * 7919 % 10007) for i in range(100000)]}}), None, {{}})
except Exception as error:
    print(type(error).__name__, error)
"""
    limited = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert limited.stdout.startswith("ResultsError")
    assert "File too large" in limited.stdout
    assert list((tmp_path / "e" / "runs" / "main" / "rate=1.000").iterdir()) == []


def test_a_ledger_that_a_full_disk_cut_short_is_whole_again_and_is_closed_in_peace(tmp_path: Path) -> None:
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from loadgen.results.store import ExperimentStore
store = ExperimentStore.create(Path({str(tmp_path / "e")!r}), {{}})
resource.setrlimit(resource.RLIMIT_FSIZE, (2_500, 2_500))
try:
    for number in range(3):
        store.record({{"number": number, "text": "x" * 1000}})
except Exception as error:
    print(type(error).__name__, number, error)
store.close()
"""
    limited = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert limited.stdout.startswith("ResultsError 2 ")
    assert limited.stdout.count("\n") == 1
    assert limited.stderr == ""
    assert [line["number"] for line in read_ledger(tmp_path / "e")] == [0, 1]
    assert (tmp_path / "e" / "verdicts.jsonl").read_bytes().endswith(b"\n")


def test_a_disk_that_was_full_at_the_beginning_leaves_a_directory_that_can_be_used(tmp_path: Path) -> None:
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from loadgen.results.store import ExperimentStore
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    ExperimentStore.create(Path({str(tmp_path / "e")!r}), {{"name": "x"}})
except Exception as error:
    print(type(error).__name__, error)
"""
    limited = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert limited.stdout.startswith("ResultsError")
    assert limited.stdout.count("\n") == 1
    ExperimentStore.create(tmp_path / "e", {"name": "x"}).close()


def test_a_journal_that_cannot_write_fails_the_run(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", {})
    run = store.begin("k")

    def fill() -> None:
        with run.journal() as journal:
            journal._file.close()  # the next write is refused by the system
            journal._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115, PTH123
            journal.add(row(0), [])

    with pytest.raises(ResultsError, match="no space left on this disk"):
        fill()
    store.close()


def test_another_experiments_directory_is_refused_and_untouched(tmp_path: Path) -> None:
    ExperimentStore.create(tmp_path / "e", {"name": "first"}).close()
    with pytest.raises(
        ResultsError, match="holds another experiment: choose another --out, or go on with it: --resume"
    ):
        ExperimentStore.create(tmp_path / "e", {"name": "second"})
    assert read_json(tmp_path / "e" / "experiment.json") == {"name": "first"}
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(ResultsError, match="holds files that are not an experiment's"):
        ExperimentStore.create(tmp_path / "photos", {})


def test_two_processes_cannot_own_one_directory(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", {})
    with pytest.raises(ResultsError, match="in use by another loadgen process"):
        ExperimentStore.open(tmp_path / "e")
    store.close()
    ExperimentStore.open(tmp_path / "e").close()


def test_resuming_cuts_a_torn_ledger_line_and_sets_the_interrupted_run_aside(tmp_path: Path) -> None:
    directory = tmp_path / "e"
    store = ExperimentStore.create(directory, {})
    sealed = store.begin("sealed")
    sealed.seal(pd.DataFrame({"index": [1]}), None, {"key": "sealed"})
    store.record({"run": {"key": "sealed"}, "verdict": {}})
    with store.begin("cut short").journal() as journal:
        journal.add(row(0), [])
    store.close()
    before = (directory / "runs" / "main" / "sealed" / "requests.parquet").read_bytes()
    with (directory / "verdicts.jsonl").open("ab") as ledger:
        ledger.write(b'{"run": {"key": "cut sh')

    resumed = ExperimentStore.open(directory)
    assert [line["run"]["key"] for line in read_ledger(directory)] == ["sealed"]
    resumed.record({"run": {"key": "cut short"}})
    assert [line["run"]["key"] for line in read_ledger(directory)] == ["sealed", "cut short"]
    resumed.close()
    assert (directory / "runs" / "main" / "sealed" / "requests.parquet").read_bytes() == before
    aside = directory / "runs" / "main" / "cut short.interrupted-1"
    assert [columns["index"] for columns, _ in journals.read(aside / "journal.jsonl")] == [0]


def test_a_damaged_ledger_line_is_named(tmp_path: Path) -> None:
    ExperimentStore.create(tmp_path / "e", {}).close()
    (tmp_path / "e" / "verdicts.jsonl").write_bytes(b'{"run": {}}\nrubbish\n')
    with pytest.raises(ResultsError, match=r"verdicts\.jsonl:2: not a line of a ledger"):
        read_ledger(tmp_path / "e")


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="holds no experiment to resume"):
        ExperimentStore.open(tmp_path)
