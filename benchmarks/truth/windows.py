"""How λ* moves with the window and with R, as a table to plan with."""

from __future__ import annotations

from analysis.report.repeats import RehearsedPlan, plan_row
from benchmarks.truth.board import Board
from benchmarks.truth.claims import fcfs_capacity
from benchmarks.truth.crew import QUEUE, Crew, asked, ready, sweep

WINDOWS = ("60s", "120s", "300s", "600s", "1800s")


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    count = 3 if quick else 24
    windows, replicates = (WINDOWS[1:3], (5,)) if quick else (WINDOWS, (3, 5, 12))
    board.head(f"λ* by window and R: fcfs, e2e ≤ 250 ms for 95 %, width 5 %, {count} sweeps a row")
    board.say(f"Long-run capacity {fcfs_capacity():.2f}/s.\n")
    rows = []
    for window in windows:
        for runs in replicates:
            of = asked("fcfs", rate="1..18", runs=runs, window=window, min_requests=40, **QUEUE)
            repeats = crew.all(sweep, [(of, seed) for seed in crew.seeds("windows", count)])
            scenario, grid = ready(of).setup.scenario, ready(of).setup.spec.grid
            row = plan_row(
                RehearsedPlan(window_s=scenario.window, cohort=None, runs=runs, repeats=tuple(repeats)), grid
            )
            ends = [None if place is None else place.rate for place in (row.p10, row.median, row.p90)]
            rows.append(
                [window, str(runs), *(f"{end:.2f}" if end else "–" for end in ends), f"{row.within_one_step:.0%}",
                 f"{row.runs_made:.0f}", f"{row.hours:.1f}"]
            )  # fmt: skip
    board.table(["window", "R", "λ* p10", "median", "p90", "within a step of the median", "runs", "hours"], rows)
