"""How fast virtual time is, from plan to verdict."""

from __future__ import annotations

import time

from benchmarks import virtual_speed
from benchmarks.truth.board import Board
from benchmarks.truth.crew import QUEUE, Crew, asked, one_run, ready

RATES = (2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 18.0)


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    board.head("Speed of virtual time")
    of = asked("fcfs", rate="2..18", runs=12, cohort=50_000, **QUEUE)
    ready(of)
    replicates = 1 if quick else 12
    began, used = time.perf_counter(), time.process_time()
    for rate in RATES:
        for seed in crew.seeds("speed", replicates):
            one_run(of, rate, seed)
    took, cpu = time.perf_counter() - began, time.process_time() - used
    board.hold(
        f"fcfs, seven rates × {replicates} replicates × 50,000 requests, plan + simulate + judge, one core",
        f"{took:.1f} s ({cpu:.1f} s of CPU, {len(RATES) * replicates * 50_000 / cpu:,.0f} requests/s)",
        f"< {30 * replicates / 12:g} s",
        took < 30 * replicates / 12,
    )
    if not quick:
        virtual_speed.main()
