"""Small plans and bodies for the sender's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import orjson

from loadgen.plan.types import RequestFormat, RunPlan, Schedule, Window

MS = 1_000_000


def plan_at(
    at_ms: Sequence[float],
    *,
    warmup_ms: float = 0,
    window_ms: float = 1_000,
    tail_ms: float = 10_000,
    output_tokens: int = 4,
    stop: Literal["forced", "natural"] = "forced",
) -> RunPlan:
    """A plan with these arrival instants."""
    at_ns = np.array([round(at * MS) for at in at_ms], dtype=np.int64)
    n = at_ns.size
    return RunPlan(
        schedule=Schedule(at_ns=at_ns),
        input_tokens=np.full(n, 8, dtype=np.int64),
        output_tokens=np.full(n, output_tokens, dtype=np.int64),
        prefix_tokens=np.zeros(n, dtype=np.int64),
        prefix_group=np.full(n, -1, dtype=np.int64),
        content_seed=1,
        window=Window(warmup_ns=round(warmup_ms * MS), window_ns=round(window_ms * MS), tail_ns=round(tail_ms * MS)),
        format=RequestFormat(stop=stop),
        rate=1.0,
        root_seed=1,
        workload_sha256="",
    )


class Bodies:
    """Bodies that are always ready."""

    def __init__(self, **members: Any) -> None:
        self.starved = 0
        self.taken: list[int] = []
        self._members = members

    def fill(self, now_ns: int, budget_ns: int) -> int:
        return 0

    def take(self, index: int) -> bytes:
        self.taken.append(index)
        return orjson.dumps({"index": index, **self._members})
