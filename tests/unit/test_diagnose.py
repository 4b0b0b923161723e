from __future__ import annotations

from typing import Any

import pytest

from analysis.diagnose import Step, diagnose, in_lines
from analysis.report.server import server_table
from analysis.slo import Slo
from analysis.verdict import Finding, RunVerdict

SLO = Slo(ttft_s=0.8, tpot_s=0.05)
NAMES = ("generator", "workload", "server queue", "phase", "resources")


def run(status: str = "FAIL", *, ttft: float = 0.3, tpot: float = 0.02, **changed: Any) -> RunVerdict:
    summary = {"ttft_s": {"p95": ttft}, "tpot_s": {"p95": tpot}, "send_lag_s": {"p99": 0.0004}}
    known: dict[str, Any] = {
        "status": status, "summary": summary, "cohort": 600, "errors": 0, "outcomes": {"ok": 600}, "sent_rate": 5.01,
        "realised_rate": 5.01, "drift_ratio": 0.0,
    }  # fmt: skip
    return RunVerdict(**(known | changed))


def server(**told: dict[str, float]) -> dict[str, dict[str, float]]:
    flat: dict[str, dict[str, float]] = {
        "waiting": {"mean": 0.1, "max": 2.0}, "queue_s": {"n": 600, "mean": 0.001},
        "ttft_s": {"n": 600, "mean": 0.25}, "prefill_s": {"n": 600, "mean": 0.2}, "kv_usage": {"mean": 0.3, "max": 0.5},
        "preemptions": {"n": 0}, "running": {"mean": 20.0, "max": 40.0}, "iteration_tokens": {"n": 9, "mean": 48.0},
        "prefix_hits": {"n": 0}, "prefix_queries": {"n": 600_000},
    }  # fmt: skip
    return flat | told


def steps(*failed: RunVerdict, passed: tuple[RunVerdict, ...] = ()) -> dict[str, Step]:
    found = diagnose(failed, passed, SLO)
    assert tuple(step.name for step in found) == NAMES
    return {step.name: step for step in found}


def suspects(found: dict[str, Step]) -> list[str]:
    return [name for name, step in found.items() if step.suspect]


def test_a_growing_queue_is_the_first_suspect_with_its_numbers() -> None:
    failing = run(
        ttft=4.2, drift_ratio=0.08, waiting_ratio=0.07,
        server=server(waiting={"mean": 37.0, "max": 81.0}, queue_s={"n": 600, "mean": 1.9},
                      ttft_s={"n": 600, "mean": 2.1}),
    )  # fmt: skip
    found = steps(failing, passed=(run("PASS", server=server()),))
    assert suspects(found) == ["server queue", "phase"]
    text = found["server queue"].text
    assert "37 waiting (0.1 at the passing rate), at most 81" in text
    assert "1.9s queued of 2.1s TTFT" in text
    assert "waiting grows by 7.0% of arrivals, outstanding work by 8.0%" in text
    assert "add replicas" in text


def test_a_slow_prefill_is_not_blamed_on_a_flat_queue() -> None:
    found = steps(run(ttft=1.3, server=server(prefill_s={"n": 600, "mean": 0.9})))
    assert suspects(found) == ["phase"]
    assert "TTFT p95 1.3s over 800ms, prefill 900ms" in found["phase"].text
    assert "TPOT p95 20ms within 50ms" in found["phase"].text
    assert "20 running, 48 tokens a step" in found["phase"].text


def test_preemptions_and_a_full_cache_are_resources() -> None:
    found = steps(run(tpot=0.09, server=server(kv_usage={"mean": 0.9, "max": 0.99}, preemptions={"n": 41})))
    assert suspects(found) == ["phase", "resources"]
    assert found["resources"].text.startswith("KV cache at most 99% full, 41 preemptions a run at most")


def test_what_was_not_measured_is_named_and_clears_nobody() -> None:
    found = steps(run(ttft=1.3))
    assert "the server's queue was not measured" in found["server queue"].text
    assert "cache hits not measured" in found["workload"].text
    assert "not measured: KV cache, GPU, GPU memory bandwidth" in found["resources"].text


def test_a_late_client_and_odd_work_come_before_the_server() -> None:
    client = Finding(check="send_lag_flips", blame="client", severity="warning", text="3 requests flip")
    work = Finding(check="output_lengths", blame="workload", severity="warning", text="9 requests did not bring")
    found = steps(run(findings=(client, work), errors=2, outcomes={"ok": 598, "timeout": 2}))
    assert suspects(found) == ["generator", "workload"]
    assert "sent 5.01/s of 5.01/s scheduled, send lag p99 0.4ms, 3 requests flip" in found["generator"].text
    assert "2 errors of 600 (2 timeout)" in found["workload"].text


@pytest.mark.parametrize("kind", ["rejected", "connect_error", "timeout", "http_error"])
def test_errors_that_fail_a_run_make_the_workload_step_suspect_and_say_where_to_look(kind: str) -> None:
    found = steps(run(ttft=0.03, errors=180, misses=180, outcomes={"ok": 420, kind: 180}))
    assert suspects(found) == ["workload"]
    assert f"180 errors of 600 (180 {kind})" in found["workload"].text
    assert ": " in found["workload"].text
    # one error in a thousand fails a promise of 99.9 %, and is then the cause
    few = Finding(check="attainment", blame="server", severity="block", text="99.8 % of requests met the SLO")
    assert suspects(steps(run(errors=2, misses=2, outcomes={"ok": 998, kind: 2}, cohort=1000, findings=(few,)))) == [
        "workload"
    ]
    assert suspects(steps(run(errors=2, misses=90, outcomes={"ok": 998, kind: 2}, cohort=1000, findings=(few,)))) == []


def test_a_waiting_gauge_alone_shows_a_queue_by_little_s_law() -> None:
    gauges = {"waiting": {"mean": 17.8, "max": 25.0}, "running": {"mean": 1.0, "max": 1.0}}
    summary = {"ttft_s": {"p95": 2.5, "mean": 1.8}}
    found = steps(run(server=gauges, summary=summary, sent_rate=10.0))
    assert suspects(found) == ["server queue", "phase"]
    assert "1.78s queued of 1.8s TTFT by Little's law" in found["server queue"].text
    short = {"waiting": {"mean": 1.0, "max": 4.0}}
    assert not steps(run(server=short, summary=summary, sent_rate=10.0))["server queue"].suspect


def test_runs_stopped_early_say_nothing_of_slopes() -> None:
    found = steps(run(drift_ratio=0.5, waiting_ratio=0.5, attainment_is_bound=True))
    assert not found["server queue"].suspect


def test_a_line_a_step_begins_with_the_suspects_and_nothing_failed_needs_none() -> None:
    first, *others = in_lines(diagnose([run(ttft=1.3)], (), SLO)).split("\n")
    assert first.startswith("phase (suspect): TTFT")
    assert [line.split(":")[0] for line in others] == ["generator", "workload", "server queue", "resources"]
    assert diagnose([], (), SLO) == ()


def test_the_server_table_stands_beside_the_client() -> None:
    summary = {"ttft_from_sent_s": {"mean": 0.26}}
    table = server_table(run("PASS", server=server(), summary=summary))
    assert table is not None
    assert ("TTFT, ms", "250.0", "", "260.0") in table.rows
    assert ("KV cache", "30.0%", "50.0%", "") in table.rows
    assert server_table(run("PASS")) is None
    only_client = {"client_cpu_s": {"n": 1.0}}
    assert server_table(run("PASS", server=only_client)) is None
