"""The interface between the HTTP front end and the model that decides when tokens are emitted.

A `Model` is sans-IO and has no clock: the face tells it what arrived and what time it is (monotonic ns), asks when it
next wants to be woken, and turns the emissions it returns into events. A closed-form queue and a batching engine fit
behind it alike. The order of calls is: `submit` at an arrival, `advance` whenever `next_ns` has come (and before each
`submit`), `cancel` when a client went away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Busy", "Emission", "Gauges", "Job", "Model"]


class Busy(Exception):
    """The model's admission limit is reached: the face answers 503."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One request as a model sees it; `output_tokens` is decided already, by the limit or by the natural stop."""

    key: int  # unique while the process lives
    prompt: npt.NDArray[np.int64]  # token ids
    output_tokens: int  # at least 1
    cache_salt: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """`tokens` more tokens of a job have come out, the last of them due at `at_ns`."""

    key: int
    tokens: int
    at_ns: int
    finished: bool
    started_ns: int  # when the job was first scheduled
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    preemptions: int = 0  # of this job so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The model's state and running totals, for /metrics and /load. Tokens where the name says so."""

    running: int
    waiting: int
    kv_usage: float = 0.0  # share of KV blocks in use
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    passes: Mapping[int, int] = field(default_factory=dict)  # tokens computed in a pass -> how many passes
    settings: Mapping[str, str] = field(default_factory=dict)  # labels of cache_config_info, constant


class Model(Protocol):
    """Decides when the tokens of each job come out. All instants are monotonic ns of the caller's clock."""

    def submit(self, job: Job, now_ns: int) -> None:
        """Take a job that arrived at `now_ns`, never before an earlier one. Raises `Busy`."""
        ...

    def cancel(self, key: int, now_ns: int) -> None:
        """The client of this job is gone; unknown keys are ignored."""
        ...

    def next_ns(self) -> int | None:
        """When `advance` has something to say at the earliest; `None` while idle."""
        ...

    def advance(self, now_ns: int) -> Sequence[Emission]:
        """Everything emitted up to and including `now_ns` and not returned before, in order."""
        ...

    def gauges(self) -> Gauges:
        """The state as of the latest call."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; false while jobs hold it."""
        ...
