"""Does the error criterion tell a server within ε from one beyond it? Whole sweeps on a queue that also fails requests.

Each request fails by a coin of its own, whatever the load: an error share that no rate changes. λ* of a share within ε
should be what it is without errors; a share beyond ε should pass nowhere.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.search import Outcome, RunRequest, Search
from benchmarks.truth.board import Board
from benchmarks.truth.crew import QUEUE, Asked, Crew, asked, ready
from loadgen.experiment.rehearse import MemoryRunner
from loadgen.experiment.run_plan import criteria_of
from loadgen.experiment.search_loop import Budget, run_search
from loadgen.send.api import RunOutput
from loadgen.workload.workload import seed_book

SHARES = (0.0, 0.5, 0.9, 1.5)  # of ε = 1 %
EPSILON = 0.01


@dataclass(slots=True, kw_only=True)
class FaultyRunner(MemoryRunner):
    """Runs in which every request fails with one probability."""

    share: float

    def seen(self, request: RunRequest, output: RunOutput) -> None:
        """Turn requests into errors before the judge sees them."""
        requests = output.requests
        failed = np.random.default_rng([request.seed, request.rate_index]).random(len(requests)) < self.share
        requests["outcome"] = pd.array(np.where(failed, "http_error", requests["outcome"].to_numpy()), dtype="str")


def faulty_sweep(of: Asked, seed: int, share: float) -> Outcome:
    on = ready(of)
    scenario = on.setup.scenario.model_copy(update={"seeds": None, "seed": seed})
    search = Search(on.setup.spec, seed_book(scenario, on.setup.spec), criteria_of(scenario, on.setup.workload))
    # no early end: the simulator does not know of the errors that are added afterwards
    runner = FaultyRunner(on=on, early_fail=False, share=share)
    return asyncio.run(run_search(search, runner, Budget.of(scenario)))


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    count = 5 if quick else 100
    of = asked("mm1", rate="2..18", window="300s", **QUEUE)
    board.head(f"Errors: {count} sweeps on mm1 in windows of 300 s, ε = 1 %, each request failing with one probability")
    rows = []
    for share in SHARES:
        calls = [(of, seed, share * EPSILON) for seed in crew.seeds("errors", count)]
        outcomes = crew.all(faulty_sweep, calls)
        names = Counter(outcome.name for outcome in outcomes)
        found = [outcome.capacity for outcome in outcomes if outcome.capacity is not None]
        ends = np.quantile(found, [0.05, 0.5, 0.95], method="inverted_cdf") if found else []
        median = statistics.median(found) if found else None
        rows.append([f"{share:g} ε", str(dict(names)), " / ".join(f"{end:.2f}" for end in ends) or "–"])
        below = names["BELOW_RANGE"] / count
        if share > 1:
            board.hold(f"sweeps without a capacity, errors {share:g} ε", f"{below:.0%}", "≥ 95 %", below >= 0.95)
        elif share <= 0.5:
            board.hold(f"sweeps that end BELOW_RANGE, errors {share:g} ε", f"{below:.0%}", "≤ 5 %", below <= 0.05)
        else:
            board.say(f"- sweeps that end BELOW_RANGE, errors {share:g} ε: {below:.0%}; median λ* {median}")
    board.say("")
    board.table(["flat error share", "outcomes", "λ* p5 / median / p95"], rows)
