"""The types the plan is made of: the schedule, its windows and the whole run's plan, all immutable."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import orjson

from analysis.units import NS_PER_S as NS
from traces.trace import BlockHashes

__all__ = [
    "NS",
    "ExactText",
    "Int64s",
    "PlanRecord",
    "PlanRequest",
    "RequestFormat",
    "RunPlan",
    "Schedule",
    "SideSeeds",
    "Window",
]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """All arrival instants of a run: sorted int64 nanoseconds from t0, shape (n,), read-only."""

    at_ns: Int64s
    sha256: str = field(init=False)

    def __post_init__(self) -> None:
        at_ns = np.ascontiguousarray(self.at_ns, dtype="<i8")
        if at_ns is self.at_ns:
            at_ns = at_ns.copy()
        if at_ns.ndim != 1 or (at_ns.size and (at_ns[0] < 0 or bool(np.any(at_ns[1:] < at_ns[:-1])))):
            raise ValueError("a schedule is one sorted row of instants from t0, none of them negative")
        at_ns.flags.writeable = False
        object.__setattr__(self, "at_ns", at_ns)
        object.__setattr__(self, "sha256", hashlib.sha256(at_ns.tobytes()).hexdigest())

    def __len__(self) -> int:
        return int(self.at_ns.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Warm-up, measured window and tail of a run, ns. The cohort is scheduled in [warmup, warmup + window)."""

    warmup_ns: int
    window_ns: int
    tail_ns: int  # the load stays on this much longer at most, until the cohort is decided

    @property
    def end_ns(self) -> int:
        """End of the measured window."""
        return self.warmup_ns + self.window_ns

    @property
    def horizon_ns(self) -> int:
        """End of the schedule."""
        return self.end_ns + self.tail_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Which run a plan is for.

    content_key         (rate, attempt): content differs between rates and attempts, lengths and arrivals stay paired;
                        for a server whose cache cannot be proved cold
    cohort              the window lasts until so many requests are in it; `window.window_ns` is not looked at
    replicate, block    which part of a trace is replayed, where one is: `block` is the candidate's ordinal, −1 where
                        a rate is explored
    """

    rate: float  # requests/s
    root_seed: int
    window: Window
    content_key: tuple[float, int] | None = None
    cohort: int | None = None
    replicate: int = 0
    block: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSeeds:
    """Overrides that change one side of every replicate and nothing on the other; `None`: from the root seed."""

    arrival: int | None = None  # of the arrivals stream
    workload: int | None = None  # of all other streams


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactText:
    """What texts are made of whose length in tokens is known, by a server's own tokenizer.

    A prompt of `opener` and n of the `words` (each with the space before it) has n + `overhead_tokens` tokens: opener,
    special tokens and chat template. `shared_overhead_tokens`: the same where a shared part comes first, which in a
    chat is a message of its own with its own opener.
    """

    opener: str
    words: tuple[str, ...]
    overhead_tokens: int
    shared_overhead_tokens: int

    @property
    def sha256(self) -> str:
        """Of all of it."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFormat:
    """How a planned request becomes bytes; part of the workload hash."""

    endpoint: Literal["completions", "chat"] = "completions"
    prompt: Literal["ids", "text"] = "ids"
    stop: Literal["forced", "natural"] = "forced"
    temperature: float = 0.0
    token_ids: tuple[int, int] = (1000, 4000)  # half-open range that prompt token ids are drawn from
    stream: bool = True
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    usage: bool = True  # the stream is asked to report its token counts
    text: ExactText | None = None  # how text prompts get their exact length; None: about a word a token

    @property
    def exact(self) -> bool:
        """Whether prompts have exactly the planned tokens."""
        return self.prompt == "ids" or self.text is not None

    def hashed(self) -> bytes:
        """What enters the workload hash, as JSON; members that came later only where they are not at their default."""
        members = asdict(self)
        for name, default in (("limit_field", "max_tokens"), ("usage", True), ("text", None)):
            if members[name] == default:
                del members[name]
        return orjson.dumps(members, option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunPlan:
    """One run, decided whole before t0. Columns have shape (n,), one entry per scheduled request.

    With `blocks` (a recorded workload) prompts are made of these: the same id gives the same tokens under one content
    seed, and what lies behind a request's last block is its own. `prefix_tokens` then says how much of each prompt
    earlier requests of the plan had, and `prefix_group` is -1 throughout.
    """

    schedule: Schedule
    input_tokens: Int64s
    output_tokens: Int64s
    prefix_tokens: Int64s  # of the input, shared within the request's prefix group; 0: none
    prefix_group: Int64s  # -1: none
    content_seed: int
    window: Window
    format: RequestFormat
    rate: float
    root_seed: int
    workload_sha256: str
    arrival_root: int = -1  # what the two sides' streams come from: root_seed, unless overridden; -1: not said
    workload_root: int = -1
    blocks: BlockHashes | None = None
    parent: Int64s | None = None  # of recorded sessions: place of the previous turn, an earlier one; -1: none
    origin: str = ""  # how a recorded schedule came about, in words

    def __len__(self) -> int:
        return len(self.schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """What a run's document says of its plan. `format` has no words of exact texts, but their hash is beside it."""

    schedule_sha256: str
    workload_sha256: str
    requests: int  # in the whole schedule, the tail included
    rate: float
    root_seed: int
    arrival_root: int
    workload_root: int
    content_seed: int
    content_version: int
    window: Window
    format: RequestFormat
    text_sha256: str | None
    origin: str
    numpy: str  # the version that drew the plan
