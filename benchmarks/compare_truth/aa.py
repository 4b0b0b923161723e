"""A against A: how often does a comparison claim a difference between servers that differ by luck alone?"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.compare_truth.compared import ZONES, Pair, Server, compare, exact_interval
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Crew

__all__ = ["EQUALS", "Equal", "claims", "counted", "equal", "show"]

MOST: Final = 0.05
LUCK: Final = "{luck}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """A profile with a key for its luck, what is asked of it, and how many comparisons are made."""

    name: str
    profile: str
    settings: dict[str, Any]
    count: int = 0


_JITTER: Final = Equal(
    name="8B profile, jitter 10 % of every pass",
    profile="llama8b-80gb?step.jitter=0.1&step.seed={luck}",
    settings={"rate": "2..20", "input": "1024", "output": "16", "slo": ("ttft<=800ms",), "cohort": 500,
              "warmup": "10s", "runs": 6},
    count=100,
)  # fmt: skip
EQUALS: Final = (
    _JITTER,
    Equal(
        name="M/M/1, services drawn anew",
        profile="mm1?service.seed={luck}",
        settings={"rate": "2..18", "input": "16", "output": "1", "slo": ("e2e<=250ms",), "cohort": 500, "runs": 6},
        count=400,
    ),
    replace(
        _JITTER, name="8B profile, jitter 10 %, at 9/s alone", settings={**_JITTER.settings, "rate": "9"}, count=400
    ),
)


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    for one in EQUALS:
        claims(board, crew, one, 8 if quick else one.count)


def equal(of: Equal, luck: tuple[str, str], seed: int) -> Pair:
    """A comparison of the profile with itself under two kinds of luck."""
    servers = tuple(Server(name=name, profile=of.profile.format(luck=k)) for name, k in zip("ab", luck, strict=True))
    (pair,) = compare(servers, tuple(sorted(of.settings.items())), seed)
    return pair


def claims(board: Board, crew: Crew, of: Equal, count: int) -> None:
    """How often a difference is claimed, and that equal luck gives bit-identical pairs."""
    board.head(f"A against A: {count} comparisons, {of.name}")
    seeds, lucks = crew.seeds(f"aa/{of.name}", count), crew.seeds(f"luck/{of.name}", 2 * count)
    pairs = crew.all(
        equal,
        [(of, (str(a), str(b)), seed) for seed, a, b in zip(seeds, lucks[::2], lucks[1::2], strict=True)],
        together=4,
    )
    counted(board, of, pairs)
    same = crew.all(equal, [(of, (str(k), str(k)), seed) for seed, k in zip(seeds[:20], lucks[:20], strict=False)])
    identical = sum(one.verdict.difference.identical and one.verdict.difference.p is None for one in same)
    board.hold(f"{of.name}: equal luck is called identical and not tested", f"{identical} of {len(same)}",
               f"{len(same)} of {len(same)}", identical == len(same))  # fmt: skip


def counted(board: Board, of: Equal, pairs: Sequence[Pair]) -> None:
    """Verdicts on servers that are said to be equal."""
    count = len(pairs)
    words, rows = ("A", "B", "no difference", "cannot tell"), []
    for zone in ZONES:
        for rule, verdicts in {
            "the verdict": [one.winner(zone) for one in pairs],
            "at own λ* alone": [one.winner_at_own_rates(zone) for one in pairs],
        }.items():
            counts = Counter(verdicts)
            claimed = counts["A"] + counts["B"]
            low, high = exact_interval(claimed, count)
            share = f"{claimed / count:.1%} ({low:.1%} to {high:.1%})"
            rows.append([f"{zone:.0%}", rule, share, *(str(counts[word]) for word in words)])
            if rule == "the verdict":
                what = f"{of.name}, zone {zone:.0%}: a difference is claimed"
                # a test at 5 % claims more than 5 % in half of such rounds: missed only if luck does not explain it
                board.hold(what, f"{claimed} of {count} = {share}", f"≤ {MOST:.0%} within the interval", low <= MOST)
    board.say("")
    board.table(["zone", "rule", "a difference is claimed (exact 95 % interval)", *words], rows)
    apart = [abs(one.verdict.difference.mean) for one in pairs if one.verdict.same_rate]
    mean = f", and then G_card at own λ* by {statistics.fmean(apart):.1%} on average" if apart else ""
    board.say(f"\nλ* differed in {len(apart)} of {count}{mean}.")
