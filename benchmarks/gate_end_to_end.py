"""A gate against a baseline from end to end, in virtual time: false alarms, planted slowdowns caught, server time.

    python -m benchmarks.gate_end_to_end [--gates 200] [--baselines 20] [--seed 51]

Baselines are sweeps of the 8B profile (R = 10), each with its own seeds of arrivals and of the engine's unevenness.
Each cell is so many gates (`loadgen.gate_sync`), spread over the baselines: A/A on the same profile with another seed
of the unevenness, and on one whose every step takes 10 % longer. `quiet`: steps vary by 5 %, one in 500 stalls for
200 ms. `uneven`: by 30 %, one in 200 stalls for 500 ms. Server time is the load's time and two seconds a run, of a gate
beside the sweep that made its baseline. Targets: at most 5 % alarms in A/A, at least 80 % of 10 % slower caught, at
most half the server time. Exit code 1 if one is missed. Everything was fixed before the first measurement.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Final

import loadgen
from loadgen.experiment.forecast import BETWEEN_S
from loadgen.plan.types import NS
from loadgen.results.store import read_run, run_directory

NOISE: Final = {
    "quiet": "step.jitter=0.05&step.stall_share=0.002&step.stall_ms=200",
    "uneven": "step.jitter=0.3&step.stall_share=0.005&step.stall_ms=500",
}
SLOWER: Final = f"card.effective_tflops={187 / 1.1}&card.effective_gb_per_s={1630 / 1.1}&step.overhead_ms={2.0 * 1.1}"
CELLS: Final = (("quiet", 6), ("uneven", 6), ("uneven", 10))
MOST_ALARMS, LEAST_CAUGHT, MOST_TIME = 0.05, 0.80, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What `gates` of one kind came to: verdicts, mean server time in s, and the median sd of paired log E2E."""

    gates: int
    verdicts: Counter[str]
    server_s: float
    sd: float

    def share(self, verdict: str) -> float:
        """Share of the gates with that verdict."""
        return self.verdicts[verdict] / self.gates


def target(noise: str, seed: int, *, slower: bool = False) -> str:
    """The simulated server with that seed of its unevenness."""
    return f"virtual:llama8b-80gb?{NOISE[noise]}&step.seed={seed}" + (f"&{SLOWER}" if slower else "")


def server_s(directory: Path) -> float:
    """Load and time between runs of an experiment."""
    runs = [run_directory(directory, line.run) for line in loadgen.load(directory).ledger]
    return sum(read_run(run).facts.sender.stop_ns / NS + BETWEEN_S for run in runs)


def swept(directory: Path, noise: str, seed: int) -> float:
    """A baseline's server time, s."""
    scenario = loadgen.Scenario(
        target=(target(noise, seed),),
        rate="3..9",
        width="10%",
        slo=("ttft:800ms", "tpot:50ms"),
        window="120s",
        seed=seed,
    )
    found = loadgen.sweep_sync(scenario, directory)
    assert found.answer.proved is not None, found.answer.reason
    return server_s(directory)


def gated(where: Path, baselines: list[Path], noise: str, runs: int, gates: int, seed: int, *, slower: bool) -> Cell:
    """So many gates of `runs` runs, one baseline after the other."""
    verdicts, times, spreads = Counter[str](), [], []
    for k in range(gates):
        with tempfile.TemporaryDirectory(dir=where) as made:
            directory = Path(made) / "gate"
            on = target(noise, seed + k, slower=slower)
            setup = loadgen.prepare_gate_against(baselines[k % len(baselines)], {"target": (on,)}, runs=runs)
            answer = loadgen.gate_sync(setup, directory).gate
            times.append(server_s(directory))
        verdicts[answer.verdict] += 1
        if answer.tested is not None:
            e2e = answer.tested.endpoints[-1].difference
            spreads.append(e2e.sd or 0.0)
    return Cell(gates=gates, verdicts=verdicts, server_s=fmean(times), sd=median(spreads))


def main() -> int:
    """Print the table, each number beside its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=200)
    parser.add_argument("--baselines", type=int, default=20)
    parser.add_argument("--seed", type=int, default=51)
    asked = parser.parse_args()
    missed = 0
    print(
        f"| server | R | sd of paired log E2E | A/A: WORSE (at most {MOST_ALARMS:.0%}) | A/A: NOT WORSE | 10 % slower: "
        f"WORSE (at least {LEAST_CAUGHT:.0%}) | server time of a gate / of its sweep (at most {MOST_TIME:.0%}) |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as made:
        where = Path(made)
        for noise in NOISE:
            baselines = [where / f"{noise}-{k}" for k in range(asked.baselines)]
            sweep_s = fmean(swept(one, noise, asked.seed + k) for k, one in enumerate(baselines))
            for runs in [runs for name, runs in CELLS if name == noise]:
                seed = 1000 * asked.seed + runs
                same = gated(where, baselines, noise, runs, asked.gates, seed, slower=False)
                slow = gated(where, baselines, noise, runs, asked.gates, seed, slower=True)
                part = same.server_s / sweep_s
                met = (
                    same.share("WORSE") <= MOST_ALARMS,
                    slow.share("WORSE") >= LEAST_CAUGHT,
                    part <= MOST_TIME,
                )
                missed += met.count(False)
                alarms, caught, cost = (" MISSED" * (not one) for one in met)
                print(
                    f"| {noise} | {runs} | {same.sd:.2%} | {same.share('WORSE'):.1%}{alarms} | "
                    f"{same.share('NOT_WORSE'):.1%} | {slow.share('WORSE'):.1%}{caught} | {same.server_s / 60:.0f} / "
                    f"{sweep_s / 60:.0f} min = {part:.0%}{cost} |",
                    flush=True,
                )
    print(f"{asked.gates} gates a cell, {asked.baselines} baselines a server, {time.process_time():.0f} s of CPU")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
