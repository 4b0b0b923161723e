"""How the load fell on the replicas: every number against one worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from analysis.judge import judge_run
from analysis.records import derive, table
from analysis.replicas import balance_of, imbalance_text, notable, pooled
from analysis.slo import Slo
from analysis.verdict import Balance, Criteria, Replica, RunFacts, SenderFacts

S = 1_000_000_000
URLS = ("http://a:1", "http://b:1")
SLO = Slo(ttft_s=1.0)


def request(target: int, at_s: float, first_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    """A request of two tokens: when it was due, had its first token, and ended."""
    at, first, end = round(at_s * S), round(first_s * S), round(end_s * S)
    return {
        "scheduled_ns": at, "released_ns": at, "sent_ns": at, "headers_ns": first, "first_token_ns": first,
        "last_token_ns": end, "ended_ns": end, "outcome": "ok", "output_tokens": 2, "token_events": 2,
        "token_reads": 2, "target": target,
    } | more  # fmt: skip


def sender(**more: Any) -> SenderFacts:
    known: dict[str, Any] = {
        "rate": 1.0, "warmup_ns": 10 * S, "window_ns": 10 * S, "stop_ns": 30 * S, "due": 6, "sent": 6,
        "cohort_due": 5, "urls": URLS, "routing": "round-robin",
    }  # fmt: skip
    return SenderFacts(**known | more)


# window 10..20 s; a: 9–12, 11–13 and 12.5–14.5; b: 12–22 and 13–15 (failed), 21–25 after the window
ROWS = [
    request(0, 9.0, 9.1, 12.0),
    request(0, 11.0, 11.5, 13.0),
    request(1, 12.0, 14.0, 22.0),
    request(0, 12.5, 12.6, 14.5),
    request(1, 13.0, 13.0, 15.0, outcome="connection_lost", first_token_ns=-1, last_token_ns=-1),
    request(1, 21.0, 21.1, 25.0),
]


def made(rows: list[dict[str, Any]] = ROWS, **more: Any) -> Balance:
    balance = balance_of(derive(table(rows)), sender(**more), SLO)
    assert balance is not None
    return balance


def test_a_run_of_two_replicas() -> None:
    a, b = made().replicas
    assert (a.url, b.url) == URLS
    assert (a.requests, b.requests, a.share, b.share) == (2, 2, 0.5, 0.5)
    assert (a.attainment, b.attainment) == (1.0, 0.0)  # b: a TTFT of 2 s and a lost connection
    assert (a.errors, b.errors) == (0, 1)
    # ∫N dt over 10..20 s: a has 2 + 2 + 2 s, b has 8 + 2 s
    assert (a.in_flight_mean, b.in_flight_mean) == (0.6, 1.0)
    assert (a.in_flight_max, b.in_flight_max) == (2, 2)
    assert a.ttft_s["p50"] == pytest.approx(0.1)
    assert a.ttft_s["p95"] == pytest.approx(0.5)
    assert b.ttft_s == {"p50": 2.0, "p95": 2.0, "p99": 2.0, "p50_all": 2.0, "p95_all": None, "p99_all": None}
    assert b.e2e_s["p50"] == 10.0


def test_imbalance_is_the_largest_over_the_mean() -> None:
    balance = made()
    assert balance.request_imbalance == 1.0
    assert balance.in_flight_imbalance == pytest.approx(1.0 / 0.8)
    text = imbalance_text(balance)
    assert text == "largest over the mean (routing round-robin): requests 1.00, in-flight time 1.25 (http://b:1)"


def test_all_on_one_of_three_replicas_is_three() -> None:
    urls = (*URLS, "http://c:1")
    balance = made([row | {"target": 2} for row in ROWS], urls=urls)
    assert balance.request_imbalance == 3.0
    assert balance.in_flight_imbalance == pytest.approx(3.0)
    idle = balance.replicas[0]
    assert (idle.requests, idle.attainment, idle.in_flight_mean, idle.in_flight_max, idle.ttft_s) == (
        0,
        None,
        0.0,
        0,
        {},
    )


def test_waiting_for_a_slot_is_not_in_flight_and_without_one_a_request_counts_nowhere() -> None:
    waited = request(0, 11.0, 14.5, 15.0, admitted_ns=14 * S)
    never = request(-1, 12.0, 12.0, 18.0, outcome="timeout", first_token_ns=-1, last_token_ns=-1, sent_ns=-1)
    balance = made([waited, never])
    a, b = balance.replicas
    assert (a.requests, b.requests, a.share) == (1, 0, 1.0)
    assert (a.in_flight_mean, a.in_flight_max) == (0.1, 1)


def test_a_run_that_was_stopped_early_is_measured_up_to_the_stop_and_has_a_bound() -> None:
    undecided = request(1, 13.5, 13.5, 14.0, outcome="censored", first_token_ns=-1, last_token_ns=-1)
    certain = undecided | {"certain_miss": "ttft"}
    balance = made([*ROWS[:4], undecided, certain], stop_ns=14 * S, stopped_early=True)
    a, b = balance.replicas
    assert balance.attainment_is_bound
    assert (b.requests, b.attainment) == (3, pytest.approx(1 / 3))  # the undecided one is no miss
    assert a.in_flight_mean == pytest.approx((2 + 2 + 1.5) / 4)
    assert b.in_flight_mean == pytest.approx((2 + 0.5 + 0.5) / 4)


def test_one_url_has_no_balance() -> None:
    assert balance_of(derive(table(ROWS)), sender(urls=()), SLO) is None


def test_the_verdict_of_a_run_has_it() -> None:
    requests: pd.DataFrame = table(ROWS)
    verdict = judge_run(requests, RunFacts(sender=sender()), Criteria(slo=SLO))
    assert verdict.balance == made()
    assert judge_run(requests, RunFacts(sender=sender(urls=())), Criteria(slo=SLO)).balance is None


def replica(url: str, requests: int, attainment: float | None, in_flight_mean: float, **more: Any) -> Replica:
    known: dict[str, Any] = {
        "url": url, "requests": requests, "share": 0.5, "attainment": attainment, "errors": 1, "in_flight_max": 4,
        "in_flight_mean": in_flight_mean, "ttft_s": {"p95": 0.1}, "tpot_s": {}, "e2e_s": {"p95_all": None},
    }  # fmt: skip
    return Replica(**known | more)


def balance(*replicas: Replica, routing: str = "random") -> Balance:
    counts, times = [one.requests for one in replicas], [one.in_flight_mean for one in replicas]
    return Balance(
        routing=routing,
        replicas=replicas,
        attainment_is_bound=False,
        request_imbalance=max(counts) * len(counts) / sum(counts),
        in_flight_imbalance=max(times) * len(times) / sum(times),
    )


def test_runs_of_a_rate_are_pooled() -> None:
    first = balance(replica("a", 100, 1.0, 2.0), replica("b", 100, 0.5, 4.0))
    second = balance(replica("a", 300, 0.9, 4.0, ttft_s={"p95": 0.3}), replica("b", 100, None, 2.0, in_flight_max=9))
    whole = pooled([first, replace(second, attainment_is_bound=True)])
    assert whole is not None
    a, b = whole.replicas
    assert (a.requests, b.requests, a.errors) == (400, 200, 2)
    assert (a.share, b.share) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert a.attainment == pytest.approx((100 + 270) / 400)
    assert (a.in_flight_mean, b.in_flight_mean, b.in_flight_max) == (3.0, 3.0, 9)
    assert (a.ttft_s, a.e2e_s) == ({"p95": 0.3}, {"p95_all": None})
    assert whole.request_imbalance == pytest.approx(4 / 3)
    assert whole.in_flight_imbalance == 1.0
    assert whole.attainment_is_bound
    assert pooled([]) is None


@pytest.mark.parametrize(
    ("routing", "counts", "times", "worth"),
    [
        ("round-robin", (100, 100), (2.0, 2.0), False),
        ("round-robin", (100, 100), (2.0, 3.0), False),  # 1.2
        ("round-robin", (100, 100), (2.0, 3.4), True),  # 1.26
        ("least-in-flight", (112, 88), (2.0, 2.0), True),  # 1.12
        ("random", (112, 88), (2.0, 2.0), False),  # three standard deviations of 200 fair draws are 21 %
        ("random", (11_200, 8_800), (2.0, 2.0), True),
    ],
)
def test_what_is_worth_a_line(routing: str, counts: tuple[int, int], times: tuple[float, float], worth: bool) -> None:
    two = [replica(url, n, 1.0, time) for url, n, time in zip("ab", counts, times, strict=True)]
    assert notable(balance(*two, routing=routing)) is worth


def test_no_load_is_no_imbalance() -> None:
    none = made([request(0, 1.0, 1.1, 2.0)])
    assert (none.request_imbalance, none.in_flight_imbalance) == (None, None)
    assert not notable(none)
    assert imbalance_text(none).endswith("requests none, in-flight time none")
