"""That `benchmarks.compare_truth` works, in small: what each part measures, and that it says so where one is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.compare_truth import aa, power, ranking
from benchmarks.compare_truth.compared import Server, compare, exact_interval, long_run_capacity
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Crew

SMALL = {
    "rate": "2..18",
    "width": "30%",
    "input": "16",
    "output": "1",
    "slo": ("e2e<=250ms",),
    "cohort": 200,
    "runs": 6,
}
QUEUE = aa.Equal(name="M/M/1", profile="mm1?service.seed={luck}", settings=SMALL)
FASTER = power.Plant(
    equal=QUEUE, key="service.mean_ms", values=(50.0, 30.0), capacity=power.PLANTS[1].capacity, how="exact"
)
PAIR = (Server(name="slow", profile="mm1"), Server(name="fast", profile="mm1?service.mean_ms=30"))


@pytest.mark.slow
def test_a_ranking_is_held_against_what_long_runs_imply(capsys: pytest.CaptureFixture[str]) -> None:
    load = ranking.Load(name="small", settings=SMALL)
    board = Board()
    ranking.ranking(board, Crew(1), load, seeds=1, requests=4000, servers=PAIR, steps=5)
    assert (board.held, board.missed) == (1, [])
    done = [compare(PAIR, load.asked, 3)]
    ranking.told(board, load, PAIR, {"slow": 2.0, "fast": 1.0}, done)  # reversed
    assert board.missed == ["small: slow is better, slow against fast"]
    ranking.told(board, load, PAIR, {"slow": 1.0, "fast": 1.01}, done)  # too small to be asked for
    assert board.held == 2
    assert "| slow − fast | +66.7% |" in capsys.readouterr().out


def test_a_long_run_finds_the_exact_capacity() -> None:
    settings = tuple(sorted(SMALL.items()))
    found = long_run_capacity(Crew(1), Server(name="x", profile="mm1"), settings, requests=40_000, runs=2, steps=8)
    assert found == pytest.approx(8.017, rel=0.05)  # μ − ln 20/B; the half-width of eight halvings is 0.4 %


@pytest.mark.slow
def test_claims_between_equal_servers_are_counted_and_real_ones_miss_the_target() -> None:
    board = Board()
    aa.claims(board, Crew(1), QUEUE, 1)
    assert board.held == 3
    assert board.missed == []
    real = [power.planted(QUEUE, FASTER.key, (30.0, 50.0), ("1", "2"), 6, 5)]
    aa.counted(board, QUEUE, 3 * real)
    assert [what.rpartition(", ")[2] for what in board.missed] == [
        "zone 0%: a difference is claimed", "zone 3%: a difference is claimed",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_planted_difference_is_found_and_a_reversed_one_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board()
    power.power(board, Crew(1), FASTER, 1, requests=1, replicates=(6,))
    assert (board.held, board.missed) == (1, [])
    assert "| 6 | 100% (3% to 100%) | 0% | 100% (3% to 100%) | 0% | 0 |" in capsys.readouterr().out
    power.power(board, Crew(1), replace(FASTER, values=(30.0, 50.0)), 1, requests=1, replicates=(6,))
    assert board.missed == ["M/M/1: the worse one is called better"]


def test_the_exact_interval_is_clopper_and_pearson_s() -> None:
    assert exact_interval(0, 20) == pytest.approx((0, 1 - 0.025 ** (1 / 20)))
