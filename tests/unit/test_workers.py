"""How many processes send, how their parts add up, and when all of them together may stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.verdict import SenderFacts
from loadgen.experiment.workers.count import sending_processes
from loadgen.experiment.workers.merge import counts_together, run_of
from loadgen.results.journal import Journal, read
from loadgen.scenario.model import Scenario
from loadgen.send.api import Drain, LiveCounts, RunOutput, SendOptions, Standing
from loadgen.send.cohort import why_over
from loadgen.send.table import Tables
from tests.fakes.plans import MS, plan_at

PLAN = plan_at([0, 10, 20, 30], warmup_ms=5, window_ms=20)


def part(**facts: object) -> RunOutput:
    kept = SenderFacts(rate=1.0, warmup_ns=0, window_ns=1, stop_ns=25 * MS, due=0, sent=0, cohort_due=0)
    tables = Tables(None)
    return RunOutput(requests=tables.requests(), events=tables.events(), facts=replace(kept, **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "cores", "count"), [("1", 1, 1), ("3", 4, 3), ("auto", 1, 1), ("auto", 2, 1), ("auto", 8, 7)]
)
def test_auto_leaves_a_core_to_the_coordinator(asked: str, cores: int, count: int) -> None:
    lines: list[str] = []
    assert sending_processes(Scenario(workers=asked), lines.append, cores) == count
    assert lines == []


def test_auto_is_one_where_the_load_cannot_be_divided() -> None:
    assert sending_processes(Scenario(workers="auto", closed=4), str, 8) == 1


def test_more_processes_than_cores_are_warned_of() -> None:
    lines: list[str] = []
    assert sending_processes(Scenario(workers="3"), lines.append, 2) == 3
    assert lines == ["--workers 3: this process may use 2 cores, so they take turns and send late: 2 at most"]


def test_how_many_send_changes_no_hash() -> None:
    assert Scenario(workers="3").sha256 == Scenario().sha256


def test_requests_add_up_and_the_worst_of_each_client_counts() -> None:
    one = part(sent=2, live_area_s=1.0, heartbeat_p99_s=0.1, wall_step_s=-0.3, stamps="kernel", peak_in_flight=3)
    two = part(sent=1, live_area_s=0.5, heartbeat_max_s=0.2, wall_step_s=0.2, encode_starved=2, target_died=True)
    facts = run_of(PLAN, [one, two], lost=1, stopped_early=True, urls=["unix:/x"]).facts
    assert (facts.due, facts.sent, facts.cohort_due, facts.workers_lost) == (3, 3, 2, 1)
    assert (facts.live_area_s, facts.peak_in_flight, facts.encode_starved) == (1.5, 3, 2)
    assert (facts.heartbeat_p99_s, facts.heartbeat_max_s, facts.wall_step_s) == (0.1, 0.2, -0.3)
    assert (facts.stamps, facts.stopped_early, facts.target_died) == ("user", True, True)


def test_descriptors_add_up() -> None:
    parts = [part(connection_limit=100), part(connection_limit=90)]
    assert run_of(PLAN, parts, lost=0, stopped_early=False, urls=["unix:/x"]).facts.connection_limit == 190


def test_live_counts_add_up() -> None:
    both = counts_together([LiveCounts(due=3, ok=1), LiveCounts(due=2, errors=1)], 7)
    assert (both.due, both.ok, both.errors, both.elapsed_ns) == (5, 1, 1, 7)


def test_the_end_is_decided_by_what_all_have() -> None:
    options = SendOptions(early_fail_misses=3, early_fail_after_ns=10 * MS, drain=Drain(unanswered=1, misses=9))
    one = Standing(undecided=0, misses=2, errors=1, unanswered=0)
    two = Standing(undecided=0, misses=2, errors=0, unanswered=1)
    window = PLAN.window
    assert why_over(one, 20 * MS, window, options) == ""
    assert why_over(one, window.end_ns, window, options) == "decided"
    assert why_over(one + two, 9 * MS, window, options) == ""
    assert why_over(one + two, 10 * MS, window, options) == "early fail"
    no_end = replace(options, early_fail_misses=None)
    assert why_over(one + two, window.end_ns, window, no_end) == ""  # two may yet be errors, one is allowed
    assert why_over(one + replace(two, undecided=1), window.end_ns, window, no_end) == ""
    assert why_over(one + two, window.horizon_ns, window, no_end) == "horizon"


def test_each_process_has_a_journal_beside_the_run_s(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal, Journal(journal.part(1)) as part_of_one:
        part_of_one.add((7,), [(1, 2)])
    assert list(read(tmp_path / "journal-1.jsonl")) == [((7,), [(1, 2)])]
