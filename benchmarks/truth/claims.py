"""What claims are worth: many whole sweeps on servers whose capacity, and pass probability at each rate, are known."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from analysis.queueing import mg1_wait_shares, mm1_capacity
from analysis.report.repeats import Repeat
from benchmarks.truth.board import Board
from benchmarks.truth.crew import QUEUE, Asked, Crew, asked, one_run, ready, sweep
from benchmarks.truth.former import former_sweep

SERVICES_S, SHARES, BOUND_S = (0.02, 0.18), (0.8, 0.2), 0.25  # of profile fcfs, and its SLO
BOUNDS = {0.5: 0.01, 0.8: 0.08}  # pass probability -> share of claims that may lie below
LIVE_SLO = {"slo": ("ttft<=800ms", "tpot<=50ms")}


@dataclass(frozen=True)
class Passes:
    """A rate's share of passes among independent runs like the search's."""

    share: float
    runs: int


@dataclass(frozen=True)
class Server:
    profile: str
    settings: dict[str, Any]
    sweeps: int
    capacity: Callable[[Crew, Asked, bool], tuple[float, str]]
    measures: tuple[dict[str, Any], ...]  # windows or cohorts of its runs


@dataclass(frozen=True)
class Rule:
    name: str
    sweep: Callable[[Asked, int], Repeat]
    held: bool  # against the targets, or only to be compared with


RULES = (Rule("explore, then prove (R = 10)", sweep, True), Rule("former (R = 5 and 5 doubled)", former_sweep, False))
MEASURES: tuple[dict[str, Any], ...] = ({"cohort": 2000}, {"window": "300s"}, {"window": "120s"})
FLATTEST = {"window": "120s"}  # printed, and held against nothing: there many rates lie between a good and a bad one


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
    "fcfs": Server("fcfs", QUEUE, 500, lambda *_: (fcfs_capacity(), "exact, from the wait's distribution"), MEASURES),
    "mm1": Server("mm1", QUEUE, 500, lambda *_: (mm1_capacity(service_rate=20, bound_s=BOUND_S, share=0.95), "exact"),
                  MEASURES),
    "8b": Server("llama8b-80gb", LIVE_SLO, 100, long_run_capacity, ({"cohort": 2000},)),
}  # fmt: skip


def show(name: str, board: Board, crew: Crew, *, quick: bool) -> None:
    """The claims on one of SERVERS."""
    server = SERVERS[name]
    count, tries = (10, 20) if quick else (server.sweeps, 400)
    for measure in server.measures:
        claims(board, crew, server, measure, count, tries, quick=quick)


def claims(
    board: Board, crew: Crew, server: Server, measure: dict[str, Any], count: int, tries: int, *, quick: bool
) -> None:
    """`count` sweeps by each rule, and `tries` runs at each claimed rate to know what a claim is worth."""
    of = asked(server.profile, rate="2..18", **measure, **server.settings)
    ((kind, size),) = measure.items()
    label = f"{server.profile}, {kind} {size}"
    board.head(f"Claims on {label}: {count} sweeps by each rule, 2..18, width 5 %")
    capacity, how = server.capacity(crew, of, quick)
    board.say(f"Long-run capacity {capacity:.3f}/s ({how}).\n")
    made = {
        rule.name: crew.all(rule.sweep, [(of, seed) for seed in crew.seeds(f"{label}/sweeps", count)]) for rule in RULES
    }
    claimed = {
        name: [repeat.outcome.capacity for repeat in done if repeat.outcome.capacity is not None]
        for name, done in made.items()
    }
    truth = pass_shares(crew, of, sorted({c for found in claimed.values() for c in found}), tries, 1 if quick else 10)
    rows = []
    for rule in RULES:
        done, found = made[rule.name], claimed[rule.name]
        below = {bound: statistics.fmean(truth[claim].share < bound for claim in found) for bound in BOUNDS}
        ends = np.quantile(found, [0.05, 0.5, 0.95], method="inverted_cdf")
        hours = statistics.fmean(repeat.seconds for repeat in done) / 3600
        rows.append(
            [rule.name, " / ".join(f"{end:.2f}" for end in ends),
             f"{statistics.fmean(c > capacity for c in found):.1%}",
             *(f"{share:.1%}" for share in below.values()), f"{statistics.median(truth[c].share for c in found):.2f}",
             f"{statistics.fmean(repeat.runs for repeat in done):.1f}", f"{hours:.2f} h",
             ", ".join(f"{n} {name}" for name, n in Counter(r.outcome.name for r in done).items())]
        )  # fmt: skip
        if not rule.held:
            continue
        for bound, most in BOUNDS.items():
            text = f"{below[bound]:.1%} of {len(found)}"
            if measure == FLATTEST:
                board.say(f"- {label}: claims with p < {bound:g}: {text} (no target: the flattest curve)")
            else:
                what = f"{label}: claims whose true pass probability is below {bound:g}"
                board.hold(what, text, f"≤ {most:.0%}", below[bound] <= most)
    hours = [statistics.fmean(repeat.seconds for repeat in made[rule.name]) / 3600 for rule in RULES]
    board.say(f"- server time against the former rule: {hours[0] / hours[1] - 1:+.0%}\n")
    columns = ["rule", "λ* p5 / median / p95", "above capacity", "p < 0.5", "p < 0.8", "median p", "runs",
               "server time", "outcomes"]  # fmt: skip
    board.table(columns, rows)
    completed = {name: Counter(found) for name, found in claimed.items()}
    board.say("")
    board.table(
        ["claimed rate", *(f"{rate:.3g}" for rate in truth)],
        [
            *([f"claims, {name}", *(str(counts[rate]) for rate in truth)] for name, counts in completed.items()),
            ["true pass probability of a run", *(f"{known.share:.3f}" for known in truth.values())],
            ["runs to know it", *(str(known.runs) for known in truth.values())],
        ],
    )


def pass_shares(crew: Crew, of: Asked, rates: list[float], tries: int, closer: int) -> dict[float, Passes]:
    """What is known of each rate from `tries` runs.

    Where these cannot tell on which side of a bound it lies (within two standard errors), `closer` times as many take
    their place.
    """

    def measure(among: list[float], runs: int) -> dict[float, float]:
        calls = [(of, rate, seed, "explore", True) for rate in among for seed in crew.seeds(f"pass/{rate!r}", runs)]
        passed = [verdict.status == "PASS" for verdict in crew.all(one_run, calls, together=20)]
        return {rate: statistics.fmean(passed[i * runs : (i + 1) * runs]) for i, rate in enumerate(among)}

    def near(share: float) -> bool:
        return any(abs(share - bound) < 2 * (bound * (1 - bound) / tries) ** 0.5 for bound in BOUNDS)

    first = measure(rates, tries)
    again = measure([rate for rate, share in first.items() if near(share)], closer * tries)
    return {
        rate: Passes(share=again.get(rate, share), runs=closer * tries if rate in again else tries)
        for rate, share in first.items()
    }
