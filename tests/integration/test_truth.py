"""That `make truth` works, in small: what it measures, and that a missed target is said to be missed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.truth import claims, drift, errors, queues
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Crew, asked, one_run


def test_a_missed_target_is_said_and_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board()
    board.hold("this", "1", "≤ 2", met=True)
    assert board.close(quick=False) == 0
    board.hold("that", "3", "≤ 2", met=False)
    assert board.close(quick=False) == 1
    assert board.close(quick=True) == 0
    assert "- that: 3 (target ≤ 2: MISSED)" in capsys.readouterr().out


@pytest.mark.parametrize("queue", queues.QUEUES, ids=lambda queue: queue.profile)
def test_simulated_waits_are_those_of_theory(queue: queues.Queue) -> None:
    of = asked(queue.profile, input="16", output="2", slo=("e2e<=100s",), timeout="100s", cohort=5000, warmup="20s")
    known_s = tuple(queues.quantile(queue, 10.0, share) for share in queues.SHARES)
    found = np.array([queues.waits(of, 10.0, seed, known_s) for seed in Crew(1).seeds("test", 8)])
    errors = found.std(axis=0, ddof=1) / math.sqrt(8)
    mean_s = queue.second_moment * 0.05 / 2  # Pollaczek–Khinchine at ρ = 0.5
    # Student's t with 7 degrees of freedom goes beyond 7 once in five thousand times
    assert (np.abs(found.mean(axis=0) - [mean_s, *queues.SHARES]) < 7 * errors).all()


def test_the_capacity_of_the_textbook_queue_is_where_it_is_documented() -> None:
    assert claims.fcfs_capacity() == pytest.approx(5.93, abs=0.01)


@pytest.mark.parametrize(
    ("window", "held", "says"),
    [
        pytest.param("300s", 2, "true pass probability is below 0.8", marks=pytest.mark.slow),
        pytest.param("120s", 0, "p < 0.8: ", marks=pytest.mark.slow),  # the flattest curve has no target
    ],
)
def test_claims_are_printed_beside_their_targets(
    capsys: pytest.CaptureFixture[str], window: str, held: int, says: str
) -> None:
    server = replace(claims.SERVERS["mm1"], settings={**claims.QUEUE, "width": "50%"})
    board = Board()
    claims.claims(board, Crew(1), server, {"window": window}, 2, 2, quick=True)
    assert board.held == held
    said = capsys.readouterr().out
    assert "Long-run capacity 8.017/s" in said
    assert says in said


@pytest.mark.parametrize("runs", [1, 3])
def test_the_drift_test_is_asked_as_a_rate_is_judged(runs: int) -> None:
    of = asked("mm1", rate="1..30", window="120s", slo=("e2e<=1h",), timeout="1h", min_requests=1, **drift.QUEUE)
    for rate, fails in ((10.0, 0.0), (30.0, 1.0)):
        found = [one_run(of, rate, seed) for seed in Crew(1).seeds("test", 3)]
        assert drift.failing_share(of, rate, found, runs) == fails


@pytest.mark.parametrize(("share", "name"), [(0.0, "FOUND"), (0.03, "BELOW_RANGE")])
def test_requests_that_are_made_to_fail_are_judged_as_errors(share: float, name: str) -> None:
    of = asked("mm1", rate="2..18", window="120s", runs=3, width="50%", **drift.QUEUE, slo=("e2e<=250ms",))
    outcome = errors.faulty_sweep(of, 5, share)
    assert outcome.name == name
    assert ("requests failed" in outcome.reason) == (share > 0)
