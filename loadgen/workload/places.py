"""Which block of a trace each run of a sweep replays (method, section 11).

Blocks are disjoint. The first ones are those of the exploring runs: the same replicate meets the same block at every
rate, so that rates differ by less luck. All others stand by for candidates: candidate c is proved on a set of blocks
that neither the exploring runs nor another candidate met. Where a trace has not enough of them for every candidate that
a search may come to, sets are used again in turn, and each run that reuses one says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.units import format_duration
from loadgen.common.errors import ScenarioError
from loadgen.plan.types import NS, Int64s
from loadgen.scenario.model import Scenario
from traces.blocks import block_edges, block_end
from traces.trace import Trace

__all__ = ["Place", "Places", "own_rate", "speed_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run's measured window may lie, in the trace's own time; `name` says which block it is."""

    start_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The blocks of a sweep. `edges_ns` (blocks + 1,), each block ends where the next one begins.

    `explore` and `prove` are the runs that explore a rate and those that prove a candidate. With `repeats` all runs
    meet the first block.
    """

    edges_ns: Int64s
    explore: int
    prove: int
    repeats: bool = False

    @classmethod
    def of(cls, scenario: Scenario, trace: Trace, *, rates: tuple[float, float], explore: int, prove: int) -> Places:
        """Blocks as long as a window needs at the highest of `rates` (lowest, highest).

        Raises `ScenarioError` where one set does not fit, or blocks cannot have these rates. Time scaling takes as many
        requests from the trace as the rate has in a window, other methods take the window's time.
        """
        highest_rate = rates[1]
        repeats = scenario.replicates == "repeats"
        if scenario.rate_method == "time":
            size, has = math.ceil(highest_rate * scenario.window), len(trace)
            edges = block_edges(trace, requests=size)
            what, per_s = f"{size} requests", 1 / highest_rate
        else:
            size, has = round(scenario.window * NS), trace.span_ns
            edges = np.arange(0, has + 1, size)
            what, per_s = f"{format_duration(scenario.window)} of trace", 1 / NS
        needed = 1 if repeats else explore + prove
        if len(edges) - 1 < needed:
            fitting_s = has // needed * per_s
            shorter = format_duration(math.floor(fitting_s) if fitting_s > 1 else fitting_s)
            held = f"{has} requests" if scenario.rate_method == "time" else format_duration(has / NS)
            proving = f" and {prove} that prove" if prove else ""
            raise ScenarioError(
                f"--window: {needed} blocks ({explore} that explore{proving}) take {needed} × {what} at "
                f"{highest_rate:g} requests/s, and the trace has {held}: shorten --window to {shorter}, lower --runs, "
                "or pass --replicates repeats"
            )
        places = cls(edges_ns=edges, explore=explore, prove=prove, repeats=repeats)
        _refuse_thin(scenario, rates[0])
        if scenario.rate_method != "time":
            _refuse_unreachable(scenario, trace, places, rates)
        return places

    @property
    def sets(self) -> int:
        """How many candidates have blocks of their own."""
        if self.repeats or not self.prove:
            return 0
        return (len(self.edges_ns) - 1 - self.explore) // self.prove

    def place(self, block: int, replicate: int) -> Place:
        """The place of a run: `block` is the candidate's ordinal c, or −1 where a rate is explored or watched.

        A run that repeats another one (another attempt, a recheck) has the place of that one.
        """
        if self.repeats:
            return self._at(0, "the block that all runs repeat")
        if block < 0 or not self.prove:
            row = replicate % self.explore
            return self._at(row, f"block {row + 1}")
        own = block % self.sets
        row = self.explore + own * self.prove + replicate % self.prove
        shared = f", shared with candidate {own + 1}" if block >= self.sets else ""
        return self._at(row, f"block {row + 1}, of candidate {block + 1}{shared}")

    def used(self) -> list[Place]:
        """Every block that a run may meet, the exploring ones first."""
        explored = [self.place(-1, replicate) for replicate in range(self.explore)]
        return explored + [self.place(c, r) for c in range(self.sets) for r in range(self.prove)]

    def sharing(self, candidates: int) -> str:
        """A line for the user: how many of the candidates that a search may come to have blocks of their own."""
        if self.repeats or not self.prove:
            return ""
        blocks = f"each candidate is proved on {self.prove} blocks that no other run meets"
        if self.sets >= candidates:
            return blocks
        return (
            f"{blocks}, up to {self.sets} candidates: the trace has no more, and candidate {self.sets + 1} and later "
            "ones share the blocks of earlier ones, in turn"
        )

    def _at(self, row: int, name: str) -> Place:
        return Place(start_ns=int(self.edges_ns[row]), end_ns=int(self.edges_ns[row + 1]), name=name)


def own_rate(trace: Trace, start_ns: int, end_ns: int) -> float:
    """Requests/s recorded in [start, end) of the trace's own time."""
    first, last = np.searchsorted(trace.at_ns, [start_ns, end_ns])
    return float(last - first) / ((end_ns - start_ns) / NS)


def speed_of(trace: Trace, place: Place, window_ns: int, rate: float) -> float:
    """How much faster than recorded a window at `rate` passes from a place on: its requests are those of the rate."""
    end_ns, _ = block_end(trace, place.start_ns, round(rate * window_ns / NS), limit_ns=place.end_ns)
    return (end_ns - place.start_ns) / window_ns


def _refuse_thin(scenario: Scenario, rate: float) -> None:
    """Time scaling leaves no doubt how many requests a window has: too few at the lowest rate can pass nothing."""
    brings = round(rate * scenario.window)
    if scenario.rate_method == "time" and brings < scenario.least_requests:
        raise ScenarioError(
            f"--window: at {rate:g} requests/s a {scenario.replicate_word} holds {brings} requests, and fewer than "
            f"--min-requests {scenario.least_requests} cannot pass: lengthen --window, raise the lowest --rate, or "
            "lower --min-requests"
        )


def _refuse_unreachable(scenario: Scenario, trace: Trace, places: Places, rates: tuple[float, float]) -> None:
    """A block thinned has no more requests than it had, and superposed no fewer."""
    own = [own_rate(trace, place.start_ns, place.end_ns) for place in places.used()]
    thin = scenario.rate_method == "thin"
    limit = min(own) if thin else max(own)
    if (rates[1] > limit) if thin else (rates[0] < limit):
        asked, verb, end = (rates[1], "raise", "lower") if thin else (rates[0], "lower", "raise")
        how = {"thin": "thinning", "superpose": "superposition"}[scenario.rate_method]
        raise ScenarioError(
            f"--rate: {how} cannot {verb} the rate of a block from {limit:.4g} to {asked:g} requests/s: {end} --rate, "
            "or pass --rate-method time"
        )
