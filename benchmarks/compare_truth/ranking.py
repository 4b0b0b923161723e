"""TP=1, four replicas of it, and TP=4 with one cost model: does a comparison rank them as the model implies?

Theory. A pass over 4 GPUs is sooner over, but takes more GPU time than one on 1 GPU: weights, projections and attention
are divided by 4, all-reduces and the fixed overhead come on top. So a tight SLO, under which every variant stands at a
low load, is won by TP=4, and a loose one, under which all are nearly saturated, by four replicas. What each is worth is
measured without any code of comparisons, by runs of 100,000 requests, and then comparisons are asked.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from analysis.compare.types import PairedDifference
from benchmarks.compare_truth.compared import Pair, Server, compare, long_run_capacity
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Asked, Crew
from loadgen.emulator.engine.profile import BatchingProfile
from loadgen.emulator.profiles import load_profile

__all__ = ["LOADS", "SERVERS", "Load", "agreeing", "implied", "ranking", "show", "told"]

ZONE: Final = 0.03
REAL: Final = 0.05  # differences of G_card from here on must be found
SERVERS: Final = (
    Server(name="tp1", profile="llama70b-tp1"),
    Server(name="4xtp1", profile="llama70b-replicas", gpus=4),
    Server(name="tp4", profile="llama70b-tp4", gpus=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of all variants; rates are per GPU."""

    name: str
    settings: Mapping[str, Any]

    @property
    def asked(self) -> Asked:
        return tuple(sorted(self.settings.items()))

    @property
    def tokens(self) -> int:
        """Of an answer."""
        return int(self.settings["output"])


LOADS: Final = (
    Load(
        name="low load (tight SLO)",
        settings={"rate": "0.03..0.8", "input": "1024", "output": "128", "slo": ("ttft<=2s", "tpot<=60ms"),
                  "cohort": 2000},
    ),
    Load(
        name="high load (loose SLO)",
        settings={"rate": "0.5..2.5", "input": "64", "output": "512", "slo": ("e2e<=60s",), "cohort": 2000, "runs": 20},
    ),
)  # fmt: skip


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    step_times(board)
    for load in LOADS:
        ranking(board, crew, load, seeds=2 if quick else 20, requests=5_000 if quick else 100_000)


def step_times(board: Board) -> None:
    """What a pass takes by the cost model alone."""
    board.head("What a pass takes (closed form)")
    profiles = {one.name: load_profile(one.profile) for one in SERVERS}
    costs = {name: one.cost() for name, one in profiles.items() if isinstance(one, BatchingProfile)}
    rows = []
    for tokens in (1, 32, 1024):
        each = {name: cost.base_ps(tokens) * 1e-9 for name, cost in costs.items()}
        ratio = 4 * each["tp4"] / each["tp1"]
        rows.append([f"{tokens}", f"{each['tp1']:.1f} ms", f"{each['tp4']:.1f} ms", f"{ratio:.2f}"])
    board.table(["tokens in the pass", "TP=1", "TP=4", "GPU time, TP=4 / TP=1"], rows)


def implied(truth: Mapping[str, float], a: str, b: str) -> float:
    """The true difference of G_card, relative to the mean of both."""
    return (truth[a] - truth[b]) / statistics.fmean((truth[a], truth[b]))


def agreeing(winners: Iterable[str], true: float) -> int:
    """How many verdicts name the variant that is truly better."""
    return sum(winner == ("A" if true > 0 else "B") for winner in winners)


def ranking(board: Board, crew: Crew, load: Load, *, seeds: int, requests: int, servers: tuple[Server, ...] = SERVERS,
            steps: int = 9) -> None:  # fmt: skip
    """True G_card of each variant, and the verdicts of `seeds` comparisons."""
    board.head(f"{load.name}: {seeds} comparisons, SLO {', '.join(load.settings['slo'])}")
    rates = {
        one.name: long_run_capacity(crew, one, load.asked, requests=requests, runs=2, steps=steps) for one in servers
    }
    truth = {name: 0.95 * load.tokens * rate for name, rate in rates.items()}
    board.table(
        ["variant", "capacity per GPU", "G_card there, tokens/(s·GPU)"],
        [[name, f"{rates[name]:.3f}/s", f"{truth[name]:.1f}"] for name in rates],
    )
    board.say("")
    done = crew.all(compare, [(servers, load.asked, seed) for seed in crew.seeds(f"ranking/{load.name}", seeds)])
    told(board, load, servers, truth, done)


def told(
    board: Board,
    load: Load,
    servers: tuple[Server, ...],
    truth: Mapping[str, float],
    done: Sequence[tuple[Pair, ...]],
) -> None:
    """Verdicts beside the true G_card, and whether all of them name the better variant where it is better by REAL."""
    rows, held = [], []
    for a, b in combinations([one.name for one in servers], 2):
        pairs = [one for pairs in done for one in pairs if (one.verdict.a, one.verdict.b) == (a, b)]
        true, verdicts = implied(truth, a, b), [one.winner(ZONE) for one in pairs]
        held.append((f"{load.name}: {a if true > 0 else b} is better, {a} against {b}", true, verdicts))
        said = ", ".join(f"{count} {_who(winner, a, b)}" for winner, count in Counter(verdicts).most_common())
        own = [one.verdict.difference for one in pairs]
        rows.append([f"{a} − {b}", f"{true:+.1%}", f"{statistics.fmean(d.mean for d in own):+.1%}", _ends(own), said])
    board.table(["variants", "true", "measured, mean", "mean 95 % interval", "verdicts at zone 3 %"], rows)
    for what, true, verdicts in held:
        if abs(true) >= REAL:
            right = agreeing(verdicts, true)
            board.hold(what, f"{right} of {len(done)}", f"{len(done)} of {len(done)}", right == len(done))


def _who(winner: str, a: str, b: str) -> str:
    return {"A": f"{a} better", "B": f"{b} better"}.get(winner, winner)


def _ends(differences: Iterable[PairedDifference]) -> str:
    known = [(d.lo, d.hi) for d in differences if d.lo is not None and d.hi is not None]
    return f"{statistics.fmean(lo for lo, _ in known):+.1%} to {statistics.fmean(hi for _, hi in known):+.1%}"
