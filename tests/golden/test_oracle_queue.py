"""The reference queue, figure by figure, through the project's own queue, tables, indicator, cohort and judge."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.cohort import mask, nearest_rank, realised_rate
from analysis.indicator import joint
from analysis.judge import judge_rate, judge_run
from analysis.records import derive, numbers
from analysis.slo import Slo
from analysis.verdict import Criteria, RateVerdict, RunFacts, SenderFacts
from tests.fakes.queue import fcfs_requests

ORACLE = Path(__file__).resolve().parents[2].parent / "shared" / "oracles" / "seed_queue.json"
pytestmark = pytest.mark.skipif(not ORACLE.exists(), reason="the reference values are not beside the checkout")
CRITERIA = Criteria(slo=Slo(e2e_s=0.250), attain=Fraction(95, 100), replicates=12)
BRACKET_RATES = (4, 6)


def oracle() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(ORACLE.read_text())
    return read


def to_ns(seconds: list[float]) -> np.ndarray:
    return np.rint(np.array(seconds) * 1e9).astype(np.int64)


def services_ns(seed: int, n: int) -> np.ndarray:
    draw = random.Random(seed).random
    return to_ns([0.020 if draw() < 0.8 else 0.180 for _ in range(n)])


def arrivals_ns(seed: int, rate: float, n: int) -> np.ndarray:
    draw = random.Random(seed + 10000).expovariate
    return to_ns(list(itertools.accumulate(draw(rate) for _ in range(n))))


def measure(rate: float, model: dict[str, Any]) -> tuple[dict[str, Any], RateVerdict]:
    n, warmup = model["requests"], model["warmup_requests"]
    waits, realised, verdicts = [], [], []
    for seed in model["seeds"]:
        at = arrivals_ns(seed, rate, n)
        requests = fcfs_requests(at, services_ns(seed, n))
        warmup_ns, end_ns = int(at[warmup]), int(at[-1]) + 1
        sender = SenderFacts(
            rate=rate,
            warmup_ns=warmup_ns,
            window_ns=end_ns - warmup_ns,
            stop_ns=end_ns,
            due=n,
            sent=n,
            cohort_due=n - warmup,
            simulated=True,
        )
        cohort = requests[mask(requests, warmup_ns=warmup_ns, window_ns=end_ns - warmup_ns)]
        assert len(cohort) == n - warmup
        waited_ns = numbers(cohort, "headers_ns") - numbers(cohort, "sent_ns")
        waits.append(nearest_rank(np.sort(waited_ns), 0.95) / 1e6)
        realised.append(realised_rate(cohort, warmup_ns=warmup_ns, window_ns=end_ns - warmup_ns))
        verdicts.append(judge_run(requests, RunFacts(sender=sender), CRITERIA))
    verdict = judge_rate(rate, verdicts, CRITERIA, len(model["seeds"]))
    assert verdict.attain_min is not None
    assert verdict.attain_max is not None
    row = {
        "actual_rps_min": round(min(realised), 2),
        "actual_rps_max": round(max(realised), 2),
        "worst_p95_wait_ms": round(max(waits), 1),
        "attain_min_pct": round(100 * verdict.attain_min, 2),
        "attain_max_pct": round(100 * verdict.attain_max, 2),
        "floor_pct": round(100 * verdict.attain_min, 2),
        "check": verdict.status,
    }
    return row, verdict


def compare(rates: set[float] | None) -> dict[float, str]:
    expected = oracle()
    checks: dict[float, str] = {}
    for values in expected["rows"]:
        row = dict(zip(expected["columns"], values, strict=True))
        rate, _rho = row.pop("rate"), row.pop("rho")
        if rates is None or rate in rates:
            found, verdict = measure(rate, expected["model"])
            assert found == row
            checks[rate] = verdict.status
    return checks


def test_the_rows_around_the_bracket() -> None:
    assert compare(set(BRACKET_RATES)) == {4: "PASS", 6: "FAIL"}


@pytest.mark.slow
def test_every_figure_of_the_table_and_its_answer() -> None:
    checks = compare(None)
    largest_passed = max(rate for rate, check in checks.items() if check == "PASS")
    smallest_failed = min(rate for rate, check in checks.items() if check == "FAIL")
    # the answer is the bracket: 4 is the largest tested rate that passed, not the capacity
    assert (largest_passed, smallest_failed) == BRACKET_RATES
    assert oracle()["answer"].startswith(f"bracket {largest_passed} to {smallest_failed} requests/s")


def test_a_closed_loop_reports_a_rate_no_user_gets() -> None:
    expected = oracle()
    model, closed = expected["model"], expected["closed_loop"]
    rates, attained = [], []
    for seed in model["seeds"]:
        services = services_ns(seed, model["requests"])
        finished = np.cumsum(services)
        requests = derive(fcfs_requests(finished - services, services))  # the next is sent when the last is done
        assert (numbers(requests, "ended_ns") == finished).all()
        rates.append(len(requests) * 1e9 / finished[-1])
        attained.append(joint(requests, CRITERIA.slo).mean())
    assert round(min(rates), 2) == closed["rate_min"]
    assert round(max(rates), 2) == closed["rate_max"]
    assert min(attained) == closed["min_attainment"]
