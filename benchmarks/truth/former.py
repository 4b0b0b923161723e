"""The search rule that explore-then-prove replaced, kept to be compared with: the same runs, another order of them.

A rate passes after 2 of its R = 5 paired replicates; the candidate needs all 5, and then 5 confirmation runs in windows
of twice the length. A first FAIL is final. Sentinels as long as a run go first, after every 10 runs, and last.
"""

from __future__ import annotations

from dataclasses import replace

from analysis.report.repeats import Repeat
from analysis.search import Outcome
from analysis.search.machine import SENTINEL_EVERY, coarse_steps
from benchmarks.truth.crew import Asked, ready, request
from loadgen.experiment.rehearse import MemoryRunner, Rehearsal
from loadgen.plan.seeds import derive

R, PASSES = 5, 2


def former_sweep(of: Asked, seed: int) -> Repeat:
    """One whole search by the former rule."""
    on = ready(of)
    return _Former(on, seed).search()


class _Former:
    def __init__(self, on: Rehearsal, seed: int) -> None:
        setup, workload = on.setup, on.setup.workload
        double = replace(
            workload, window_s=2 * workload.window_s, cohort=None if workload.cohort is None else 2 * workload.cohort
        )
        self.runners = {
            "search": MemoryRunner(on=on, early_fail=True),
            "confirm": MemoryRunner(on=replace(on, setup=replace(setup, workload=double)), early_fail=True),
            "sentinel": MemoryRunner(on=on, early_fail=False),
        }
        self.grid = setup.spec.grid
        seeds = derive(seed, "former", R * (len(self.grid) + 1) + 1)
        self.sentinel, self.roots, self.fresh = seeds[0], seeds[1 : R + 1], list(seeds[R + 1 :])
        self.passed: dict[int, int] = {}
        self.failed: dict[int, int] = {}
        self.confirmed: set[int] = set()
        self.runs, self.seconds, self.requests, self.tokens = 0, 0.0, 0, 0

    def run(self, k: int, seed: int, kind: str) -> bool:
        if kind != "sentinel" and self.runs % (SENTINEL_EVERY + 1) == 0:
            self.run(0, self.sentinel, "sentinel")
        done = self.runners[kind].run(request(self.grid[k], seed))
        self.runs, self.seconds = self.runs + 1, self.seconds + done.seconds
        self.requests, self.tokens = self.requests + done.requests, self.tokens + done.tokens
        return done.verdict.status == "PASS"

    def explore(self, k: int, passes: int) -> None:
        """Replicates at a rate until so many passed; one that failed higher up goes first."""
        above = [self.failed[j] for j in sorted(self.failed) if j > k]
        order = sorted(range(R), key=lambda r: above.index(r) if r in above else R + r)
        while self.passed.get(k, 0) < passes:
            replicate = order[self.passed.get(k, 0)]
            if not self.run(k, self.roots[replicate], "search"):
                self.failed[k] = replicate
                return
            self.passed[k] = self.passed.get(k, 0) + 1

    def search(self) -> Repeat:
        while (place := self.place()) is not None:
            k, passes = place
            if passes <= R:
                self.explore(k, passes)
            elif all(self.run(k, self.fresh.pop(), "confirm") for _ in range(R)):
                self.confirmed.add(k)
            else:
                self.failed[k] = R
        self.run(0, self.sentinel, "sentinel")
        upper = min(self.failed, default=None)
        lower = max(self.confirmed, default=None)
        name = "BELOW_RANGE" if upper == 0 else "ABOVE_RANGE" if upper is None else "FOUND"
        outcome = Outcome(name=name, reason="", capacity=None if lower is None else self.grid[lower])
        return Repeat(outcome=outcome, runs=self.runs, seconds=self.seconds, requests=self.requests, tokens=self.tokens)

    def place(self) -> tuple[int, int] | None:
        """The rate to go on at, and the passes it needs there; R + 1: the confirmation. `None` at the end."""
        upper = min(self.failed, default=None)
        if upper == 0:
            return None
        passing = [k for k, passes in self.passed.items() if passes >= PASSES and (upper is None or k < upper)]
        if upper is None:
            for k in coarse_steps(self.grid):
                if self.passed.get(k, 0) < PASSES:
                    return k, PASSES
        lower = max(passing, default=0)
        if upper is not None and upper - lower > 1:
            return (lower + upper) // 2, PASSES
        if self.passed.get(lower, 0) < R:
            return lower, R if self.passed.get(lower, 0) >= PASSES else PASSES
        return None if lower in self.confirmed else (lower, R + 1)
