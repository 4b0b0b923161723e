"""What claims are worth: many whole sweeps on servers whose capacity, and pass probability at each rate, are known."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from analysis.queueing import mg1_wait_shares, mm1_capacity
from analysis.rehearsal import Repeat
from benchmarks.truth.board import Board
from benchmarks.truth.crew import QUEUE, Asked, Crew, asked, one_run, ready, sweep
from loadgen.forecast import BETWEEN_S

SERVICES_S, SHARES, BOUND_S = (0.02, 0.18), (0.8, 0.2), 0.25  # of profile fcfs, and its SLO
BOUNDS = {0.5: 0.01, 0.8: 0.08}  # pass probability -> share of claims that may lie below
LIVE_SLO = {"slo": ("ttft<=800ms", "tpot<=50ms")}


@dataclass(frozen=True)
class Passes:
    """A rate's share of passes among independent runs like the search's."""

    share: float
    runs: int
    at_first: float  # by the number of runs that every rate gets


@dataclass(frozen=True)
class Server:
    profile: str
    settings: dict[str, Any]
    sweeps: int
    capacity: Callable[[Crew, Asked, bool], tuple[float, str]]


def fcfs_capacity() -> float:
    """Where 95 % of sojourns of the two-point queue end within the bound, from the wait's exact distribution."""

    def kept(rate: float) -> float:
        step = 0.001
        wait = mg1_wait_shares(
            rate=rate,
            limited_mean_s=lambda t: sum(
                (share * np.minimum(t, service) for service, share in zip(SERVICES_S, SHARES, strict=True)),
                start=np.zeros_like(t),
            ),
            until_s=BOUND_S,
            step_s=step,
        )
        within = (wait[round((BOUND_S - service) / step)] for service in SERVICES_S)
        return float(sum(share * value for share, value in zip(SHARES, within, strict=True)))

    return float(brentq(lambda rate: kept(rate) - 0.95, 2.0, 15.0))


def long_run_capacity(crew: Crew, of: Asked, quick: bool) -> tuple[float, str]:
    """Where the mean attainment of very long runs crosses 95 %: a measured truth, where none is known."""
    cohort = 10_000 if quick else 100_000
    long = tuple(sorted({**dict(of), "cohort": cohort}.items()))
    low, high = ready(of).setup.spec.grid[0], ready(of).setup.spec.grid[-1]
    runs = 2 if quick else 8
    for _ in range(3 if quick else 7):
        middle = (low * high) ** 0.5
        found = crew.all(one_run, [(long, middle, seed) for seed in crew.seeds("long", runs)])
        mean = statistics.fmean(verdict.attainment for verdict in found)
        low, high = (middle, high) if mean >= 0.95 else (low, middle)
    return (low * high) ** 0.5, f"measured: bisection with {runs} runs of {cohort:,} requests a rate"


SERVERS = {
    "fcfs": Server("fcfs", QUEUE, 500, lambda *_: (fcfs_capacity(), "exact, from the wait's distribution")),
    "mm1": Server(
        "mm1", QUEUE, 500, lambda *_: (mm1_capacity(service_rate=20, bound_s=BOUND_S, share=0.95), "exact, μ − ln 20/B")
    ),
    "8b": Server("llama8b-80gb", LIVE_SLO, 100, long_run_capacity),
}


def show(name: str, board: Board, crew: Crew, *, quick: bool) -> None:
    """The claims on one of SERVERS."""
    server = SERVERS[name]
    count, tries = (10, 20) if quick else (server.sweeps, 400)
    claims(board, crew, server, count, tries, quick=quick)


def claims(board: Board, crew: Crew, server: Server, count: int, tries: int, *, quick: bool) -> None:
    """`count` sweeps, and `tries` runs at each claimed rate to know what a claim is worth."""
    of = asked(server.profile, rate="2..18", runs=5, cohort=2000, **server.settings)
    grid, warmup_s = ready(of).setup.spec.grid, ready(of).warmup_s
    board.head(f"Claims on {server.profile}: {count} sweeps, 2..18, width 5 %, R = R_c = 5, cohort 2,000")
    began = time.perf_counter()
    done = crew.all(sweep, [(of, seed) for seed in crew.seeds(f"{server.profile}/sweeps", count)])
    took_s = time.perf_counter() - began
    capacity, how = server.capacity(crew, of, quick)
    claimed = [repeat.outcome.capacity for repeat in done if repeat.outcome.capacity is not None]
    board.say(f"- outcomes: {dict(Counter(repeat.outcome.name for repeat in done))}; {took_s / count:.2f} s a sweep")
    _landing(board, claimed, capacity, how)

    truth = pass_shares(crew, of, sorted(set(claimed)), tries, closer=1 if quick else 10)
    landed = Counter(claimed)
    board.table(
        ["claimed rate", *(f"{rate:.3g}" for rate in truth)],
        [
            ["claims", *(str(landed[rate]) for rate in truth)],
            [f"share of passes, {tries} runs", *(f"{known.at_first:.3f}" for known in truth.values())],
            ["true pass probability of a run", *(f"{known.share:.3f}" for known in truth.values())],
            ["runs to know it", *(str(known.runs) for known in truth.values())],
        ],
    )
    for bound, most in BOUNDS.items():
        share = statistics.fmean(truth[claim].share < bound for claim in claimed)
        at_first = statistics.fmean(truth[claim].at_first < bound for claim in claimed)
        board.hold(
            f"{server.profile}: claims whose true pass probability is below {bound:g}",
            f"{share:.1%} of {len(claimed)}; by {tries} runs a rate, near the bound or not, {at_first:.1%}",
            f"≤ {most:.0%}",
            share <= most,
        )
    _cost(board, server, done, grid, warmup_s)


def pass_shares(crew: Crew, of: Asked, rates: list[float], tries: int, *, closer: int) -> dict[float, Passes]:
    """What is known of each rate from `tries` runs.

    Where these cannot tell on which side of a bound it lies (within two standard errors), `closer` times as many take
    their place.
    """

    def measure(among: list[float], runs: int) -> dict[float, float]:
        calls = [(of, rate, seed, "search", True) for rate in among for seed in crew.seeds(f"pass/{rate!r}", runs)]
        passed = [verdict.status == "PASS" for verdict in crew.all(one_run, calls, together=20)]
        return {rate: statistics.fmean(passed[i * runs : (i + 1) * runs]) for i, rate in enumerate(among)}

    def near(share: float) -> bool:
        return any(abs(share - bound) < 2 * (bound * (1 - bound) / tries) ** 0.5 for bound in BOUNDS)

    first = measure(rates, tries)
    again = measure([rate for rate, share in first.items() if near(share)], closer * tries)
    return {
        rate: Passes(share=again.get(rate, share), runs=closer * tries if rate in again else tries, at_first=share)
        for rate, share in first.items()
    }


def _landing(board: Board, claims: list[float], capacity: float, how: str) -> None:
    p5, p50, p95 = np.quantile(claims, [0.05, 0.5, 0.95], method="inverted_cdf")
    board.say(
        f"- long-run capacity {capacity:.3f}/s ({how}); λ* p5 / median / p95 = {p5:.3f} / {p50:.3f} / {p95:.3f}, that "
        f"is {p5 / capacity:.2f} / {p50 / capacity:.2f} / {p95 / capacity:.2f} of it; "
        f"{statistics.fmean(claim > capacity for claim in claims):.1%} of claims lie above it"
    )


def _cost(board: Board, server: Server, done: list[Repeat], grid: tuple[float, ...], warmup_s: float) -> None:
    """Against all R runs at every rate of the grid, to the end but not drained, and not confirmed."""
    runs, hours = (statistics.fmean(values) for values in ([r.runs for r in done], [r.seconds / 3600 for r in done]))
    full_runs = 5 * len(grid)
    full_hours = 5 * sum(warmup_s + 2000 / rate + BETWEEN_S for rate in grid) / 3600
    board.hold(
        f"{server.profile}: runs against a full grid of the same width and R",
        f"{runs:.1f} of {full_runs}, {full_runs / runs:.1f}x fewer",
        "≥ 5x",
        full_runs / runs >= 5,
    )
    board.hold(
        f"{server.profile}: server time against it",
        f"{hours:.2f} h of {full_hours:.2f} h, {full_hours / hours:.1f}x less",
        "≥ 5x",
        full_hours / hours >= 5,
    )
