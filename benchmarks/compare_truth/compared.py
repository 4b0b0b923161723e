"""One comparison in virtual time, and the long-run capacity of one variant, measured without code of comparisons."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Final

from scipy.stats import binomtest

from analysis.compare.pairs import primary_verdict
from analysis.compare.types import PrimaryVerdict
from benchmarks.truth.crew import Asked, Crew, asked, one_run, ready
from loadgen.experiment.compare.memory import rehearse_comparison
from loadgen.experiment.compare.setup import prepare_comparison
from loadgen.scenario.file import load_comparison

__all__ = ["ZONES", "Pair", "Server", "compare", "exact_interval", "long_run_capacity"]

ZONES: Final = (0.0, 0.03)  # 3 % is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A variant: its name, and its profile with the keys that are changed."""

    name: str
    profile: str
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The verdict on two variants of one comparison at the default zone, and what it would be at others."""

    verdict: PrimaryVerdict

    def winner(self, zone: float) -> str:
        """The verdict at this zone."""
        one = self.verdict
        if zone == one.indifference:
            return one.winner
        return primary_verdict(one.difference, indifference=zone, same_rate=one.same_rate).winner

    def winner_at_own_rates(self, zone: float) -> str:
        """What the difference at the λ* of each alone would say."""
        return primary_verdict(self.verdict.difference, indifference=zone).winner


def compare(servers: tuple[Server, ...], settings: Asked, seed: int) -> tuple[Pair, ...]:
    """A whole comparison; every two variants that reached the paired phase, in the order of `servers`."""
    variants = tuple(f"{one.name}=virtual:{one.profile},gpus={one.gpus}" for one in servers)
    own = {"variant": variants, "per_gpu": len({one.gpus for one in servers}) > 1}
    done = rehearse_comparison(prepare_comparison(*load_comparison(None, {**dict(settings), "seed": seed}, own)))
    return tuple(Pair(verdict=one) for one in done.answer.primary)


def long_run_capacity(crew: Crew, server: Server, settings: Asked, *, requests: int, runs: int, steps: int) -> float:
    """Where the mean attainment of very long runs crosses 95 %, requests/s per GPU, by bisection.

    `requests` in all at each rate, over `runs` runs whose seeds are the same for all servers.
    """
    per_gpu: Any = dict(settings)
    low, high = (float(end) * server.gpus for end in per_gpu["rate"].split(".."))
    long = {**per_gpu, "rate": f"{low}..{high}", "cohort": requests // runs, "max_requests": None, "timeout": "600s"}
    of = asked(server.profile, **{key: value for key, value in long.items() if value is not None})
    assert ready(of).setup.spec.grid
    for _ in range(steps):
        middle = (low * high) ** 0.5
        verdicts = crew.all(one_run, [(of, middle, seed) for seed in crew.seeds("long", runs)])
        mean = statistics.fmean(verdict.attainment for verdict in verdicts)
        low, high = (middle, high) if mean >= 0.95 else (low, middle)
    return (low * high) ** 0.5 / server.gpus


def exact_interval(count: int, n: int) -> tuple[float, float]:
    """The 95 % Clopper–Pearson interval of a share."""
    found = binomtest(count, n).proportion_ci(method="exact")
    return float(found.low), float(found.high)
