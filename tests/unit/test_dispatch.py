from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.slo import Slo
from analysis.stationarity import area_s
from loadgen.plan.types import RunPlan
from loadgen.send import sse
from loadgen.send.api import Drain, SendOptions
from loadgen.send.dispatch import Dispatcher
from loadgen.send.heartbeat import Heartbeat
from loadgen.send.pacing import FixedConcurrency
from loadgen.send.table import Tables
from tests.fakes.clock import FakeClock
from tests.fakes.plans import MS, Bodies, plan_at
from tests.fakes.streams import completion_events, event, text
from tests.fakes.transport import FakeTransport, LaggingTransport

HOUR_NS = 3_600_000_000_000


class Run:
    """One dispatcher on a fake clock and a fake transport."""

    def __init__(
        self,
        plan: RunPlan,
        service: Callable[[int], tuple[float, float] | None] = lambda _: (1.0, 1.0),
        *,
        refused: set[int] | None = None,
        transport: type[FakeTransport] = FakeTransport,
        governed: bool = False,
        **options: Any,
    ) -> None:
        self.clock = FakeClock()
        self.transport = transport(self.clock, service)
        self.transport.refused = refused or set()
        self.bodies = Bodies()
        self.stops = 0
        settings: dict[str, Any] = {
            "plan": plan, "bodies": self.bodies, "transport": self.transport, "clock": self.clock,
            "options": SendOptions(**options), "tables": Tables(None), "targets": 1, "on_stopped": self._count,
            "governed": governed,
        }  # fmt: skip
        self.dispatcher = Dispatcher(**settings)
        self.dispatcher.start()

    def _count(self) -> None:
        self.stops += 1

    def go(self, until_ms: float = 1e6) -> pd.DataFrame:
        self.clock.run(round(until_ms * MS))
        return self.dispatcher.tables.requests()


def conserved(run: Run, requests: pd.DataFrame) -> None:
    facts = run.dispatcher
    assert (requests["scheduled_ns"] < facts.stop_ns).sum() == facts.due == facts.sent
    assert facts.area_s == pytest.approx(area_s(requests, until_ns=facts.stop_ns), rel=1e-9)


def test_ten_hours_without_drift() -> None:
    rng = np.random.default_rng(7)
    at_ms = np.cumsum(rng.exponential(9000.0, 4_000))
    run = Run(plan_at(at_ms, window_ms=at_ms[-1] + 1, output_tokens=1))
    requests = run.go(12 * 3600e3)
    assert len(requests) == 4_000
    assert requests["scheduled_ns"].iloc[-1] > 9.5 * HOUR_NS
    assert (requests["released_ns"] == requests["scheduled_ns"]).all()
    assert [at for _, at in run.transport.started] == list(requests["scheduled_ns"])
    conserved(run, requests)


def test_what_is_due_while_the_loop_was_away_goes_out_at_once_and_in_order() -> None:
    run = Run(plan_at([10, 20, 30, 400]))
    run.clock.time_ns = 300 * MS  # the loop comes back late
    requests = run.go()
    assert run.transport.started == [(0, 300 * MS), (1, 300 * MS), (2, 300 * MS), (3, 400 * MS)]
    assert list(requests["scheduled_ns"]) == [10 * MS, 20 * MS, 30 * MS, 400 * MS]


def test_no_response_is_ever_waited_for() -> None:
    run = Run(plan_at(range(1, 101)), lambda _: None, timeout_s=5)
    requests = run.go()
    assert [at for _, at in run.transport.started] == [i * MS for i in range(1, 101)]
    assert set(requests["outcome"]) == {"timeout"}
    assert run.dispatcher.peak_in_flight == 100
    conserved(run, requests)


def test_a_time_out_counts_from_the_scheduled_instant() -> None:
    run = Run(plan_at([7]), lambda _: None, timeout_s=2)
    requests = run.go()
    assert requests["ended_ns"][0] == 2010 * MS  # time-outs share wake-ups every 10 ms
    assert run.transport.cancelled == [0]


def test_a_governed_load_ends_when_it_is_told_to_however_late_the_process_is() -> None:
    run = Run(plan_at(range(0, 1000, 10), window_ms=100), governed=True)
    run.clock.run(300 * MS)
    assert run.stops == 0  # the cohort was decided long ago: that is another's to say
    run.dispatcher.stop_at(403 * MS)
    run.dispatcher.stop_at(500 * MS)  # later than agreed
    run.clock.time_ns = 450 * MS  # the loop comes back late
    requests = run.go()
    assert run.stops == 1
    assert run.dispatcher.stop_ns == 403 * MS
    assert len(requests) == 41
    conserved(run, requests)


def test_a_governed_load_ends_with_its_schedule_and_an_instant_that_has_passed_is_now() -> None:
    run = Run(plan_at([10, 20], window_ms=100, tail_ms=200), governed=True)
    conserved(run, run.go())
    assert run.dispatcher.stop_ns == 300 * MS
    run = Run(plan_at([10, 20], window_ms=100, tail_ms=200), governed=True)
    run.clock.run(15 * MS)
    run.dispatcher.stop_at(5 * MS)
    requests = run.go()
    assert run.dispatcher.stop_ns == 15 * MS + 1
    assert requests["index"].tolist() == [0]
    conserved(run, requests)


def test_the_load_stays_on_until_the_cohort_is_decided() -> None:
    # the cohort's last request takes 500 ms; arrivals go on every 50 ms meanwhile, and no longer
    at_ms = [*range(50, 1000, 50), *range(1000, 3000, 50)]
    run = Run(plan_at(at_ms, window_ms=1000, output_tokens=1), lambda i: (500.0, 1.0))
    requests = run.go()
    assert run.stops == 1
    assert run.dispatcher.stop_ns == pytest.approx(1450 * MS, abs=MS)
    assert run.dispatcher.due == len(requests) == 29
    assert list(requests["outcome"][:19]) == ["ok"] * 19
    assert set(requests["outcome"][19:]) == {"aborted"}
    conserved(run, requests)


@pytest.mark.parametrize(
    ("slo", "service", "stop_ms", "miss"),
    [
        (Slo(ttft_s=0.3), None, 990 + 300, "ttft"),
        (Slo(e2e_s=0.6), None, 990 + 600, "e2e"),
        (Slo(tpot_s=0.1), (10.0, 5000.0), 990 + 10 + 300, "tpot"),  # O = 4: the last token has to come within 3 B_d
        (Slo(ttft_s=0.3, e2e_s=0.4), (10.0, 5000.0), 990 + 400, "e2e"),
    ],
)
def test_a_certain_miss_decides(slo: Slo, service: tuple[float, float] | None, stop_ms: float, miss: str) -> None:
    run = Run(plan_at([500, 990, 1100], window_ms=1000), lambda _: service, slo=slo)
    requests = run.go()
    assert run.dispatcher.stop_ns == pytest.approx(stop_ms * MS, abs=10.1 * MS)
    assert list(requests["outcome"]) == ["censored", "censored", "aborted"]
    assert list(requests["certain_miss"][:2]) == [miss, miss]
    assert run.dispatcher.live.cohort_misses == 2
    conserved(run, requests)


def test_a_token_in_time_keeps_a_request_undecided() -> None:
    run = Run(plan_at([500], window_ms=1000, output_tokens=2), lambda _: (200.0, 4000.0), slo=Slo(ttft_s=0.3))
    requests = run.go()
    assert list(requests["outcome"]) == ["ok"]
    assert run.dispatcher.live.cohort_misses == 0


def test_nobody_is_certain_to_miss_once_the_last_token_came() -> None:
    run = Run(plan_at([500], window_ms=1000, output_tokens=1), lambda _: None, slo=Slo(e2e_s=0.2))
    run.clock.run(505 * MS)
    active = next(iter(run.transport.open_requests.values()))
    active.opened(505 * MS, 200, "text/event-stream")
    active.received(completion_events(1)[0], 505 * MS)
    run.clock.run(2000 * MS)  # the end of the stream comes long after B_e
    assert run.dispatcher.live.cohort_misses == 0
    assert run.stops == 0
    for piece in completion_events(1)[1:]:
        active.received(piece, 2000 * MS)
    run.transport.finish(active, run.dispatcher, "complete")
    assert list(run.dispatcher.tables.requests()["outcome"]) == ["ok"]
    assert (run.dispatcher.live.cohort_misses, run.stops) == (0, 1)


def open_flight(run: Run, at_ms: int, content_type: str) -> Any:
    """The only active, with its headers."""
    run.clock.run(at_ms * MS)
    (active,) = run.transport.open_requests.values()
    active.opened(at_ms * MS, 200, content_type)
    return active


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json", "text/plain", ""])
@pytest.mark.parametrize("padding", [0, 2_000_000])
def test_a_first_token_is_seen_whatever_the_stream_is_called_and_however_long_its_event(
    content_type: str, padding: int
) -> None:
    plan = plan_at([500], window_ms=1000, output_tokens=2)
    run = Run(plan, lambda _: None, slo=Slo(ttft_s=0.3))
    active = open_flight(run, 510, content_type)
    first, *later = completion_events(2)
    first = first.replace(b" t0", b"x" * padding or b" t0")
    active.received(first[:7], 510 * MS)
    active.received(first[7:], 520 * MS)
    run.clock.run(3000 * MS)
    assert (run.dispatcher.live.cohort_misses, run.stops) == (0, 0)
    for piece in later:
        active.received(piece, 3000 * MS)
    run.transport.finish(active, run.dispatcher, "complete")
    assert list(run.dispatcher.tables.requests()["outcome"]) == ["ok"]
    assert (run.dispatcher.live.cohort_misses, run.stops) == (0, 1)


def test_a_document_that_may_be_whole_is_no_certain_miss_and_one_that_cannot_be_is() -> None:
    body = b'{"choices":[{"text":"ab","finish_reason":"length"}],"usage":{"completion_tokens":2}}'
    for came, misses in ((body, 0), (body[:-2], 1)):
        run = Run(plan_at([500], window_ms=1000, output_tokens=2), lambda _: None, slo=Slo(ttft_s=0.3))
        open_flight(run, 510, "application/json").received(came, 510 * MS)
        run.clock.run(990 * MS)
        assert run.dispatcher.live.cohort_misses == misses


def test_an_empty_chunk_that_may_be_no_token_makes_no_tpot_a_certain_miss() -> None:
    run = Run(plan_at([500], window_ms=1500, output_tokens=3), lambda _: None, slo=Slo(ttft_s=2, tpot_s=0.1))
    active = open_flight(run, 510, "text/event-stream")
    active.received(event(text("")), 510 * MS)
    run.clock.run(1000 * MS)  # 490 ms after it
    assert run.dispatcher.live.cohort_misses == 0
    active.received(b"".join(completion_events(2)[:1]), 1000 * MS)
    run.clock.run(1150 * MS)
    assert run.dispatcher.live.cohort_misses == 0
    run.clock.run(1250 * MS)
    assert run.dispatcher.live.cohort_misses == 1


@pytest.mark.parametrize(
    "options",
    [{"slo": Slo(e2e_s=0.02)}, {"slo": Slo(tpot_s=0.002)}, {"timeout_s": 0.05}],
    ids=["e2e", "tpot", "time-out"],
)
def test_what_has_come_and_is_unread_is_read_before_a_request_is_given_up(options: dict[str, Any]) -> None:
    """Every answer ends 4 ms after its send, within bounds and time-out, and nobody reads it until then."""
    run = Run(plan_at([0, 3, 6], window_ms=10), lambda _: (1.0, 1.0), transport=LaggingTransport, **options)
    requests = run.go()
    assert list(requests["outcome"]) == ["ok"] * 3
    assert list(requests["certain_miss"]) == [""] * 3
    assert list(requests["ended_ns"]) == [at * MS for at in (4, 7, 10)]
    assert list(requests["token_reads"]) == [-1] * 3
    assert run.dispatcher.live.cohort_misses == 0
    conserved(run, requests)


def test_what_has_come_when_the_load_stops_did_come() -> None:
    run = Run(plan_at([0, 3, 6], window_ms=1000), transport=LaggingTransport)
    run.clock.run(9 * MS)
    run.dispatcher.stop()
    requests = run.go()
    assert list(requests["outcome"]) == ["ok", "ok", "censored"]
    assert list(requests["ended_ns"])[:2] == [4 * MS, 7 * MS]
    conserved(run, requests)


def test_an_answer_that_is_finished_and_not_over_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    split = sse.split_events

    def counting(body: bytes, **options: Any) -> Any:
        read.append(len(body))
        return split(body, **options)

    monkeypatch.setattr(sse, "split_events", counting)
    plan = plan_at([500], window_ms=1000, tail_ms=10**6, output_tokens=50)
    run = Run(plan, lambda _: None, slo=Slo(e2e_s=0.2), timeout_s=1000)
    active = open_flight(run, 510, "text/event-stream")
    body = b"".join(completion_events(50)[:50])
    for i in range(0, len(body), 100):
        active.received(body[i : i + 100], 510 * MS)
    run.clock.run(900_000 * MS)
    assert run.stops == 0
    assert sum(read) == len(body)


def test_a_time_out_names_the_bound_that_was_broken_by_then() -> None:
    for slo, missed in ((Slo(ttft_s=0.3), ""), (Slo(ttft_s=0.3, tpot_s=0.1), "tpot")):
        plan = plan_at([500, 9000], window_ms=8000, tail_ms=9000)
        run = Run(plan, lambda _: (10.0, 900.0), slo=slo, timeout_s=2)
        row = run.go().iloc[0]
        assert (row["outcome"], row["certain_miss"], row["token_events"]) == ("timeout", missed, 3)


def test_what_is_released_in_the_stop_is_handed_to_the_network_first() -> None:
    run = Run(plan_at([10, 20, 30], window_ms=50), lambda _: None)
    run.clock.run(15 * MS)
    start = run.transport.start
    slow: list[Any] = []

    def later(active: Any, handler: Any) -> None:  # as httpx does, whose task has to be given a turn first
        slow.append(active)
        run.clock.call_at(run.clock.now_ns() + 3 * MS, lambda: start(active, handler))

    run.transport.start = later  # type: ignore[method-assign]
    run.clock.time_ns = 25 * MS  # the loop was away when the second was due
    run.dispatcher.stop()
    assert run.stops == 0
    requests = run.go()
    assert (run.stops, len(slow)) == (1, 1)
    assert run.dispatcher.stop_ns == 25 * MS + 1
    assert len(requests) == 2
    conserved(run, requests)


def test_at_the_horizon_what_is_undecided_is_censored() -> None:
    run = Run(plan_at([500, 1500], window_ms=1000, tail_ms=1000), lambda _: None)
    requests = run.go()
    assert run.dispatcher.stop_ns == 2000 * MS + 1
    assert list(requests["outcome"]) == ["censored", "aborted"]
    assert list(requests["certain_miss"]) == ["", ""]


@pytest.mark.parametrize("clock", ["scheduled", "sent"])
def test_early_fail(clock: Any) -> None:
    at_ms = list(range(10, 1000, 10))
    slo = Slo(ttft_s=0.05, clock=clock)
    run = Run(plan_at(at_ms, window_ms=1000), lambda _: None, slo=slo, early_fail_misses=5)
    requests = run.go()
    facts = run.dispatcher
    assert facts.cohort.stopped_early
    assert facts.stop_ns == pytest.approx(120 * MS, abs=10.1 * MS)  # the sixth is certain at 60 + 50 ms
    assert facts.cohort.due == 99
    assert (requests["certain_miss"] == "ttft").sum() >= 6
    conserved(run, requests)
    late = Run(
        plan_at(at_ms, window_ms=1000), lambda _: None, slo=slo, early_fail_misses=5, early_fail_after_ns=500 * MS
    )
    late.go()
    assert late.dispatcher.stop_ns >= 500 * MS


def test_failures_are_misses_and_only_those_of_the_cohort_count() -> None:
    plan = plan_at([10, 20, 30, 150, 160, 170], warmup_ms=100, window_ms=1000)
    run = Run(plan, refused={0, 1, 2, 3}, slo=Slo(ttft_s=1.0), early_fail_misses=1)
    requests = run.go()
    assert not run.dispatcher.cohort.stopped_early
    assert (run.dispatcher.live.cohort_decided, run.dispatcher.live.cohort_misses) == (3, 1)
    assert list(requests["outcome"]) == ["connect_error"] * 4 + ["ok"] * 2
    conserved(run, requests)


def test_a_concurrency_cap_is_a_queue_that_the_records_show() -> None:
    run = Run(plan_at([10, 11, 12, 13], output_tokens=1), lambda _: (100.0, 1.0), max_concurrency=2)
    requests = run.go()
    assert list(requests["admitted_ns"]) == [10 * MS, 11 * MS, 110 * MS, 111 * MS]
    assert list(requests["released_ns"]) == list(requests["scheduled_ns"])
    assert run.dispatcher.peak_in_flight == 2
    conserved(run, requests)


def test_a_request_that_times_out_in_the_queue_frees_no_slot_and_takes_none() -> None:
    plan = plan_at([11, 12, 13, 300], output_tokens=1)  # one wake-up at 520 ms finds three of them expired
    run = Run(plan, lambda i: None if i == 0 else (1.0, 1.0), max_concurrency=1, timeout_s=0.5)
    requests = run.go()
    assert list(requests["outcome"]) == ["timeout"] * 3 + ["ok"]
    assert [index for index, _ in run.transport.started] == [0, 3]
    assert run.dispatcher.peak_in_flight == 1
    conserved(run, requests)


def test_a_stop_in_the_middle_keeps_the_books() -> None:
    run = Run(plan_at(range(10, 1000, 10)), lambda _: (200.0, 1.0), max_concurrency=3)
    run.clock.run(500 * MS)
    run.dispatcher.stop()
    run.dispatcher.stop()
    requests = run.go()
    assert run.stops == 1
    assert len(requests) == 50
    assert (requests["outcome"] == "censored").sum() > 40
    conserved(run, requests)


def test_the_death_of_a_target() -> None:
    run = Run(plan_at([10, 20, 30], output_tokens=1), lambda _: None, refused={1, 2})
    run.clock.run(15 * MS)
    active = next(iter(run.transport.open_requests.values()))
    run.transport.finish(active, run.dispatcher, "lost")
    run.go()
    assert run.dispatcher.target_died


def test_a_closed_loop_goes_on_when_all_of_its_requests_time_out() -> None:
    plan = plan_at([0] * 1000, window_ms=1000, tail_ms=1000, output_tokens=1)
    run = Run(plan, lambda _: None, pacing=FixedConcurrency(2), timeout_s=0.1)
    requests = run.go()
    assert run.dispatcher.peak_in_flight == 2
    assert 18 <= run.dispatcher.cohort.due <= 20  # two in every tenth of a second
    assert (requests["outcome"] == "timeout").sum() >= 18
    conserved(run, requests)


def test_a_closed_loop_keeps_n_in_flight() -> None:
    plan = plan_at([0] * 400, window_ms=1000, output_tokens=1)
    run = Run(plan, lambda _: (10.0, 1.0), pacing=FixedConcurrency(4))
    requests = run.go()
    assert run.dispatcher.peak_in_flight == 4
    assert list(requests["scheduled_ns"][:8]) == [0] * 4 + [10 * MS] * 4
    in_window = requests["scheduled_ns"] < 1000 * MS
    assert run.dispatcher.cohort.due == in_window.sum() == 400
    assert list(requests["index"]) == list(range(len(requests)))
    conserved(run, requests)


def test_a_closed_loop_stops_when_its_cohort_is_decided() -> None:
    run = Run(plan_at([0] * 1000, window_ms=100, output_tokens=1), lambda _: (30.0, 1.0), pacing=FixedConcurrency(2))
    requests = run.go()
    assert run.dispatcher.cohort.due == 8
    assert list(requests["outcome"])[:8] == ["ok"] * 8
    assert run.dispatcher.stop_ns < 130 * MS
    conserved(run, requests)


def test_a_blocked_loop_owes_every_tick() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    heartbeat.start()
    clock.run(10_000 * MS)
    assert (heartbeat.p99_s(), heartbeat.max_s()) == (0.0, 0.0)
    clock.time_ns += 300 * MS
    heartbeat.stop()
    assert heartbeat.max_s() == pytest.approx(0.29)
    assert heartbeat.p99_s() == pytest.approx(0.19)  # rank 1020 of 1030 ticks, the last 30 of them late


@pytest.mark.parametrize(
    ("drain", "stop_ms", "outcomes"),
    [
        (None, 990 + 300, ["censored", "censored"]),
        (Drain(unanswered=2, misses=9), 990 + 300, ["censored", "censored"]),
        (Drain(unanswered=1, misses=9), 500 + 900, ["ok", "censored"]),
        (Drain(unanswered=0, misses=9), 990 + 900, ["ok", "ok"]),
        (Drain(unanswered=0, misses=1), 990 + 300, ["censored", "censored"]),  # it fails anyway
    ],
)
def test_certain_misses_are_waited_for_while_they_may_hide_errors(
    drain: Drain | None, stop_ms: float, outcomes: list[str]
) -> None:
    plan = plan_at([500, 990, 1100, 1800], window_ms=1000, tail_ms=5000, output_tokens=1)
    run = Run(plan, lambda _: (900.0, 0.0), slo=Slo(ttft_s=0.3), drain=drain)
    requests = run.go()
    assert run.dispatcher.stop_ns == pytest.approx(stop_ms * MS, abs=10.1 * MS)
    assert list(requests["outcome"][:2]) == outcomes
    assert run.dispatcher.live.cohort_misses == 2
    conserved(run, requests)


def test_nothing_is_waited_for_once_too_many_failed() -> None:
    plan = plan_at([500, 510, 990], window_ms=1000, tail_ms=5000, output_tokens=1)
    run = Run(plan, lambda _: (900.0, 0.0), slo=Slo(ttft_s=0.3), refused={0, 1}, drain=Drain(unanswered=1, misses=9))
    assert list(run.go()["outcome"]) == ["connect_error"] * 2 + ["censored"]
