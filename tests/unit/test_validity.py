from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_tables import NS, facts, served, some

from analysis.records import derive, numbers
from analysis.slo import Slo
from analysis.stationarity import area_s
from analysis.validity import gates, lag_limit_s
from analysis.verdict import Criteria, Finding, RunFacts

CRITERIA = Criteria(slo=Slo(ttft_s=0.8, tpot_s=0.05), attain=Fraction(95, 100))
N = 1400
IN_WINDOW = 300  # a row of the cohort


def found(requests: pd.DataFrame | None = None, run: RunFacts | None = None, **criteria: Any) -> dict[str, Finding]:
    requests = served() if requests is None else requests
    return {f.check: f for f in gates(derive(requests), run or facts(), replace(CRITERIA, **criteria))}


def blocks(finding: Finding, blame: str) -> bool:
    return (finding.severity, finding.blame) == ("block", blame) and bool(finding.text)


def test_a_kept_promise_has_no_findings() -> None:
    assert found(run=facts(live_area_s=area_s(served(), until_ns=facts().sender.stop_ns))) == {}


@pytest.mark.parametrize(
    ("ttft_s", "e2e_s", "limit_s"),
    [(0.8, None, 0.008), (0.8, 0.5, 0.005), (0.05, None, 0.002), (30, 60, 0.010), (None, None, 0.010)],
)
def test_the_lag_limit_is_a_hundredth_of_the_tightest_bound_clamped(
    ttft_s: float | None, e2e_s: float | None, limit_s: float
) -> None:
    assert lag_limit_s(Slo(ttft_s=ttft_s, e2e_s=e2e_s, tpot_s=0.001)) == pytest.approx(limit_s)


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"sent": N - 1}, "sent"),
        ({"due": N + 1, "sent": N + 1}, "records"),
        ({"encode_starved": 1}, "encode"),
        ({"heartbeat_p99_s": 0.0081}, "heartbeat_p99"),
        ({"heartbeat_max_s": 0.101}, "heartbeat_max"),
        ({"peak_in_flight": 100, "connection_limit": 100}, "connections"),
        ({"workers_lost": 1}, "workers"),
        ({"suspended_s": 0.011}, "suspend"),
        ({"clock_ratio_error": 0.0011}, "clock"),
        ({"live_area_s": 600.0}, "conservation"),
    ],
)
def test_a_client_that_broke_its_promise_is_blamed(changed: dict[str, Any], check: str) -> None:
    (finding,) = found(run=facts(**changed)).values()
    assert finding.check == check
    assert blocks(finding, "client")
    assert found(run=facts(**changed, simulated=True)) == {}  # virtual time has no client


@pytest.mark.parametrize(
    "changed",
    [
        {"heartbeat_p99_s": 0.008, "heartbeat_max_s": 0.1},
        {"peak_in_flight": 99, "connection_limit": 100},
        {"peak_in_flight": 10**6},
        {"suspended_s": 0.01, "clock_ratio_error": 0.001},
    ],
)
def test_a_limit_that_is_kept_blames_nobody(changed: dict[str, Any]) -> None:
    assert found(run=facts(**changed)) == {}


def test_a_step_of_the_wall_clock_only_warns() -> None:
    assert [f.severity for f in found(run=facts(wall_step_s=-3600.0)).values()] == ["warning"]


def test_conservation_holds_the_records_against_the_live_count() -> None:
    whole = area_s(served(), until_ns=facts().sender.stop_ns)
    assert found(run=facts(live_area_s=whole * 1.0009)) == {}
    assert set(found(run=facts(live_area_s=whole * 1.0011))) == {"conservation"}
    assert set(found(run=facts(live_area_s=whole * 0.9989))) == {"conservation"}


def late(lag_ms: float, count: int, **spoiled: Any) -> pd.DataFrame:
    scheduled = numbers(served(), "scheduled_ns")
    rows = np.arange(N)
    lag_ns = np.where((rows >= IN_WINDOW) & (rows < IN_WINDOW + count), int(lag_ms * 1e6), 100_000)
    return served(sent_ns=scheduled + lag_ns, **spoiled)


def test_send_lag_is_gated_at_p99_and_at_its_maximum() -> None:
    assert found(late(8, 1400)) == {}
    assert found(late(80, 14)) == {}  # 1 % may be late, up to ten times the limit
    assert set(found(late(8.1, 15))) == {"send_lag_p99"}
    (finding,) = found(late(80.1, 1)).values()
    assert finding.check == "send_lag_max"
    assert blocks(finding, "client")
    assert (finding.value, finding.limit) == (pytest.approx(0.0801), pytest.approx(0.08))


def test_waiting_for_a_slot_or_a_connection_is_not_the_client_s_lateness() -> None:
    scheduled = numbers(served(), "scheduled_ns")
    requests = served(
        released_ns=scheduled,
        admitted_ns=scheduled + 150_000_000,
        sent_ns=scheduled + 200_000_000,
        connect_ns=50_000_000,
    )
    assert found(requests) == {}


def test_lag_that_flips_requests_is_counted_and_blocks_once_it_flips_the_verdict() -> None:
    # the cohort is 1200, 60 may miss; TTFT is 400 ms and the lag 6 ms, below its gate
    tight = Slo(ttft_s=0.6, tpot_s=0.05)
    scheduled = numbers(served(), "scheduled_ns")

    def run(missing: int) -> pd.DataFrame:
        rows = np.arange(N)
        affected = (rows >= IN_WINDOW) & (rows < IN_WINDOW + missing)
        first_ns = scheduled + np.where(affected, 603_000_000, 400_000_000)
        return served(
            sent_ns=scheduled + 6_000_000,
            first_token_ns=first_ns,
            last_token_ns=first_ns + 100_000_000,
            ended_ns=first_ns + 100_000_000,
        )

    few = found(run(60), slo=tight)["lag_flips"]
    assert (few.severity, few.value) == ("info", 60)
    many = found(run(61), slo=tight)["lag_flips"]
    assert many.value == 61
    assert blocks(many, "client")
    assert "lag_flips" not in found(run(61), slo=replace(tight, clock="sent"))


def test_refused_requests_are_the_workload_s_fault_and_show_the_answer() -> None:
    answer = "x" * 300
    outcomes = some(N, "workload_error", "ok", first=IN_WINDOW, count=2)
    finding = found(served(outcome=outcomes, http_status=404, error=answer))["workload_errors"]
    assert blocks(finding, "workload")
    assert "404" in finding.text
    assert "x" * 200 in finding.text
    assert "x" * 201 not in finding.text
    one = some(N, "workload_error", "ok", first=IN_WINDOW)
    assert "workload_errors" not in found(served(outcome=one))  # 1 of 1200 is below 0.1 %


@pytest.mark.parametrize(
    ("spoiled", "check"),
    [
        ({"outcome": some(N, "short_output", "ok", first=IN_WINDOW, count=13)}, "output_lengths"),
        ({"output_tokens": some(N, 12, 11, first=IN_WINDOW, count=13)}, "output_lengths"),
        ({"input_tokens": 899}, "input_lengths"),  # cut short
        ({"input_tokens": 1101}, "input_lengths"),
        ({"token_reads": some(N, 1, 11, first=IN_WINDOW, count=13)}, "buffered_streams"),
    ],
)
def test_work_that_is_not_what_was_asked_is_no_evidence(spoiled: dict[str, Any], check: str) -> None:
    assert blocks(found(served(**spoiled))[check], "workload")


@pytest.mark.parametrize(
    ("spoiled", "severities"),
    [
        ({"outcome": some(N, "short_output", "ok", first=IN_WINDOW, count=12)}, ["warning"]),
        ({"input_tokens": 1021}, ["warning"]),
        ({"input_tokens": 1020}, []),
        ({"input_tokens_planned": 20, "input_tokens": 50}, ["warning"]),  # a chat template
        ({"input_tokens": -1}, []),  # nobody says
        ({"output_tokens": 5}, ["warning"]),  # of max_tokens 11, and finish_reason length says that it was reached
        ({"token_reads": some(N, 1, 11, first=IN_WINDOW, count=12)}, []),
    ],
)
def test_small_differences_do_not_block(spoiled: dict[str, Any], severities: list[str]) -> None:
    assert [finding.severity for finding in found(served(**spoiled)).values()] == severities


def test_buffering_only_warns_where_tpot_is_not_bounded() -> None:
    (finding,) = found(served(token_reads=1), slo=Slo(ttft_s=0.8)).values()
    assert (finding.check, finding.severity) == ("buffered_streams", "warning")


MS = 1_000_000


def gathered(reads: int, span_ms: float, wait_ms: float = 640, **more: Any) -> pd.DataFrame:
    """Streams of 32 tokens in so many reads."""
    table = served(output_tokens=32, output_tokens_planned=32, token_events=32, token_reads=reads, **more)
    first = table["sent_ns"] + int(wait_ms * MS)
    last = first + int(span_ms * MS)
    return table.assign(first_token_ns=first, headers_ns=first, last_token_ns=last, ended_ns=last)


@pytest.mark.parametrize(("reads", "span_ms"), [(1, 0), (2, 1), (4, 3), (8, 14)])
def test_a_stream_let_go_in_a_few_pieces_is_as_buffered_as_one_in_one_piece(reads: int, span_ms: float) -> None:
    findings = found(gathered(reads, span_ms))
    assert blocks(findings["buffered_streams"], "workload")
    assert f"{32 / reads:.3g} events per read" in findings["buffered_streams"].text


@pytest.mark.parametrize(
    ("reads", "span_ms", "wait_ms"),
    [
        (32, 31, 5000),  # waited in a queue, then came fast
        (8, 620, 640),  # a server that writes on a clock
    ],
)
def test_long_waits_and_several_events_a_read_are_no_buffering_by_themselves(
    reads: int, span_ms: float, wait_ms: float
) -> None:
    table = gathered(reads, span_ms, wait_ms)
    assert "buffered_streams" not in found(table, slo=Slo(ttft_s=9, tpot_s=0.05))
    assert "gathered_reads" not in found(table, slo=Slo(ttft_s=9, tpot_s=0.05))


def test_several_events_a_read_block_where_a_lone_request_met_one_each() -> None:
    table = gathered(8, 620, first_read_events=4)
    for lone, checks in ((1.0, {"gathered_reads", "first_reads"}), (4.0, {"first_reads"}), (None, {"first_reads"})):
        findings = found(table, run=facts(survey_events_per_read=lone))
        assert set(findings) == checks
        assert all("4 events per read" in finding.text for finding in findings.values())
    assert blocks(found(table, run=facts(survey_events_per_read=1.0))["gathered_reads"], "workload")


def test_first_reads_of_several_tokens_block_where_the_kernel_stamped_them_and_the_server_sent_them_apart() -> None:
    table = served(N, first_read_events=some(N, 3, 1, first=IN_WINDOW, count=N // 50))
    for stamps, lone, severity in (
        ("kernel", 1.0, "block"), ("kernel", None, "block"), ("kernel", 3.0, "warning"), ("user", 1.0, "warning"),
    ):  # fmt: skip
        finding = found(table, run=facts(stamps=stamps, survey_events_per_read=lone))["first_reads"]
        assert (finding.severity, finding.blame) == (severity, "client")
    few = served(N, first_read_events=some(N, 3, 1, first=IN_WINDOW, count=1))
    assert "first_reads" not in found(few, run=facts(stamps="kernel"))


def test_k_of_tpot_makes_a_proxy_that_flushes_by_size_tell_the_true_one() -> None:
    # 128 tokens 11.9 ms apart, flushed with every 25th and at the end: (last - first)/127 would be 9.65 ms
    table = served(8, output_tokens=128, token_events=128, token_reads=6, first_read_events=25, first_read_tokens=25)
    first = table["sent_ns"] + 300 * MS
    table = table.assign(first_token_ns=first, last_token_ns=first + round(103 * 11.9 * MS))
    assert derive(table)["tpot_s"].to_numpy() == pytest.approx(0.0119)


def doubted(count: int, told: int, **more: Any) -> pd.DataFrame:
    """Answers of 11 tokens of which usage says another number; in `count` of them."""
    source = some(N, "events", "usage", first=IN_WINDOW, count=count)
    return served(usage_tokens=some(N, told, 11, first=IN_WINDOW, count=count), output_tokens_source=source, **more)


def test_usage_that_is_contradicted_blocks_where_the_indicator_rests_on_it() -> None:
    short = found(doubted(1100, 10))["usage"]  # forced: with 10 of 11 tokens each would be a miss
    assert blocks(short, "workload")
    assert "usage contradicts 1100 of 1200 answers: the first says 10 tokens where 11 came" in short.text
    natural = found(doubted(1100, 10), forced=False)["usage"]  # TPOT 11 or 10 ms, and 50 are allowed
    assert (natural.severity, natural.blame) == ("warning", "workload")
    assert blocks(found(doubted(1100, 10), forced=False, slo=Slo(tpot_s=0.0105))["usage"], "workload")
    assert blocks(found(doubted(1100, 0), forced=False)["usage"], "workload")  # no TPOT at all
    assert found(doubted(1100, 0), forced=False, slo=Slo(ttft_s=0.8))["usage"].severity == "warning"
    assert found(doubted(1, 10))["usage"].severity == "warning"  # one of 1200 decides nothing


def test_fewer_tokens_than_max_tokens_at_length_are_a_contradiction_unless_a_context_ends_there() -> None:
    one_short = served(output_tokens=10, usage_tokens=10)
    assert "max_tokens 11" in found(one_short, forced=False)["usage"].text
    assert blocks(found(one_short, forced=False, slo=Slo(tpot_s=0.0105))["usage"], "workload")
    inputs = np.arange(N) % 5 + 1000
    context = served(input_tokens=inputs, input_tokens_planned=inputs, output_tokens=1010 - inputs)
    assert "usage" not in found(context, forced=False)


def test_a_time_out_while_tokens_come_is_ours_and_not_the_server_s() -> None:
    slo = Slo(ttft_s=0.8)
    cut: dict[str, Any] = {"outcome": some(N, "timeout", "ok", first=IN_WINDOW, count=2)}
    cut["finish_reason"] = some(N, "", "length", first=IN_WINDOW, count=2)
    finding = found(served(**cut), slo=slo)["still_answering"]
    assert blocks(finding, "workload")
    assert "set a longer --timeout" in finding.text
    missed = some(N, "tpot", "", first=IN_WINDOW, count=2)  # its bound was broken by then: the server's own doing
    assert "still_answering" not in found(served(**cut, certain_miss=missed))
    table = served(**cut)
    stalled = table.assign(ended_ns=table["ended_ns"] + 3_000 * MS)
    assert "still_answering" not in found(stalled, slo=slo)


def test_a_broken_cold_claim_and_a_changed_target() -> None:
    assert blocks(found(run=facts(cold_claim_broken="12 cached blocks"))["cold_claim"], "workload")
    assert blocks(found(run=facts(changed="version 1 to 2"))["target_changed"], "target")


def test_a_target_that_died_is_not_excused_for_having_changed() -> None:
    assert found(run=facts(changed="restarted", died=True)) == {}


@pytest.mark.parametrize(
    ("residence_s", "criteria", "checks"),
    [
        (6.66, {}, set()),
        (6.67, {}, {"warmup"}),  # 20 s of warm-up
        (40.01, {}, {"warmup", "window"}),  # 120 s of window
        (0.5, {"min_requests": 1200}, set()),
        (0.5, {"min_requests": 1201}, {"min_requests"}),
    ],
)
def test_thin_evidence_is_said_with_what_is_needed(
    residence_s: float, criteria: dict[str, Any], checks: set[str]
) -> None:
    findings = found(served(residence_s=residence_s), **criteria)
    assert set(findings) == checks
    assert all(blocks(finding, "evidence") for finding in findings.values())


def test_a_long_tail_needs_a_warm_up_that_its_median_does_not_show() -> None:
    # one in 25 stays 12 s: E[S²]/E[S] = (0.96·0.25 + 0.04·144)/(0.96·0.5 + 0.04·12) = 6.25 s
    stays = np.where(np.arange(N) % 25 == 0, 12 * NS, NS // 2)
    tail = served(ended_ns=numbers(served(), "scheduled_ns") + stays)
    assert found(tail) == {}
    assert set(found(tail, run=facts(warmup_ns=18 * NS, window_ns=122 * NS))) == {"warmup"}


def test_no_limit_grows_with_what_overload_makes_longer() -> None:
    queued = served(residence_s=60.0)
    assert set(found(queued)) == {"warmup", "window"}
    assert found(queued, residence_s=0.5) == {}  # as measured where nothing waited
    assert set(found(served(), residence_s=60.0)) == {"warmup", "window"}


def test_too_few_requests_name_the_window_that_brings_them() -> None:
    finding = found(min_requests=6000)["min_requests"]
    assert (finding.value, finding.limit) == (1200, 6000)
    assert "10m 00s" in finding.text


def test_an_empty_cohort_is_no_evidence() -> None:
    assert "min_requests" in found(served(0), facts(0, due=0, sent=0, window_ns=NS, stop_ns=21 * NS), min_requests=0)


def test_outputs_cut_at_one_total_name_the_server_s_limit() -> None:
    outcome = some(N, "short_output", "ok", first=IN_WINDOW, count=40)
    given = np.where(np.arange(N) % 2, 4000, 3990)
    short = served(outcome=outcome, output_tokens_planned=200, output_tokens=4096 - given, input_tokens=given)
    finding = found(short)["output_lengths"]
    assert blocks(finding, "workload")
    assert finding.text.endswith("all end at 4096 tokens with their prompt, the server's limit")
    alike = served(outcome=outcome, output_tokens_planned=97, output_tokens=96, input_tokens=4000)
    assert "limit" not in found(alike)["output_lengths"].text  # equal prompts make equal totals whatever the fault


def test_a_forced_output_that_ends_by_itself_is_told() -> None:
    ended = served(finish_reason=some(N, "stop", "length", first=IN_WINDOW))
    (finding,) = found(ended).values()
    assert (finding.check, finding.severity) == ("finish_reasons", "warning")
    assert "(stop)" in finding.text
    natural = found(ended, forced=False)["finish_reasons"]
    assert natural.severity == "info"


def test_one_prompt_that_is_not_of_its_exact_length_is_told() -> None:
    given = numbers(served(), "input_tokens").copy()
    given[IN_WINDOW] += 1
    assert "input_lengths" not in found(served(input_tokens=given))
    finding = found(served(input_tokens=given), exact_inputs=True)["input_lengths"]
    assert (finding.severity, finding.value) == ("warning", 1)


def test_a_block_must_outlast_what_its_history_remembers() -> None:
    scheduled = numbers(served(), "scheduled_ns")
    varied = scheduled + np.random.default_rng(1).exponential(0.5 * NS, N).astype(np.int64)
    assert found(served(ended_ns=varied), blocks=True)["block_length"].severity == "info"
    slow = scheduled + np.where(np.arange(N) < N // 2, 1, 100) * NS  # half a window of one kind, half of another
    finding = found(served(ended_ns=slow), blocks=True)["block_length"]
    assert blocks(finding, "evidence")
    assert "at least 3 are needed: --window" in finding.text


def test_a_disturbed_target_makes_the_run_invalid() -> None:
    finding = found(run=facts(disturbance="slow"))["disturbed"]
    assert blocks(finding, "target")
    assert finding.text == "slow"


def test_others_requests_are_a_finding_and_beyond_one_in_a_hundred_no_run() -> None:
    (few,) = found(run=facts(foreign_requests=2)).values()
    assert (few.check, few.blame, few.severity) == ("other_clients", "target", "warning")
    many = found(run=facts(foreign_requests=N // 50))["other_clients"]
    assert blocks(many, "target")
    assert f"finished {N + N // 50} requests while {N} were sent to it" in many.text


def test_a_machine_without_ports_is_the_client_s_fault_whatever_was_in_flight() -> None:
    finding = found(run=facts(connections_refused="no port left", connection_limit=0, peak_in_flight=3))["connections"]
    assert blocks(finding, "client")
    assert finding.text == "no port left"  # and not "the limit of 0 connections"
