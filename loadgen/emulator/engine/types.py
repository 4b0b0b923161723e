"""What goes into the engine and comes out of it: its limits, sequences, and what a step did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadgen.emulator.engine.kv import Chain, Lease

__all__ = ["EngineFull", "Int64s", "Limits", "Sequence", "Step"]

Int64s = npt.NDArray[np.int64]


class EngineFull(Exception):
    """The admission limit is reached: a server answers 503."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The scheduler's settings: vLLM's names without `max_num_`."""

    batched_tokens: int
    seqs: int
    kv_blocks: int
    block_size: int
    prefix_caching: bool
    queued: int | None = None  # waiting sequences beyond which `add` refuses; None: no limit
    policy: Literal["fcfs", "priority"] = "fcfs"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. `chain` names its prompt's full blocks in the prefix cache."""

    key: int
    prompt_tokens: int
    output_tokens: int
    chain: Chain = ()
    priority: int = 0  # a smaller one is more urgent
    emitted: int = 0  # up to its latest change of state; a decoding sequence emits one token a step from there
    cached_tokens: int = -1  # of the prompt, found at the first admission; -1: not admitted yet
    preemptions: int = 0
    _order: int = 0  # of arrival
    _turn: int = 0  # of admission: the order in which those that end together give their blocks back
    _state: Literal["waiting", "prefill", "decode", "gone"] = "waiting"
    _target: int = 0  # tokens to compute before it (again) emits
    _computed: int = 0  # in prefill only
    _offset: int = 0  # while decoding: computed tokens minus steps done
    _ends: int = 0  # while decoding: the step count at which it is complete
    _lease: Lease = field(default_factory=Lease)


@dataclass(slots=True, eq=False)
class Step:
    """What `steps` passes did (one, or many equal ones). Durations in ps.

    Every sequence that decoded emitted one token a pass; those in `first` emitted one at the end (their prompt, or what
    a preemption made them compute again, is complete), and those in `finished` are complete at the end.
    """

    steps: int
    duration_ps: int
    tokens: int  # computed in each pass
    first: list[Sequence]
    finished: list[Sequence]
    preempted: list[Sequence]
    ends_ps: Int64s | None = None  # of each pass from the start, where noise made them uneven
    base_ps: int = 0  # else pass i (from 0) took base_ps + i·slope_ps
    slope_ps: int = 0
