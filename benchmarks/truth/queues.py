"""Waits of simulated queues against their theory: Pollaczek–Khinchine means, and quantiles that are known exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gamma, gammainc

from analysis.queueing import md1_wait_share, mg1_wait_shares, pollaczek_khinchine_wait_s
from analysis.records import derive
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Asked, Crew, asked, ready, request
from loadgen.emulator.virtual import simulate_run
from loadgen.experiment.run_plan import options_of, plan_of

MEAN_S = 0.05
SHAPE = 0.7  # of mg1's Weibull services
SHARES = (0.75, 0.95, 0.99)  # no atom of any wait lies there
WITHIN = 3.0  # standard errors; of 24 comparisons one in fifteen rounds would have one outside by chance


@dataclass(frozen=True)
class Queue:
    profile: str
    second_moment: float  # E[S²]/E[S]²
    wait_share: Callable[[float, float], float]  # (rate, t) -> P(wait ≤ t)


def _mm1(rate: float, t: float) -> float:
    return 1 - rate * MEAN_S * math.exp(-(1 / MEAN_S - rate) * t)


def _weibull(rate: float, t: float) -> float:
    scale = MEAN_S / math.gamma(1 + 1 / SHAPE)

    def limited_mean_s(at: np.ndarray) -> np.ndarray:
        x = (at / scale) ** SHAPE
        whole = scale * gamma(1 + 1 / SHAPE) * gammainc(1 + 1 / SHAPE, x)
        return whole + np.where(np.isfinite(at), np.nan_to_num(at, posinf=0.0) * np.exp(-x), 0.0)

    return float(mg1_wait_shares(rate=rate, limited_mean_s=limited_mean_s, until_s=t, step_s=t / 1000)[-1])


QUEUES = (
    Queue("mm1", 2.0, _mm1),
    Queue("md1", 1.0, lambda rate, t: md1_wait_share(rate=rate, service_s=MEAN_S, within_s=t)),
    Queue("mg1", math.gamma(1 + 2 / SHAPE) / math.gamma(1 + 1 / SHAPE) ** 2, _weibull),
)


def waits(of: Asked, rate: float, seed: int, known_s: tuple[float, ...]) -> tuple[float, ...]:
    """Mean wait of one run, s, and the shares of waits within the known quantiles.

    Shares, because they are unbiased where a quantile of a finite run is not. With two output tokens the first is due
    when half is served.
    """
    on = ready(of)
    plan = plan_of(request(rate, seed), on.setup.workload, warmup_s=on.warmup_s)
    options = options_of(on.setup.scenario, on.setup.workload)
    output = simulate_run(plan, on.profile, options)
    table = derive(output.requests)
    end_ns = output.facts.warmup_ns + output.facts.window_ns
    table = table[(table["scheduled_ns"] >= output.facts.warmup_ns) & (table["scheduled_ns"] < end_ns)]
    half_s = (table["last_token_ns"] - table["first_token_ns"]).to_numpy() / 1e9
    waited_s = table["ttft_s"].to_numpy() - half_s
    return float(waited_s.mean()), *(float((waited_s <= known).mean()) for known in known_s)


def quantile(queue: Queue, rate: float, share: float) -> float:
    """The t with P(wait ≤ t) = share, by bisection."""
    low, high = 1e-6, 200 * MEAN_S
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if queue.wait_share(rate, middle) < share else (low, middle)
    return high


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    board.head("Queues whose waits are known")
    runs, cohort = (12, 20_000) if quick else (40, 100_000)
    board.say(
        f"{runs} independent runs of {cohort:,} requests, ± one standard error over runs, z in standard errors. "
        "Means are Pollaczek–Khinchine's; the quantiles are known exactly, and what is measured is the share of waits "
        "within them."
    )
    rows, deviations = [], []
    for queue in QUEUES:
        of = asked(
            queue.profile, input="16", output="2", slo=("e2e<=100s",), timeout="100s", cohort=cohort, warmup="100s"
        )
        for load in (0.5, 0.8):
            rate = load / MEAN_S
            known_s = tuple(quantile(queue, rate, share) for share in SHARES)
            calls = [(of, rate, seed, known_s) for seed in crew.seeds(f"{queue.profile}/{load}", runs)]
            found = np.array(crew.all(waits, calls))
            moment = queue.second_moment * MEAN_S**2
            mean_s = pollaczek_khinchine_wait_s(rate=rate, mean_s=MEAN_S, second_moment_s2=moment)
            errors = found.std(axis=0, ddof=1) / math.sqrt(runs)
            z = (found.mean(axis=0) - np.array([mean_s, *SHARES])) / errors
            deviations += list(np.abs(z))
            cells = [f"{found[:, 0].mean() * 1e3:.2f} ± {errors[0] * 1e3:.2f} / {mean_s * 1e3:.2f} ms (z {z[0]:+.1f})"]
            cells += [f"{found[:, i].mean():.3%} ± {errors[i]:.3%} (z {z[i]:+.1f})" for i in range(1, len(SHARES) + 1)]
            rows.append([queue.profile, f"{load:g}", *cells])
    board.table(["queue", "ρ", "mean wait / known", *(f"within the known p{100 * share:g}" for share in SHARES)], rows)
    worst = max(deviations)
    board.hold(
        f"waits against theory, largest of {len(deviations)} deviations",
        f"{worst:.1f} standard errors",
        f"≤ {WITHIN:g}",
        worst <= WITHIN,
    )
