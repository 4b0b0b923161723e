"""What lies on the disk is whole or absent, and an interrupted run is never taken for a sealed one."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pandas as pd
import pytest
from result_files import document, experiment, line, request
from run_tables import served
from searches import CRITERIA, book_of, search_of, spec_of

from analysis.records import derive
from analysis.schema import ABSENT, REQUEST_COLUMNS
from analysis.search import Outcome, RunRequest, Search
from analysis.verdict import RateVerdict, RunVerdict
from loadgen.common.errors import ResultsError
from loadgen.experiment.search_loop import Budget
from loadgen.plan.types import Window
from loadgen.results import journal as journals
from loadgen.results.answer import assemble, judged_runs
from loadgen.results.store import ExperimentStore, read_answer, read_experiment, read_ledger, read_run, run_directory
from loadgen.scenario.file import load_scenario
from loadgen.workload.workload import search_spec


def row(index: int) -> tuple[int | str, ...]:
    return tuple(
        "" if kind == "str" else index if name == "index" else ABSENT for name, kind in REQUEST_COLUMNS.items()
    )


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
    assert [columns[0] for columns, _ in journals.read(path)] == [0, 1]


def test_what_was_added_survives_kill_9_after_a_second(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from loadgen.results.journal import Journal
with Journal(Path({str(path)!r})) as journal:
    for row in {[row(index) for index in range(50)]!r}:
        journal.add(row, [(1, 1)])
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


@contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    """Inside, the system refuses to make a file of this process longer than this."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_disk_that_refuses_is_said_in_one_line_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    run = store.begin(request("rate=1.000"))
    table = pd.DataFrame({"text": [str(i * 7919 % 10007) for i in range(100000)]})
    with files_up_to(20_000), pytest.raises(ResultsError, match=r"^.*File too large.*\Z"):
        run.seal(table, None, document(request("rate=1.000")))
    assert list((tmp_path / "e" / "runs" / "main" / "rate=1.000").iterdir()) == []
    store.close()


def test_a_ledger_that_a_full_disk_cut_short_is_whole_again_and_is_closed_in_peace(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    with files_up_to(5_000):
        for number in range(2):
            store.record(line(request(str(number)), diagnosis="x" * 1000))
        with pytest.raises(ResultsError, match=r"^.*File too large.*\Z"):
            store.record(line(request("2"), diagnosis="x" * 1000))
        store.close()
    assert [line.run.key for line in read_ledger(tmp_path / "e")] == ["0", "1"]
    assert (tmp_path / "e" / "verdicts.jsonl").read_bytes().endswith(b"\n")


def test_a_disk_that_was_full_at_the_beginning_leaves_a_directory_that_can_be_used(tmp_path: Path) -> None:
    with files_up_to(0), pytest.raises(ResultsError, match=r"^.*\Z"):
        ExperimentStore.create(tmp_path / "e", experiment())
    ExperimentStore.create(tmp_path / "e", experiment()).close()


def test_a_journal_that_cannot_write_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    run = store.begin(request("k"))
    monkeypatch.setattr(Path, "open", lambda *_, **__: open("/dev/full", "wb", buffering=0))  # noqa: SIM115, PTH123

    def fill() -> None:
        with run.journal() as journal:
            monkeypatch.undo()
            journal.add(row(0), [])

    with pytest.raises(ResultsError, match="no space left on this disk"):
        fill()
    store.close()


def test_another_experiments_directory_is_refused_and_untouched(tmp_path: Path) -> None:
    ExperimentStore.create(tmp_path / "e", experiment(id="first")).close()
    with pytest.raises(
        ResultsError, match="holds another experiment: choose another --out, or go on with it: --resume"
    ):
        ExperimentStore.create(tmp_path / "e", experiment(id="second"))
    assert read_experiment(tmp_path / "e") == experiment(id="first")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(ResultsError, match="holds files that are not an experiment's"):
        ExperimentStore.create(tmp_path / "photos", experiment())


def test_two_processes_cannot_own_one_directory(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    with pytest.raises(ResultsError, match="in use by another loadgen process"):
        ExperimentStore.open(tmp_path / "e")
    store.close()
    ExperimentStore.open(tmp_path / "e").close()


def test_resuming_cuts_a_torn_ledger_line_and_sets_the_interrupted_run_aside(tmp_path: Path) -> None:
    directory = tmp_path / "e"
    store = ExperimentStore.create(directory, experiment())
    sealed = store.begin(request("sealed"))
    sealed.seal(pd.DataFrame({"index": [1]}), None, document(request("sealed")))
    store.record(line(request("sealed")))
    with store.begin(request("cut short")).journal() as journal:
        journal.add(row(0), [])
    store.close()
    before = (directory / "runs" / "main" / "sealed" / "requests.parquet").read_bytes()
    with (directory / "verdicts.jsonl").open("ab") as ledger:
        ledger.write(b'{"run": {"key": "cut sh')

    resumed = ExperimentStore.open(directory)
    assert [line.run.key for line in read_ledger(directory)] == ["sealed"]
    resumed.record(line(request("cut short")))
    assert [line.run.key for line in read_ledger(directory)] == ["sealed", "cut short"]
    resumed.close()
    assert (directory / "runs" / "main" / "sealed" / "requests.parquet").read_bytes() == before
    aside = directory / "runs" / "main" / "cut short.interrupted-1"
    assert [columns[0] for columns, _ in journals.read(aside / "journal.jsonl")] == [0]


def test_a_damaged_ledger_line_is_named(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    store.record(line(request("k")))
    store.close()
    with (tmp_path / "e" / "verdicts.jsonl").open("ab") as ledger:
        ledger.write(b"rubbish\n")
    with pytest.raises(ResultsError, match=r"verdicts\.jsonl:2: not valid JSON .*: restore the file$"):
        read_ledger(tmp_path / "e")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    verdict = RunVerdict(status="FAIL", summary={"ttft_s": {"p50": 0.1, "p99_all": inf}})
    written = line(request("k", "second"), verdict=verdict, not_measured=("GPU",))
    store.begin(written.run).seal(pd.DataFrame({"index": [1]}), None, document(written.run))
    store.record(written)
    store.close()
    assert read_experiment(tmp_path / "e") == experiment()
    assert read_ledger(tmp_path / "e") == [written]
    assert read_run(run_directory(tmp_path / "e", written.run)) == document(written.run)


def test_an_interrupted_run_is_not_taken_for_the_sealed_one_of_another_variant(tmp_path: Path) -> None:
    directory = tmp_path / "e"
    store = ExperimentStore.create(directory, experiment())
    first, second = request("rate=1.000/rep=00", "main"), request("rate=1.000/rep=00", "other")
    with store.begin(first).journal() as journal:
        journal.add(row(0), [])
    with store.begin(second).journal() as journal:
        journal.add(row(0), [])
    store.record(line(first, elapsed_s=3.0, requests=7, tokens=70))  # killed before its journal was removed
    store.close()

    ExperimentStore.open(directory).close()
    assert not (run_directory(directory, first) / "journal.jsonl").exists()
    assert not run_directory(directory, second).exists()
    assert (directory / "runs" / "other" / "rate=1.000" / "rep=00.interrupted-1" / "journal.jsonl").exists()


def test_each_variant_resumes_with_its_own_runs_and_the_budget_counts_all(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    for variant, passed in (("main", RunVerdict(status="PASS")), ("other", RunVerdict(status="FAIL"))):
        store.record(line(request("k", variant), verdict=passed, elapsed_s=3.0, requests=7, tokens=70))
    store.close()
    assert [verdict.status for _, verdict in judged_runs(tmp_path / "e")] == ["PASS"]
    assert [verdict.status for _, verdict in judged_runs(tmp_path / "e", "other")] == ["FAIL"]
    budget = Budget.of(load_scenario(None, {"target": ("virtual:fcfs",)}), read_ledger(tmp_path / "e"))
    assert (budget.spent_s, budget.requests, budget.tokens) == (6.0, 14, 140)


def test_the_statistics_by_length_are_of_the_variants_own_runs(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment(target=experiment().target))
    window = Window(warmup_ns=0, window_ns=10**12, tail_ns=0)
    for variant, tokens in (("main", 10), ("other", 500)):
        of = request("k", variant)
        requests = derive(served(8, input_tokens_planned=tokens))
        store.begin(of).seal(requests, None, document(of))
        store.record(line(of, window=window))
    store.close()
    rate = RateVerdict(rate=1.0, status="PASS", runs=1, attain_min=1.0, attain_max=1.0, keys=("k",))
    outcome = Outcome(name="TABULATED", reason="", lower=1.0, rates=(rate,))
    scenario = load_scenario(None, {"target": ("virtual:fcfs",), "rate": "1"})
    found = assemble(tmp_path / "e", scenario, search_spec(scenario), outcome, "other")
    assert [bucket.input_tokens for bucket in found.rates[0].buckets] == [(500, 500)]
    assert [run.variant for run in found.runs] == ["other"]


def test_the_search_of_a_variant_asks_for_runs_of_its_own() -> None:
    spec = spec_of("2..18")
    search = Search(spec, book_of(spec), CRITERIA, variant="other")
    asked = search.ask()
    assert isinstance(asked, RunRequest)
    assert (asked.variant, asked.path) == ("other", f"other/{asked.key}")
    with pytest.raises(ValueError, match="is not the one this search asked for"):
        search_of(spec).tell(asked, RunVerdict(status="PASS"))


OLD = re.escape("written by another version of loadgen (format 1, this one reads 2): measure again")


def test_files_of_another_version_are_refused_in_one_line(tmp_path: Path) -> None:
    store = ExperimentStore.create(tmp_path / "e", experiment())
    store.begin(request("k")).seal(pd.DataFrame({"index": [1]}), None, document(request("k")))
    store.record(line(request("k")))
    store.close()
    (tmp_path / "e" / "capacity.json").write_text('{"format": 2}')
    run = tmp_path / "e" / "runs" / "main" / "k"

    def old(path: Path, format_: int | None) -> None:
        raw = json.loads(path.read_text())
        raw.pop("format")
        path.write_text(json.dumps(raw | ({} if format_ is None else {"format": format_})) + "\n")

    readers: list[tuple[Path, Callable[[], object]]] = [
        (tmp_path / "e" / "experiment.json", lambda: read_experiment(tmp_path / "e")),
        (tmp_path / "e" / "verdicts.jsonl", lambda: read_ledger(tmp_path / "e")),
        (tmp_path / "e" / "capacity.json", lambda: read_answer(tmp_path / "e")),
        (run / "run.json", lambda: read_run(run)),
    ]
    for path, reader in readers:
        for format_ in (1, None):
            old(path, format_)
            with pytest.raises(ResultsError, match=f"{path.name}.*{OLD}") as refused:
                reader()
            assert "\n" not in str(refused.value)
    with pytest.raises(ResultsError, match=OLD):
        ExperimentStore.open(tmp_path / "e")
    (tmp_path / "e" / "capacity.json").write_text('{"format": 2}')
    with pytest.raises(ResultsError, match=r"capacity\.json: outcome: Field required: restore the file"):
        read_answer(tmp_path / "e")
