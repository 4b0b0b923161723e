"""Which URL of a target gets a request; asked when the request goes on the wire.

    round-robin      in turn, by the request's place in the schedule
    random           drawn beforehand for each place of the schedule, from a stream of the run's root (method, section
                     4): equal seeds give equal choices at every rate, and no other draw moves
    least-in-flight  the URL with the fewest requests on the wire; of equals, the next one in turn

The last one follows from how fast each server answers, so it is the only one that a repeated run need not repeat. A
URL that refuses every connection at once has always the fewest requests: no policy here knows which server is well.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from loadgen.plan.seeds import stream

__all__ = ["Router", "Routing", "router_of"]

Routing = Literal["round-robin", "random", "least-in-flight"]


class Router(Protocol):
    """One run's choices. Targets are numbered from 0, in the order of the endpoint's URLs."""

    def chosen(self, index: int) -> int:
        """The target of request `index` of the schedule, which goes on the wire now."""
        ...

    def left(self, target: int) -> None:
        """A request that went to this target left the wire, however it ended."""
        ...


def router_of(routing: Routing, *, targets: int, requests: int, root_seed: int) -> Router:
    """The router of one run with so many `targets`, for a schedule of so many `requests`."""
    if targets == 1 or routing == "round-robin":
        return _InTurn(targets)
    if routing == "random":
        return _Drawn(targets, requests, root_seed)
    return _LeastInFlight(targets)


class _InTurn:
    def __init__(self, targets: int) -> None:
        self._targets = targets

    def chosen(self, index: int) -> int:
        return index % self._targets

    def left(self, target: int) -> None:
        pass


class _Drawn:
    def __init__(self, targets: int, requests: int, root_seed: int) -> None:
        drawn = stream(root_seed, "routing").integers(targets, size=requests, dtype=np.int64)
        self._target = memoryview(drawn)  # type: ignore[arg-type]  # whose items are plain ints

    def chosen(self, index: int) -> int:
        target: int = self._target[index]
        return target

    def left(self, target: int) -> None:
        pass


class _LeastInFlight:
    def __init__(self, targets: int) -> None:
        self._on_wire = [0] * targets
        self._next = 0  # among equals the first one from here on is taken

    def chosen(self, index: int) -> int:
        on_wire = self._on_wire
        fewest = min(on_wire)
        target = self._next
        while on_wire[target] != fewest:
            target = (target + 1) % len(on_wire)
        on_wire[target] += 1
        self._next = (target + 1) % len(on_wire)
        return target

    def left(self, target: int) -> None:
        self._on_wire[target] -= 1
