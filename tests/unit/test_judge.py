from __future__ import annotations

import heapq
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_files import again
from run_tables import NS, facts, served, some

from analysis.judge import SUMMARISED, fewest_errors, judge_rate, judge_run, mean_error, misses_allowed
from analysis.records import columns
from analysis.slo import Slo
from analysis.stationarity import RATE_Z, RUN_Z
from analysis.verdict import Criteria, RunFacts, RunVerdict
from loadgen.common.documents import to_json
from tests.fakes.queue import fcfs_requests

CRITERIA = Criteria(slo=Slo(ttft_s=0.8, tpot_s=0.05), attain=Fraction(95, 100), replicates=5)
N, COHORT = 1400, 1200
IN_WINDOW = 300


def failing(count: int, outcome: str = "timeout", **spoiled: Any) -> pd.DataFrame:
    return served(outcome=some(N, outcome, "ok", first=IN_WINDOW, count=count), **spoiled)


def lenient(**changed: Any) -> Criteria:
    return replace(CRITERIA, max_error_rate=Fraction(1), **changed)


def test_a_good_run_passes_with_every_number() -> None:
    verdict = judge_run(served(), facts(), CRITERIA)
    assert (verdict.status, verdict.blame, verdict.reason, verdict.findings) == ("PASS", None, "", ())
    assert (verdict.cohort, verdict.misses, verdict.errors, verdict.attainment) == (COHORT, 0, 0, 1.0)
    assert (verdict.drift_state, verdict.outcomes) == ("ok", {"ok": COHORT})
    assert verdict.drift_ratio == pytest.approx(0, abs=1e-6)
    assert (verdict.realised_rate, verdict.sent_rate) == (pytest.approx(10), pytest.approx(10))
    assert (verdict.goodput, verdict.token_goodput) == (10, 110)
    assert set(verdict.summary) == set(SUMMARISED)
    assert verdict.summary["ttft_s"]["p99"] == 0.4
    assert verdict.summary["tpot_s"]["mean_all"] == pytest.approx(0.01)


def test_a_verdict_survives_its_ledger_line() -> None:
    verdict = judge_run(failing(100), facts(), lenient())
    assert verdict.summary["ttft_s"]["p95_all"] == inf
    assert b'"p95_all":"inf"' in to_json(verdict)
    assert again(verdict) == verdict


@pytest.mark.parametrize(("misses", "status"), [(60, "PASS"), (61, "FAIL")])
def test_attainment_is_decided_at_the_exact_request(misses: int, status: str) -> None:
    verdict = judge_run(failing(misses), facts(), lenient())
    assert (verdict.status, verdict.misses, verdict.attainment) == (status, misses, (COHORT - misses) / COHORT)
    assert [f.check for f in verdict.findings] == ([] if status == "PASS" else ["attainment"])
    assert misses_allowed(COHORT, CRITERIA.attain) == 60


@pytest.mark.parametrize(
    ("count", "bound"),
    # one-sided 95 % lower limits of a Poisson mean, from tables of Garwood's interval
    [(0, 0.0), (1, 0.0513), (2, 0.3554), (5, 1.9701), (10, 5.4254), (20, 13.2547), (50, 38.9652)],
)
def test_the_fewest_errors_that_a_count_allows(count: int, bound: float) -> None:
    assert fewest_errors(count) == pytest.approx(bound, abs=5e-4)


@pytest.mark.parametrize(("errors", "status"), [(12, "PASS"), (13, "PASS"), (18, "PASS"), (19, "FAIL")])
def test_one_run_of_several_fails_only_by_errors_that_luck_does_not_explain(errors: int, status: str) -> None:
    # 1 % of 1200 is 12; 19 errors are at least 12.4, 18 at least 11.6
    assert fewest_errors(18) < 12 < fewest_errors(19)
    verdict = judge_run(failing(errors), facts(), CRITERIA)
    assert (verdict.status, verdict.errors) == (status, errors)
    assert [f.check for f in verdict.findings] == ([] if status == "PASS" else ["error_rate"])


@pytest.mark.parametrize(("errors", "status"), [(12, "PASS"), (13, "FAIL")])
def test_a_run_alone_is_held_against_the_exact_share(errors: int, status: str) -> None:
    verdict = judge_run(failing(errors), facts(), replace(CRITERIA, replicates=1))
    assert (verdict.status, verdict.errors) == (status, errors)


@pytest.mark.parametrize(
    ("outcomes", "replicates", "status"),
    [({"censored": 12}, 1, "PASS"), ({"censored": 13}, 1, "FAIL"), ({"censored": 7, "timeout": 6}, 1, "FAIL"),
     ({"censored": 18}, 5, "PASS"), ({"censored": 19}, 5, "FAIL")],
)  # fmt: skip
def test_what_was_never_answered_counts_as_errors_do(outcomes: dict[str, int], replicates: int, status: str) -> None:
    rows, at = ["ok"] * N, IN_WINDOW
    for outcome, count in outcomes.items():
        rows[at : at + count] = [outcome] * count
        at += count
    verdict = judge_run(served(outcome=rows), facts(), replace(CRITERIA, replicates=replicates))
    assert (verdict.status, verdict.unresolved) == (status, outcomes["censored"])
    assert verdict.errors == outcomes.get("timeout", 0)
    if status == "FAIL":
        assert verdict.findings[0].check == "error_rate"
        assert f"{outcomes['censored']} were still unanswered when the load stopped" in verdict.reason


def test_of_a_run_that_we_stopped_early_nothing_in_flight_was_to_be_answered() -> None:
    early = facts(600, window_ns=120 * NS, cohort_due=COHORT, stopped_early=True)
    verdict = judge_run(served(600, outcome=some(600, "censored", "ok", first=500, count=100)), early, CRITERIA)
    assert (verdict.status, verdict.unresolved, verdict.misses) == ("PASS", 0, 0)


def test_only_the_cohort_is_judged() -> None:
    outcomes = ["timeout"] * 200 + ["ok"] * COHORT
    assert judge_run(served(outcome=outcomes), facts(), CRITERIA).misses == 0


@pytest.mark.parametrize(
    ("changed", "blame"),
    [
        ({"heartbeat_max_s": 1.0}, "client"),
        ({"cold_claim_broken": "warm"}, "workload"),
        ({"changed": "v2"}, "target"),
    ],
)
def test_a_broken_promise_comes_before_pass_and_fail(changed: dict[str, Any], blame: str) -> None:
    for requests in (served(), failing(600)):
        verdict = judge_run(requests, facts(**changed), CRITERIA)
        assert (verdict.status, verdict.blame) == ("INVALID", blame)
        assert verdict.reason == verdict.findings[0].text


def test_the_client_is_blamed_first() -> None:
    verdict = judge_run(served(), facts(changed="v2", workers_lost=1), replace(CRITERIA, min_requests=9999))
    assert verdict.blame == "client"


def test_a_target_that_died_fails() -> None:
    verdict = judge_run(served(), facts(died=True, changed="restarted"), CRITERIA)
    assert (verdict.status, verdict.findings[0].check) == ("FAIL", "target_died")


def test_thin_evidence_forbids_a_pass_and_excuses_no_failure() -> None:
    thin = lenient(min_requests=9999)
    passing = judge_run(served(), facts(), thin)
    assert (passing.status, passing.blame) == ("INVALID", "evidence")
    assert "9999" in passing.reason
    failed = judge_run(failing(600), facts(), thin)
    assert (failed.status, failed.findings[0].check) == ("FAIL", "attainment")
    assert {f.check: f.severity for f in failed.findings}["min_requests"] == "warning"


def test_an_early_stop_is_held_against_the_whole_schedule() -> None:
    # stopped after 40 s of window: 400 sent, 61 certain misses of the 1200 that were to come
    n = 600
    certain = some(n, "ttft", "", first=IN_WINDOW, count=61)
    outcomes = ["ok"] * n
    for i in (*range(IN_WINDOW, IN_WINDOW + 61), *range(590, 600)):
        outcomes[i] = "censored"  # the last ten were in flight and undecided
    early = facts(n, window_ns=120 * NS, cohort_due=COHORT, stopped_early=True)
    verdict = judge_run(served(n, outcome=outcomes, certain_miss=certain), early, CRITERIA)
    assert (verdict.status, verdict.cohort, verdict.misses) == ("FAIL", COHORT, 61)
    assert verdict.attainment_is_bound
    assert verdict.attainment == (COHORT - 61) / COHORT
    assert "at most" in verdict.reason
    assert (verdict.goodput, verdict.token_goodput) == (None, None)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 400), st.sampled_from([Fraction(95, 100), Fraction(99, 100), Fraction(2, 3), Fraction(1)]))
def test_a_run_passes_if_and_only_if_its_misses_are_allowed(misses: int, share: Fraction) -> None:
    verdict = judge_run(failing(misses), facts(), lenient(attain=share))
    assert (verdict.status == "PASS") == (misses <= misses_allowed(COHORT, share))


def test_without_bounds_only_errors_and_drift_decide() -> None:
    loose = replace(CRITERIA, slo=Slo(), attain=Fraction(0))
    assert judge_run(served(), facts(), loose).status == "PASS"
    assert judge_run(failing(19), facts(), loose).findings[0].check == "error_rate"
    scheduled = served()["scheduled_ns"].to_numpy()
    stuck = np.where(np.arange(N) % 20 == 0, -1, scheduled + NS // 2)  # 5 % never end
    verdict = judge_run(served(ended_ns=stuck), facts(), loose)
    assert (verdict.status, verdict.drift_state, verdict.findings[0].check) == ("FAIL", "rising", "drift")


def test_long_residences_leave_no_drift_untested() -> None:
    verdict = judge_run(served(residence_s=15.0), facts(), replace(CRITERIA, slo=Slo(e2e_s=19.0)))
    assert (verdict.status, verdict.drift_state) == ("INVALID", "ok")  # the gates of evidence are not the drift's
    assert verdict.drift_z == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("replicates", "state"), [(1, "rising"), (5, "ok")])
def test_a_run_of_several_is_left_to_their_common_test_unless_it_is_gross(replicates: int, state: str) -> None:
    # N(t) swings by ±5 and rises by 4 % of arrivals
    scheduled = served()["scheduled_ns"].to_numpy()
    lost = np.arange(N) % 25 == 0
    swing = (1 + np.sin(np.arange(N) / 60 * 2 * np.pi * 5 / 6)) * 0.5 * NS
    requests = served(ended_ns=np.where(lost, -1, scheduled + NS // 2 + swing.astype(np.int64)))
    verdict = judge_run(requests, facts(), replace(CRITERIA, slo=Slo(), attain=Fraction(0), replicates=replicates))
    assert verdict.drift_z is not None
    assert RATE_Z < verdict.drift_z < RUN_Z
    assert (verdict.drift_state, verdict.status) == (state, "FAIL" if state == "rising" else "PASS")


def test_one_token_requests_are_counted_beside_the_verdict() -> None:
    verdict = judge_run(
        served(output_tokens=1, token_events=1, token_reads=1, output_tokens_planned=1), facts(), CRITERIA
    )
    assert verdict.status == "PASS"
    assert [(f.check, f.value) for f in verdict.findings] == [("tpot_undefined", COHORT)]


def test_a_closed_loop_is_judged_without_drift() -> None:
    verdict = judge_run(served(), facts(rate=10, window_ns=120 * NS), CRITERIA)
    sender = replace(facts().sender, rate=0.0, open_loop=False)
    closed = judge_run(served(), RunFacts(sender=sender), CRITERIA)
    assert (closed.status, closed.drift_ratio) == ("PASS", None)
    assert closed.attainment == verdict.attainment


def test_an_empty_cohort_is_no_evidence() -> None:
    empty = facts(0, stop_ns=140 * NS, window_ns=120 * NS, cohort_due=0)
    verdict = judge_run(served(0), empty, CRITERIA)
    assert (verdict.status, verdict.blame, verdict.summary) == ("INVALID", "evidence", {m: {} for m in SUMMARISED})


# --- overload ---------------------------------------------------------------------------------------------------------


def overloaded(load: float, seed: int, *, cap: int | None = None) -> tuple[pd.DataFrame, RunFacts]:
    """The oracle's queue beyond its capacity; with `cap`, all but `cap` requests wait in the client."""
    rng, rate, span_s = np.random.default_rng(seed), load / 0.052, 140
    at = np.sort((rng.random(rng.poisson(rate * span_s)) * span_s * NS).astype(np.int64))
    requests = fcfs_requests(at, np.where(rng.random(len(at)) < 0.8, 20_000_000, 180_000_000))
    if cap is not None:
        sent, busy = np.empty(len(at), dtype=np.int64), [0] * cap
        for i, (scheduled, ended) in enumerate(zip(at.tolist(), requests["ended_ns"].tolist(), strict=True)):
            sent[i] = max(scheduled, heapq.heapreplace(busy, ended))
        requests = requests.assign(admitted_ns=sent, sent_ns=sent)
    due = int(((at >= 20 * NS) & (at < 140 * NS)).sum())
    run = facts(
        len(at), rate=rate, stop_ns=span_s * NS, window_ns=120 * NS, cohort_due=due, concurrency_cap=cap,
        simulated=cap is None,
    )  # fmt: skip
    return requests, run


@pytest.mark.parametrize("load", [1.2, 1.5])
def test_an_overloaded_server_fails_and_is_never_invalid(load: float) -> None:
    criteria = replace(CRITERIA, slo=Slo(e2e_s=0.25))
    for seed in range(5):
        verdict = judge_run(*overloaded(load, seed), criteria)
        assert (verdict.status, verdict.findings[0].check) == ("FAIL", "attainment")


def test_a_cap_cannot_hide_the_queue_from_the_drift_of_outstanding_work() -> None:
    # TTFT from the send stays small, for the queue stands in the client; only outstanding work tells
    criteria = replace(CRITERIA, slo=Slo(e2e_s=2.0, clock="sent"))
    verdicts = [judge_run(*overloaded(1.2, seed, cap=4), criteria) for seed in range(3)]
    assert all(verdict.attainment > 0.99 for verdict in verdicts)
    verdict = judge_rate(1.2 / 0.052, verdicts, criteria, 3)
    assert (verdict.status, verdict.drift_ratio) == ("FAIL", pytest.approx(1 - 1 / 1.2, abs=0.05))
    assert "outstanding work rises" in verdict.reason


# --- a rate -----------------------------------------------------------------------------------------------------------


def passed(attainment: float = 0.97, drift: float = 0.0, z: float = 0.0, **more: Any) -> RunVerdict:
    return RunVerdict(status="PASS", attainment=attainment, drift_ratio=drift, drift_z=z, **more)


FAILED = judge_run(failing(600), facts(), lenient())
INVALID = judge_run(served(), facts(workers_lost=1), CRITERIA)
THIN = judge_run(served(), facts(), lenient(min_requests=9999))


def test_a_rate_passes_once_enough_runs_did() -> None:
    some_passed = [passed(0.97), INVALID, THIN, passed(0.99)]
    verdict = judge_rate(4.0, some_passed, CRITERIA, 3)
    assert (verdict.status, verdict.runs, verdict.reason) == ("INCOMPLETE", 2, "2 of 3 runs passed so far")
    verdict = judge_rate(4.0, [*some_passed, passed(0.96)], CRITERIA, 3)
    assert (verdict.status, verdict.runs) == ("PASS", 3)
    assert (verdict.attain_min, verdict.attain_max) == (0.96, 0.99)


def test_one_failure_fails_a_rate_at_once() -> None:
    verdict = judge_rate(4.0, [passed(), FAILED], CRITERIA, 5)
    assert (verdict.status, verdict.reason, verdict.attain_min) == ("FAIL", FAILED.reason, 0.5)


def test_the_floor_is_the_smallest_attainment_of_the_valid_runs() -> None:
    bad = replace(THIN, attainment=0.5)
    verdict = judge_rate(4.0, [passed(0.97), passed(0.951), replace(INVALID, attainment=0.1), bad], CRITERIA, 2)
    assert (verdict.status, verdict.attain_min, verdict.attain_max) == ("PASS", 0.951, 0.97)


def test_runs_that_drift_together_fail_a_rate_that_each_would_pass() -> None:
    rising = [passed(drift=d, z=1.2) for d in (0.05, 0.06, 0.055)]
    assert judge_rate(4.0, rising[:2], CRITERIA, 3).status == "INCOMPLETE"  # not before all are there
    verdict = judge_rate(4.0, rising, CRITERIA, 3)
    assert (verdict.status, verdict.drift_ratio) == ("FAIL", pytest.approx(0.055))
    assert verdict.drift_z == pytest.approx(1.2 * 3**0.5)
    assert (
        "in 3 runs together outstanding work rises by 5.5 % of arrivals, limit 2 % (z = 2.08 > 1.96)" in verdict.reason
    )
    steady = [passed(drift=0.019, z=3.0)] * 3
    assert judge_rate(4.0, steady, CRITERIA, 3).status == "PASS"  # certain, but small


def test_one_run_alone_can_fail_a_rate_by_drift() -> None:
    assert judge_rate(4.0, [passed(drift=0.05, z=2.0)], CRITERIA, 1).status == "FAIL"


def test_the_waiting_gauge_takes_the_same_test() -> None:
    rising = [passed(waiting_ratio=0.05, waiting_z=1.2)] * 3
    verdict = judge_rate(4.0, rising, CRITERIA, 3)
    assert (verdict.status, verdict.waiting_z) == ("FAIL", pytest.approx(1.2 * 3**0.5))
    assert "the server's waiting queue rises" in verdict.reason


def test_errors_of_all_runs_are_pooled() -> None:
    lucky = [passed(cohort=1000, errors=e, unresolved=u) for e, u in ((15, 0), (2, 3), (5, 5))]
    assert judge_rate(4.0, lucky, CRITERIA, 3).status == "PASS"  # 30 of 3000, and one run had 1.5 %
    one_more = [*lucky[:2], passed(cohort=1000, errors=5, unresolved=6)]
    verdict = judge_rate(4.0, one_more, CRITERIA, 3)
    assert verdict.status == "FAIL"
    assert "in 3 runs together 31 of 3000 requests failed (1.033 %), limit 1 %" in verdict.reason
    assert judge_rate(4.0, one_more[1:], CRITERIA, 3).status == "INCOMPLETE"  # 21 of 2000: not all are there


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_a_server_within_its_error_share_is_not_failed_by_one_run_s_luck(share: float) -> None:
    """R = 10 runs of 500, ε = 1 %: an exact limit for each run would fail 34 % of rates at 0.5 ε, and 97 % at 0.9 ε."""
    rng = np.random.default_rng(31)
    counts = rng.binomial(500, share / 100, (2000, 10))
    a_run = (np.vectorize(fewest_errors)(counts) > 5).any(axis=1)
    together = counts.sum(axis=1) > 50
    alarms = np.mean(a_run | together)
    assert alarms <= {0.0: 0.0, 0.5: 0.01, 0.9: 0.32}[share]  # 0.9 ε is within luck of ε in 5000 requests
    if share == 0.5:
        assert np.mean((counts > 5).any(axis=1)) > 0.3


def test_a_server_beyond_its_error_share_fails() -> None:
    counts = np.random.default_rng(32).binomial(500, 0.015, (2000, 10))
    assert np.mean(counts.sum(axis=1) > 50) > 0.95


def test_thin_evidence_excuses_no_overload() -> None:
    rising = [replace(THIN, drift_ratio=0.15, drift_z=1.5)] * 3
    assert judge_rate(4.0, rising, CRITERIA, 3).status == "FAIL"
    assert judge_rate(4.0, [THIN] * 3, CRITERIA, 3).status == "INCOMPLETE"
    assert judge_rate(4.0, [replace(THIN, cohort=100, errors=2)] * 3, CRITERIA, 3).status == "FAIL"
    broken = [replace(INVALID, drift_ratio=0.15, drift_z=1.5, cohort=100, errors=2)] * 3
    assert judge_rate(4.0, broken, CRITERIA, 3).status == "INCOMPLETE"


def test_a_window_cut_short_says_nothing_of_the_rate_s_drift() -> None:
    early = replace(FAILED, attainment_is_bound=True, drift_ratio=0.5, drift_z=9.0)
    assert judge_rate(4.0, [passed(), passed(), early], CRITERIA, 3).drift_ratio == 0.0


def test_the_error_of_a_mean_counts_how_requests_hang_together() -> None:
    rng = np.random.default_rng(33)
    noise = rng.normal(size=(400, 1000))
    assert np.mean([mean_error(row) for row in noise]) == pytest.approx(1 / 1000**0.5, rel=0.05)
    together = np.repeat(rng.normal(size=(400, 50)), 20, axis=1)  # in lumps of 20: as good as 50 values
    assert np.mean([mean_error(row) for row in together]) == pytest.approx(1 / 50**0.5, rel=0.05)
    assert mean_error(np.zeros(19)) is None


def test_nothing_measured_is_incomplete() -> None:
    verdict = judge_rate(4.0, [], CRITERIA, 5)
    assert (verdict.status, verdict.runs, verdict.attain_min, verdict.drift_ratio) == ("INCOMPLETE", 0, None, None)


def test_the_table_needs_only_the_schema_s_columns() -> None:
    assert judge_run(columns(0, {}), facts(0), CRITERIA).cohort == 0
