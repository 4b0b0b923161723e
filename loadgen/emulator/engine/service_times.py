"""What a simulated server did to each request of a plan, as columns: the common answer of every kind of server.

Instants are int64 ns from t0. Token instants are a function, not a table: a run of a million requests has a hundred
million of them, and hardly anybody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Bools", "Int64s", "PassLog", "ServiceTimes"]

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceTimes:
    """Columns of shape (n,), one entry a request of the plan; `sent_ns` is -1 for one that never left the client."""

    admitted_ns: Int64s  # got a concurrency slot; -1 without a cap, or never
    sent_ns: Int64s
    tokens: Int64s  # produced: all, or as many as came out before the client left or the simulation ended
    complete: Bools
    refused: Bools  # admission limit
    cached_tokens: Int64s  # of the input, found in the prefix cache
    token_ns: Callable[[Int64s, Int64s], Int64s]  # (request, number of its token from 1), elementwise: its instant

    def tokens_by(self, requests: Int64s, at_ns: Int64s) -> Int64s:
        """How many tokens of each request had come out at an instant, elementwise; by bisection, token times rise."""
        low, high = np.zeros_like(requests), self.tokens[requests]
        while bool((open_ := low < high).any()):
            middle = (low + high + 1) // 2
            came = np.zeros_like(open_)
            came[open_] = self.token_ns(requests[open_], middle[open_]) <= at_ns[open_]
            low = np.where(open_ & came, middle, low)
            high = np.where(open_ & ~came, middle - 1, high)
        return low


@dataclass(slots=True)
class PassLog:
    """The passes of an engine, stretch by stretch: pass i of a stretch takes base + i·slope ps."""

    start_ps: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    base_ps: list[int] = field(default_factory=list)
    slope_ps: list[int] = field(default_factory=list)
    uneven: dict[int, Int64s] = field(default_factory=dict)  # stretch -> ends of its passes, ps from its start

    def ends_ns(self) -> Int64s:
        """When each pass ended, shape (passes,)."""
        counts = np.array(self.passes, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        nth = np.arange(1, int(counts.sum()) + 1) - np.repeat(starts, counts)
        ends_ps = nth * np.repeat(np.array(self.base_ps, dtype=np.int64), counts)
        ends_ps += np.repeat(np.array(self.slope_ps, dtype=np.int64), counts) * (nth * (nth - 1) // 2)
        for stretch, ends in self.uneven.items():
            ends_ps[starts[stretch] : starts[stretch] + counts[stretch]] = ends
        ends_ps += np.repeat(np.array(self.start_ps, dtype=np.int64), counts)
        ends_ns: Int64s = ends_ps // PS_PER_NS
        return ends_ns


def interleaved(traces: list[ServiceTimes]) -> ServiceTimes:
    """One trace of servers that took requests in turn: request i is entry i // n of trace i mod n."""
    n = len(traces)
    total = sum(len(trace.tokens) for trace in traces)

    def column(name: str) -> npt.NDArray[np.int64]:
        out = np.empty(total, dtype=getattr(traces[0], name).dtype)
        for turn, trace in enumerate(traces):
            out[turn::n] = getattr(trace, name)
        return out

    def token_ns(requests: Int64s, numbers: Int64s) -> Int64s:
        out = np.empty_like(requests)
        for turn, trace in enumerate(traces):
            mine = requests % n == turn
            if mine.any():
                out[mine] = trace.token_ns(requests[mine] // n, numbers[mine])
        return out

    return ServiceTimes(
        admitted_ns=column("admitted_ns"),
        sent_ns=column("sent_ns"),
        tokens=column("tokens"),
        complete=column("complete").astype(np.bool_),
        refused=column("refused").astype(np.bool_),
        cached_tokens=column("cached_tokens"),
        token_ns=token_ns,
    )
