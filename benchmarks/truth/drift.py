"""Does the drift test leave stable rates alone, and does it see overload? With an SLO that nothing breaks.

Every run is one of the product; the same runs are grouped into rates of R = 1, 3, 5 and 10. A pool of ten slow servers,
simulated here, shows what no rule can tell within such windows.
"""

from __future__ import annotations

import heapq
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.judge import judge_rate
from analysis.records import NS_PER_S, columns
from analysis.stationarity import RATE_Z, Drift, outstanding_drift, rate_drift
from analysis.verdict import RunVerdict
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Asked, Crew, asked, one_run, ready
from loadgen.experiment.run_plan import criteria_of

REPLICATES = (1, 3, 5, 10)
LOADS = (0.8, 0.9, 0.95, 1.05, 1.1)
WINDOWS = ("120s", "300s")
QUEUE = {"input": "16", "output": "1"}
HEAVY = str(Path(__file__).with_name("heavy.toml"))
POOL_SERVERS, POOL_SERVICE_S = 10, 10.0


@dataclass(frozen=True)
class Server:
    name: str
    profile: str
    saturation: float  # requests/s
    settings: dict[str, Any]
    runs: int  # of each load and window


SERVERS = (
    Server("M/M/1", "mm1", 20.0, QUEUE, 1000),
    Server("fcfs", "fcfs", 1 / 0.052, QUEUE, 1000),
    Server("M/D/1", "md1", 20.0, QUEUE, 1000),
    Server("heavy tail", HEAVY, 20.0, QUEUE, 1000),
    # where completions level off with these lengths; requests stay 11 s at ρ = 0.8
    Server("8B profile", "llama8b-80gb", 6.7, {"input": "1024", "output": "384", "warmup": "66s"}, 400),
)


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    board.head("Drift: share of rates that fail, by their drift alone")
    rows = []
    for server in SERVERS:
        for window in WINDOWS:
            of = asked(
                server.profile, rate="1..30", window=window, slo=("e2e<=1h",), timeout="1h", min_requests=1,
                **server.settings,
            )  # fmt: skip
            for load in LOADS:
                rate = load * server.saturation
                count = 20 if quick else server.runs
                name = f"drift/{server.name}/{window}/{load}"
                runs = crew.all(one_run, [(of, rate, seed) for seed in crew.seeds(name, count)], together=10)
                failing = {r: failing_share(of, rate, runs, r) for r in REPLICATES}
                mean = statistics.fmean(run.drift_ratio or 0.0 for run in runs)
                rows.append(
                    [server.name, window, f"{load:g}", str(count), f"{mean:+.2%}", *map(_share, failing.values())]
                )
                _hold(board, f"{server.name}, ρ = {load:g}, {window}", load, window, failing)
    rows += [_pool(window, load, 20 if quick else 300) for window in WINDOWS for load in LOADS]
    board.say("")
    board.table(["server", "window", "ρ", "runs", "mean drift", *(f"R = {r}" for r in REPLICATES)], rows)
    board.say(
        "\nThe pool (ten servers, exponential services of 10 s, warm-up 60 s) has no target: it relaxes in about "
        "1,500 s near saturation, so that in such a window a stable pool rises as an overloaded one does."
    )


def _hold(board: Board, label: str, load: float, window: str, failing: dict[int, float]) -> None:
    if load < 1:
        worst = max(failing.values())
        board.hold(f"false alarms, {label}", f"at most {worst:.1%} of rates", "≤ 5 %", worst <= 0.05)
    elif load == 1.05 and window == "300s":
        least = min(share for r, share in failing.items() if r >= 3)
        board.hold(f"power, {label}, R ≥ 3", f"at least {least:.1%} of rates", "≥ 75 %", least >= 0.75)


def failing_share(of: Asked, rate: float, runs: list[RunVerdict], r: int) -> float:
    """Share of groups of `r` runs that the judge fails, by a run of its own or by all of them together."""
    on = ready(tuple(sorted({**dict(of), "runs": r}.items())))
    criteria = criteria_of(on.setup.scenario, on.setup.workload)
    groups = [runs[i : i + r] for i in range(0, len(runs) - r + 1, r)]
    return statistics.fmean(judge_rate(rate, group, criteria, r).status == "FAIL" for group in groups)


def _pool(window: str, load: float, count: int) -> list[str]:
    """The row of the pool: M/M/10, its drift by the rate-level test alone."""
    rate, window_s = load * POOL_SERVERS / POOL_SERVICE_S, float(window.removesuffix("s"))
    found = [_pool_drift(np.random.default_rng([seed, round(100 * load)]), rate, window_s) for seed in range(count)]
    shares = []
    for r in REPLICATES:
        groups = [rate_drift(found[i : i + r]) for i in range(0, count - r + 1, r)]
        shares.append(statistics.fmean(group is not None and group.rises(RATE_Z) for group in groups))
    mean = statistics.fmean(drift.ratio for drift in found)
    return ["pool of ten", window, f"{load:g}", str(count), f"{mean:+.2%}", *map(_share, shares)]


def _pool_drift(draw: np.random.Generator, rate: float, window_s: float) -> Drift:
    warmup_s = 6 * POOL_SERVICE_S
    horizon_s = warmup_s + window_s
    arrivals = np.cumsum(draw.exponential(1 / rate, size=math.ceil(2 * rate * horizon_s) + 50))
    arrivals = arrivals[arrivals < horizon_s]
    free, ended = [0.0] * POOL_SERVERS, []
    for arrival, service in zip(arrivals, draw.exponential(POOL_SERVICE_S, size=len(arrivals)), strict=True):
        end = max(float(arrival), heapq.heappop(free)) + float(service)
        heapq.heappush(free, end)
        ended.append(end)
    stamps = {"scheduled_ns": arrivals, "ended_ns": np.array(ended)}
    table = columns(len(arrivals), {name: (at * NS_PER_S).astype(np.int64) for name, at in stamps.items()})
    start_ns, end_ns = round(warmup_s * NS_PER_S), round(horizon_s * NS_PER_S)
    drift = outstanding_drift(table, start_ns=start_ns, end_ns=end_ns, rate=rate)
    assert drift is not None
    return drift


def _share(share: float) -> str:
    return f"{share:.1%}"
