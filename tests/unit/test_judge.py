from __future__ import annotations

import heapq
import json
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_tables import NS, facts, served, some

from analysis.judge import SUMMARISED, judge_rate, judge_run, misses_allowed
from analysis.queueing import fcfs_requests
from analysis.records import columns
from analysis.slo import Slo
from analysis.verdict import Criteria, RunFacts, RunVerdict

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
    line = json.dumps(verdict.to_dict(), allow_nan=False)
    assert RunVerdict.from_dict(json.loads(line)) == verdict


@pytest.mark.parametrize(("misses", "status"), [(60, "PASS"), (61, "FAIL")])
def test_attainment_is_decided_at_the_exact_request(misses: int, status: str) -> None:
    verdict = judge_run(failing(misses), facts(), lenient())
    assert (verdict.status, verdict.misses, verdict.attainment) == (status, misses, (COHORT - misses) / COHORT)
    assert [f.check for f in verdict.findings] == ([] if status == "PASS" else ["attainment"])
    assert misses_allowed(COHORT, CRITERIA.attain) == 60


@pytest.mark.parametrize(("errors", "status"), [(12, "PASS"), (13, "FAIL")])
def test_the_error_share_is_its_own_criterion(errors: int, status: str) -> None:
    verdict = judge_run(failing(errors), facts(), CRITERIA)
    assert (verdict.status, verdict.errors) == (status, errors)
    assert [f.check for f in verdict.findings] == ([] if status == "PASS" else ["error_rate"])


def test_what_we_cancelled_misses_but_is_no_error() -> None:
    verdict = judge_run(failing(60, "censored"), facts(), CRITERIA)
    assert (verdict.status, verdict.misses, verdict.errors) == ("PASS", 60, 0)


def test_only_the_cohort_is_judged() -> None:
    outcomes = ["timeout"] * 200 + ["ok"] * COHORT
    assert judge_run(served(outcome=outcomes), facts(), CRITERIA).misses == 0


@pytest.mark.parametrize(
    ("changed", "blame"),
    [
        ({"heartbeat_max_s": 1.0}, "client"),
        ({"cold_claim_broken": "warm"}, "workload"),
        ({"target_changed": "v2"}, "target"),
    ],
)
def test_a_broken_promise_comes_before_pass_and_fail(changed: dict[str, Any], blame: str) -> None:
    for requests in (served(), failing(600)):
        verdict = judge_run(requests, facts(**changed), CRITERIA)
        assert (verdict.status, verdict.blame) == ("INVALID", blame)
        assert verdict.reason == verdict.findings[0].text


def test_the_client_is_blamed_first() -> None:
    verdict = judge_run(served(), facts(target_changed="v2", workers_lost=1), replace(CRITERIA, min_requests=9999))
    assert verdict.blame == "client"


def test_a_target_that_died_fails() -> None:
    verdict = judge_run(served(), facts(target_died=True, target_changed="restarted"), CRITERIA)
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
    assert judge_run(failing(13), facts(), loose).findings[0].check == "error_rate"
    scheduled = served()["scheduled_ns"].to_numpy()
    stuck = np.where(np.arange(N) % 20 == 0, -1, scheduled + NS // 2)  # 5 % never end
    verdict = judge_run(served(ended_ns=stuck), facts(), loose)
    assert (verdict.status, verdict.drift_state, verdict.findings[0].check) == ("FAIL", "rising", "drift")


def test_a_run_that_cannot_tell_its_drift_says_what_window_could() -> None:
    verdict = judge_run(served(residence_s=5.0), facts(), replace(CRITERIA, slo=Slo(e2e_s=9.0)))
    assert (verdict.status, verdict.drift_state) == ("PASS", "undecided")
    assert "2m 30s" in verdict.findings[0].text


def test_one_token_requests_are_counted_beside_the_verdict() -> None:
    verdict = judge_run(
        served(output_tokens=1, token_events=1, token_reads=1, output_tokens_planned=1), facts(), CRITERIA
    )
    assert verdict.status == "PASS"
    assert [(f.check, f.value) for f in verdict.findings] == [("tpot_undefined", COHORT)]


def test_a_closed_loop_is_judged_without_drift() -> None:
    verdict = judge_run(served(), facts(rate=10, window_ns=120 * NS), CRITERIA)
    closed = judge_run(served(), replace(facts(), rate=0.0, open_loop=False), CRITERIA)
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
    run = facts(len(at), rate=rate, stop_ns=span_s * NS, window_ns=120 * NS, concurrency_cap=cap, simulated=cap is None)
    return requests, replace(run, cohort_due=int(((at >= 20 * NS) & (at < 140 * NS)).sum()))


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


def passed(attainment: float = 0.97, drift: float | None = 0.0) -> RunVerdict:
    return RunVerdict(status="PASS", attainment=attainment, drift_ratio=drift)


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


def test_runs_that_drift_together_fail_a_rate_that_each_would_pass() -> None:
    rising = [passed(drift=d) for d in (0.05, 0.06, 0.055)]
    assert judge_rate(4.0, rising[:2], CRITERIA, 2).status == "PASS"
    verdict = judge_rate(4.0, rising, CRITERIA, 3)
    assert (verdict.status, verdict.drift_ratio) == ("FAIL", pytest.approx(0.055))
    assert verdict.drift_p is not None
    assert verdict.drift_p < 0.05


def test_thin_evidence_excuses_no_overload() -> None:
    rising = [replace(THIN, drift_ratio=d) for d in (0.15, 0.16, 0.17)]
    assert judge_rate(4.0, rising, CRITERIA, 3).status == "FAIL"
    assert judge_rate(4.0, [THIN] * 3, CRITERIA, 3).status == "INCOMPLETE"
    broken = [replace(INVALID, drift_ratio=d) for d in (0.15, 0.16, 0.17)]
    assert judge_rate(4.0, broken, CRITERIA, 3).status == "INCOMPLETE"


def test_a_window_cut_short_says_nothing_of_the_rate_s_drift() -> None:
    early = replace(FAILED, attainment_is_bound=True, drift_ratio=0.5)
    assert judge_rate(4.0, [passed(), passed(), early], CRITERIA, 3).drift_ratio is None


def test_nothing_measured_is_incomplete() -> None:
    verdict = judge_rate(4.0, [], CRITERIA, 5)
    assert (verdict.status, verdict.runs, verdict.attain_min, verdict.drift_ratio) == ("INCOMPLETE", 0, None, None)


def test_the_table_needs_only_the_schema_s_columns() -> None:
    assert judge_run(columns(0, {}), facts(0), CRITERIA).cohort == 0
