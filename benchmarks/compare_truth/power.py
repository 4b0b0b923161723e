"""What a real difference needs: how often comparisons with R = 6, 10 and 20 find 5 % and 10 % of G_card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from analysis.queueing import mm1_capacity
from benchmarks.compare_truth.aa import EQUALS, Equal
from benchmarks.compare_truth.compared import ZONES, Pair, Server, compare, exact_interval, long_run_capacity
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Crew

__all__ = ["PLANTS", "Plant", "planted", "power", "show"]

REPLICATES: Final = (6, 10, 20)
BOUND_S: Final = 0.25  # of the M/M/1 queue's SLO


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A server, a key with which it becomes better, that key's values, and how its true capacity is known.

    `shared_luck`: both variants have it in common, as requests of one content take servers of one kind alike.
    """

    equal: Equal
    key: str
    values: tuple[float, ...]  # the first one is the baseline's
    capacity: Callable[[Crew, Equal, str, int], float]
    how: str
    shared_luck: bool = False


def _measured(crew: Crew, of: Equal, profile: str, requests: int) -> float:
    server = Server(name="x", profile=profile)
    settings = tuple(sorted(of.settings.items()))
    return long_run_capacity(crew, server, settings, requests=requests, runs=4, steps=9)


def _exact(_: Crew, __: Equal, profile: str, ___: int) -> float:
    mean_ms = float(profile.rpartition("=")[2])
    return mm1_capacity(service_rate=1000 / mean_ms, bound_s=BOUND_S, share=0.95)


_QUEUE: Final = Equal(
    name="M/M/1, services drawn anew",
    profile="mm1?service.seed={luck}",
    settings={**EQUALS[1].settings, "cohort": 2000},
)
_FASTER_MS: Final = (50.0, 49.017, 48.073)
PLANTS: Final = (
    Plant(
        equal=EQUALS[0],
        key="card.effective_tflops",
        values=(187.0, 195.0, 202.0),
        capacity=_measured,
        how="measured by very long runs",
    ),
    Plant(equal=_QUEUE, key="service.mean_ms", values=_FASTER_MS, capacity=_exact, how="exact"),
    Plant(
        equal=replace(_QUEUE, name="M/M/1, the same services"),
        key="service.mean_ms",
        values=_FASTER_MS,
        capacity=_exact,
        how="exact",
        shared_luck=True,
    ),
)


def show(board: Board, crew: Crew, *, quick: bool, count: int = 40) -> None:
    for plant in PLANTS:
        power(board, crew, plant, 3 if quick else count, requests=5_000 if quick else 100_000)


def planted(of: Equal, key: str, values: tuple[float, float], luck: tuple[str, str], runs: int, seed: int) -> Pair:
    """The better one, A, against the baseline, under different luck."""
    servers = tuple(
        Server(name=name, profile=f"{of.profile.format(luck=k)}&{key}={value:g}")
        for name, k, value in zip("ab", luck, values, strict=True)
    )
    (pair,) = compare(servers, tuple(sorted({**of.settings, "runs": runs}.items())), seed)
    return pair


def power(board: Board, crew: Crew, plant: Plant, count: int, *, requests: int,
          replicates: tuple[int, ...] = REPLICATES) -> None:  # fmt: skip
    """A row for each difference and R."""
    of, (baseline, *better) = plant.equal, plant.values
    board.head(f"Power: {count} comparisons a row, {of.name}")
    long_run = {
        value: plant.capacity(crew, of, f"{of.profile.format(luck=1)}&{plant.key}={value:g}", requests)
        for value in plant.values
    }
    board.say(
        f"Long-run capacities ({plant.how}): "
        + ", ".join(f"{plant.key} = {value:g}: {rate:.3f}/s" for value, rate in long_run.items()) + ".\n"
    )  # fmt: skip
    rows, worse = [], 0
    for value in better:
        true = 2 * (long_run[value] - long_run[baseline]) / (long_run[value] + long_run[baseline])
        for runs in replicates:
            name = f"power/{of.name}/{value:g}/{runs}"
            seeds, lucks = crew.seeds(name, count), crew.seeds(f"luck/{name}", 2 * count)
            other = lucks[::2] if plant.shared_luck else lucks[1::2]
            calls: list[tuple[Any, ...]] = [
                (of, plant.key, (value, baseline), (str(a), str(b)), runs, seed)
                for seed, a, b in zip(seeds, lucks[::2], other, strict=True)
            ]
            pairs = crew.all(planted, calls, together=2)
            cells = [cell for zone in ZONES for cell in _cells([one.winner(zone) for one in pairs])]
            wrong = sum(one.winner(0.0) == "B" for one in pairs)
            worse += wrong
            rows.append([f"{true:+.1%}", str(runs), *cells, str(wrong)])
    columns = ["found at zone 0 (exact 95 % interval)", "no difference", "found at zone 3 %", "no difference"]
    board.table(["true difference", "R", *columns, "the worse one better"], rows)
    total = count * len(rows)
    board.hold(f"{of.name}: the worse one is called better", f"{worse} of {total}", "≤ 2.5%", worse <= 0.025 * total)


def _cells(winners: list[str]) -> tuple[str, str]:
    """The share that names A, and the share that sees no difference."""
    counts = Counter(winners)
    low, high = exact_interval(counts["A"], len(winners))
    found = f"{counts['A'] / len(winners):.0%} ({low:.0%} to {high:.0%})"
    return found, f"{counts['no difference'] / len(winners):.0%}"
