"""Token events come back from the disk exactly, in less than two bytes each, or the file is refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from result_files import document, experiment, request

from analysis.records import columns, itl_s
from analysis.schema import EVENT_COLUMNS, REQUEST_COLUMNS
from loadgen.common.errors import ResultsError
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.lengths import Lengths, parse_law
from loadgen.plan.plan import make_plan
from loadgen.plan.types import PlanRequest, RequestFormat, Window
from loadgen.results.events import read_events
from loadgen.results.store import ExperimentStore
from loadgen.send.active import ActiveRequest
from loadgen.send.api import RunOutput, SendOptions, sampled
from loadgen.send.openai import ParsedResponse
from loadgen.send.table import Tables

S = 1_000_000_000
Keep = Callable[[pd.DataFrame, pd.DataFrame], Path]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Keep]:
    """Seals a run's tables and says where."""
    store = ExperimentStore.create(tmp_path / "e", experiment())
    runs = iter(range(9))

    def seal(requests: pd.DataFrame, events: pd.DataFrame | None) -> Path:
        of = request(f"run-{next(runs)}")
        run = store.begin(of)
        run.seal(requests, events, document(of))
        return run.directory

    yield seal
    store.close()


def tables(requests: list[list[tuple[int, int]]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A request table and the event table of these (at_ns, tokens)."""
    known = {
        "first_token_ns": [told[0][0] if told else -1 for told in requests],
        "token_events": [len(told) for told in requests],
    }
    rows = [(index, *event) for index, told in enumerate(requests) for event in told]
    return columns(len(requests), known), pd.DataFrame(rows, columns=list(EVENT_COLUMNS)).astype(EVENT_COLUMNS)


def simulated(target: str, **options: Any) -> RunOutput:
    plan = make_plan(
        PlanRequest(rate=6.0, root_seed=5, window=Window(warmup_ns=10 * S, window_ns=120 * S, tail_ns=60 * S)),
        arrivals=Arrivals(),
        lengths=Lengths(input=parse_law("1024"), output=parse_law("128")),
        format=RequestFormat(),
    )
    return simulate_run(plan, load_profile(target), SendOptions(**options))


def jittery(n: int = 400, events: int = 128, *, sd_ns: float, unit_ns: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Streams with a token every 12 ms, each read up to some `sd_ns` early or late."""
    rng = np.random.default_rng(3)
    first_ns = rng.integers(0, 60 * S, n)
    gaps = np.maximum(rng.normal(12_000_000, sd_ns, (n, events - 1)) // unit_ns, 0).astype(np.int64) * unit_ns
    at_ns = np.concatenate([first_ns[:, None], first_ns[:, None] + np.cumsum(gaps, axis=1)], axis=1)
    return tables([[(at, 1) for at in row] for row in at_ns.tolist()])


@pytest.mark.parametrize(
    "told",
    [
        [[(7, 1), (8, 1), (1_000_000_007, -1)], [], [(5, 3)], [(123, 1), (123, 1), (S * 3600, 2)]],
        [[(7, 1), (5007, 1)], [(9, 2), (9, 2), (5_000_009, 2)]],  # whole microseconds from the first
        [[(40, 1)], [(30, 1)], [], [(20, 1)]],  # one event each: no gaps at all
        [[(90, 1), (80, 1), (95, 1)]],  # stamps that went backwards are given back too
        [[], []],
    ],
)
def test_every_event_comes_back_as_it_was(kept: Keep, told: list[list[tuple[int, int]]]) -> None:
    requests, events = tables(told)
    back = read_events(kept(requests, events))
    pd.testing.assert_frame_equal(back, events)
    assert np.array_equal(itl_s(back), itl_s(events))


@pytest.mark.parametrize("target", ["fcfs", "llama8b-80gb"])
def test_a_simulated_run_comes_back_to_the_nanosecond_and_takes_less_than_two_bytes_an_event(
    kept: Keep, target: str
) -> None:
    output = simulated(target)
    run = kept(output.requests, output.events)
    pd.testing.assert_frame_equal(read_events(run), output.events)
    assert len(output.events) > 50_000
    assert (run / "events.parquet").stat().st_size < 0.6 * len(output.events)


def test_events_of_a_live_run_take_less_than_two_bytes_where_reads_jitter_by_a_millisecond(kept: Keep) -> None:
    requests, events = jittery(sd_ns=1e6, unit_ns=1000)
    run = kept(requests, events)
    pd.testing.assert_frame_equal(read_events(run), events)
    assert (run / "events.parquet").stat().st_size < 2 * len(events)


def test_a_run_without_events_leaves_no_file_and_says_so_where_they_are_asked_for(kept: Keep) -> None:
    requests, _ = tables([[(7, 1)]])
    run = kept(requests, None)
    assert sorted(path.name for path in run.iterdir()) == ["requests.parquet", "run.json"]
    with pytest.raises(ResultsError, match=r"kept no token events .* measure again with --events all") as refused:
        read_events(run)
    assert "\n" not in str(refused.value)


def test_a_file_of_another_version_or_another_run_is_refused_in_one_line(kept: Keep) -> None:
    requests, events = tables([[(7, 1), (8, 1)], [(9, 1)]])
    run = kept(requests, events)
    file = run / "events.parquet"
    whole = file.read_bytes()

    def refused() -> str:
        with pytest.raises(ResultsError) as caught:
            read_events(run)
        assert "\n" not in str(caught.value)
        assert str(file) in str(caught.value)
        return str(caught.value)

    events.to_parquet(file)  # as it was written before events had a version
    assert "of version 1, this loadgen reads version 2: measure again" in refused()
    later = pq.read_table(pa.BufferReader(whole))
    pq.write_table(later.replace_schema_metadata({b"loadgen.events": b"3"}), file)
    assert "of version 3, this loadgen reads version 2" in refused()
    file.write_bytes(b"no table\n")
    assert "cannot be read" in refused()
    file.write_bytes(whole[:-20])
    assert "cannot be read" in refused()
    pq.write_table(later.select(["index", "tokens"]).replace_schema_metadata(later.schema.metadata), file)
    assert "no event table" in refused()
    for others in ([[(7, 1), (8, 1), (9, 1)], [(9, 1)]], [[(7, 1), (8, 1)]]):
        other = kept(*tables(others))
        (other / "events.parquet").write_bytes(whole)
        with pytest.raises(ResultsError, match=r"no event table: it .* request table .*: restore the file"):
            read_events(other)


def test_events_that_are_not_of_the_request_table_are_not_written(kept: Keep) -> None:
    requests, events = tables([[(7, 1), (8, 1)], [(9, 1)]])
    with pytest.raises(ValueError, match="not in order of the request table"):
        kept(requests, events.iloc[::-1])
    with pytest.raises(ValueError, match="requests that the request table does not have"):
        kept(requests.iloc[:1], events)


def test_a_sample_has_all_events_of_one_request_in_16_the_same_ones_in_every_run() -> None:
    every, some, none = (simulated("fcfs", events=keep) for keep in ("all", "sample", "none"))
    chosen = every.events[sampled(every.events["index"].to_numpy())].reset_index(drop=True)
    pd.testing.assert_frame_equal(some.events, chosen)
    assert none.events.empty
    assert list(none.events.dtypes) == list(every.events.dtypes)
    pd.testing.assert_frame_equal(every.requests, some.requests)
    pd.testing.assert_frame_equal(every.requests, none.requests)
    among = np.arange(100_000)
    for period in (1, 2, 5, 8, 16, 100):  # of no period of a workload are more or fewer taken
        assert np.isclose(sampled(among[::period]).mean(), 1 / 16, rtol=0.05)
    assert [sampled(index) for index in range(200)] == sampled(among[:200]).tolist()


class _Sink:
    def __init__(self) -> None:
        self.events: list[list[tuple[int, int]]] = []

    def add(self, row: Any, events: list[tuple[int, int]]) -> None:
        assert dict(zip(REQUEST_COLUMNS, row, strict=True))["token_events"] == 3
        self.events.append(events)


def recorded(keep: Any, index: int = 0) -> tuple[Tables, _Sink]:
    sink = _Sink()
    into = Tables(sink, keep=keep)
    answer = ParsedResponse(events=[(1_000_123, 1), (1_000_999, 1), (13_456_789, -1)])
    into.add(ActiveRequest(index, scheduled_ns=0), "ok", "", answer)
    return into, sink


def test_a_live_run_keeps_events_to_the_microsecond_from_the_first_and_its_journal_as_they_were() -> None:
    into, sink = recorded("all")
    assert into.events()["at_ns"].tolist() == [1_000_123, 1_000_123, 13_456_123]
    assert into.events()["tokens"].tolist() == [1, 1, -1]
    assert sink.events == [[(1_000_123, 1), (1_000_999, 1), (13_456_789, -1)]]
    requests = into.requests()
    assert requests[["first_token_ns", "last_token_ns", "token_events"]].to_numpy().tolist() == [
        [1_000_123, 13_456_789, 3]
    ]


@pytest.mark.parametrize(("keep", "index", "count"), [("none", 0, 0), ("sample", 0, 3), ("sample", 1, 0)])
def test_events_that_are_not_kept_are_counted_all_the_same(keep: str, index: int, count: int) -> None:
    assert bool(sampled(index)) == (index == 0)
    into, sink = recorded(keep, index)
    assert len(into.events()) == len(sink.events[0]) == count
    assert into.requests()["token_events"].tolist() == [3]
