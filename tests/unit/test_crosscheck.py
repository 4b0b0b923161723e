from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_files import again
from run_tables import facts, served
from test_judge import CRITERIA

from analysis.judge import judge_rate, judge_run
from analysis.server_metrics.crosscheck import cold_claim, explained_hits, foreign_requests, server_findings
from analysis.server_metrics.types import ServerView, SourceReport
from analysis.verdict import Finding

N = 1400


def server(**metrics: dict[str, float]) -> ServerView:
    return ServerView(metrics=metrics)


def found(view: ServerView, **spoiled: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in server_findings(served(**spoiled), view)}


def test_means_that_agree_are_said_with_both_numbers() -> None:
    # the client sees the first token 399.9 ms after it sent, gaps of 10 ms, the end after 499.9 ms
    view = server(
        ttft_s={"n": N, "mean": 0.395}, itl_s={"n": N * 10, "mean": 0.0099}, e2e_s={"n": N, "mean": 0.496}
    )  # fmt: skip
    told = found(view)["server_means"]
    assert told.severity == "info"
    assert "TTFT 395 ms there (n 1400), 399.9 ms here (n 1400)" in told.text
    assert "ITL 9.9 ms there (n 14000), 10 ms here" in told.text


def test_means_that_disagree_are_a_warning_naming_which() -> None:
    told = found(server(ttft_s={"n": N, "mean": 0.2}, e2e_s={"n": N, "mean": 0.496}))["server_means"]
    assert told.severity == "warning"
    assert "; TTFT differ by more" in told.text


def test_means_of_other_requests_are_not_held_against_each_other() -> None:
    assert found(server(ttft_s={"n": 2 * N, "mean": 0.2}))["server_means"].severity == "info"


def test_requests_that_others_sent_are_counted() -> None:
    assert foreign_requests(served(), server(finished={"n": 1600})) == 200
    assert foreign_requests(served(), server(finished={"n": 1401})) == 0  # one of ours may have been counted late
    assert foreign_requests(served(), server()) == 0
    assert foreign_requests(served(), None) == 0


def test_speculation_and_failed_readings_are_told() -> None:
    view = ServerView(
        metrics={"accept_rate": {"mean": 0.75}, "accepted_tokens": {"n": 150}, "drafts": {"n": 100}},
        sources=(SourceReport(name="http://a", scrapes=90, failures=10, why="no answer within 2 s"),),
    )
    told = found(view)
    assert "75.0% of drafted tokens accepted, 2.50 tokens a step" in told["speculation"].text
    assert told["readings"].text == "10 of 100 readings of http://a failed; the last: no answer within 2 s"


def test_hits_beyond_shared_prefixes_break_the_claim() -> None:
    requests = served()
    assert cold_claim(requests, server(prefix_hits={"n": 0}), 0) == ""
    assert cold_claim(requests, server(prefix_hits={"n": 1300}), 0) == ""  # by chance
    said = cold_claim(requests, server(prefix_hits={"n": 5000}, prefix_queries={"n": 1.4e6}), 0)
    assert said.startswith("5000 of 1400000 prompt tokens were found in the prefix cache")
    assert cold_claim(requests, server(prefix_hits={"n": 5000}), 4000) == ""
    assert cold_claim(requests, server(external_prefix_hits={"n": 5000}), 0) != ""


def test_cached_tokens_of_the_answers_tell_it_too() -> None:
    requests = served(cached_tokens=992)
    assert "1388800 of 1400000" in cold_claim(requests, None, 0)
    assert cold_claim(served(), None, 0) == ""  # nobody told: nothing is claimed broken


def test_preempted_requests_may_meet_their_own_tokens() -> None:
    view = server(prefix_hits={"n": 5000}, preemptions={"n": 4})
    assert cold_claim(served(), view, 0) == ""


def test_a_chat_template_is_no_broken_claim() -> None:
    requests = served(input_tokens=1030)  # 30 tokens of template before each prompt
    assert cold_claim(requests, server(prefix_hits={"n": 30 * N}), 0) == ""
    assert cold_claim(requests, server(prefix_hits={"n": 60 * N}), 0) != ""


def test_of_a_group_all_but_one_find_its_prefix() -> None:
    prefix, group = np.array([10, 10, 10, 0, 6]), np.array([0, 0, 1, 2, -1])
    assert explained_hits(np.full(5, 20), prefix, group) == 10 + 6


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=40))
def test_no_order_of_service_finds_more_than_is_explained(drawn: list[tuple[int, int]]) -> None:
    """A cold cache that keeps everything, requests served one after another in any order."""
    group = np.array([g for g, _ in drawn])
    prefix = np.array([p for _, p in drawn])
    longest, hits = dict.fromkeys(range(4), 0), 0
    for g, p in drawn:
        hits += min(p, longest[g])
        longest[g] = max(longest[g], p)
    assert hits <= explained_hits(np.full(len(drawn), 50), prefix, group)


def rising(slope_per_s: float) -> ServerView:
    at_s = np.arange(0.5, 140)
    waiting = 3 + slope_per_s * at_s + np.sin(at_s * 1.7)
    return ServerView(metrics={"waiting": {"mean": 3, "max": 9}}, waiting_at_s=at_s, waiting=waiting)


def test_a_rising_server_queue_fails_a_run_that_its_own_records_do_not() -> None:
    verdict = judge_run(served(), facts(), CRITERIA, rising(0.5))
    assert (verdict.status, verdict.waiting_state) == ("FAIL", "rising")
    assert verdict.reason.startswith("the server's waiting queue rises by 5 %")
    assert verdict.drift_state == "ok"
    steady = judge_run(served(), facts(), CRITERIA, rising(0.0))
    assert (steady.status, steady.waiting_state) == ("PASS", "ok")
    assert again(verdict) == verdict


def test_a_gap_in_the_readings_is_no_evidence() -> None:
    view = rising(0.5)
    cut = (view.waiting_at_s < 60) | (view.waiting_at_s > 90)
    seen = ServerView(waiting_at_s=view.waiting_at_s[cut], waiting=view.waiting[cut])
    verdict = judge_run(served(), facts(), CRITERIA, seen)
    assert (verdict.status, verdict.waiting_ratio) == ("PASS", None)


def test_runs_too_unsteady_to_tell_alone_fail_the_rate_together() -> None:
    swing = 9 * np.sin(np.arange(140) * 2 * np.pi / 15)
    unsteady = [
        judge_run(served(), facts(), CRITERIA, replace(rising(slope), waiting=rising(slope).waiting + swing))
        for slope in (0.5, 0.6, 0.55)
    ]
    assert {run.waiting_state for run in unsteady} == {"ok"}
    assert [run.status for run in unsteady] == ["PASS"] * 3
    rate = judge_rate(10.0, unsteady, CRITERIA, needed=3)
    assert rate.status == "FAIL"
    assert rate.reason.startswith("in 3 runs together the server's waiting queue rises by 5.")
    assert rate.waiting_ratio == pytest.approx(0.055, abs=0.004)
