"""Values that the parts of tensor-parallel accounting hand to one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from analysis.tp.allreduce import Microbenchmark, NotMeasured
from analysis.tp.cost import Shape
from analysis.tp.path import NcclLog, Topology

__all__ = [
    "CollectiveTotal",
    "Facts",
    "GemmTotal",
    "Link",
    "Load",
    "Profile",
    "State",
    "Step",
    "TokenTimes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """t_proj,1 by T: pairs (tokens of a step, seconds of its projections on one GPU), ascending by tokens."""

    pairs: tuple[tuple[float, float], ...]

    @property
    def per_token_s(self) -> float:
        """a = t_proj,1/T, seconds a token, over all pairs."""
        return sum(seconds for _, seconds in self.pairs) / sum(tokens for tokens, _ in self.pairs)

    def projections_s(self, tokens: float) -> float:
        """t_proj,1(T), linear between two neighbouring pairs. Raises `NotMeasured`."""
        for known, seconds in self.pairs:
            if known == tokens:
                return seconds
        for (low, low_s), (high, high_s) in pairwise(self.pairs):
            if low < tokens < high:
                return low_s + (high_s - low_s) * (tokens - low) / (high - low)
        low, high = self.pairs[0][0], self.pairs[-1][0]
        raise NotMeasured(f"T = {tokens:g} is outside of what the TP=1 profile holds, {low:.4g} to {high:.4g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTotal:
    """Calls alike in kind, maker, element type, group and payload; `None` and "" where the trace does not say."""

    kind: str
    by: str
    element: str
    ranks: int | None
    payload_bytes: int | None
    calls: int
    total_s: float
    median_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTotal:
    """Calls of one shape: (rows × K) · (K × N)."""

    rows: int
    columns: int  # N
    depth: int  # K
    element: str
    calls: int
    total_s: float

    @property
    def flops_per_s(self) -> float:
        """2·rows·N·K FLOPs a call, by the time it took."""
        return 2 * self.rows * self.columns * self.depth * self.calls / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. `payload_bytes`: the most frequent of its all-reduces; `odd_payloads`: how many have another one."""

    tokens: int | None  # T: rows of most of its GEMMs, else as annotated
    took_s: float
    all_reduces: int
    others: tuple[tuple[str, int], ...]  # other collectives by kind
    payload_bytes: int | None
    odd_payloads: int
    collective_s: float
    exposed_s: float
    projection_s: float  # GEMMs of T rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One rank's trace. `steps_by` says how steps were recognised, "" if they were not."""

    rank: int | None
    ranks: int | None
    on_device: bool
    events: int
    steps: tuple[Step, ...]
    steps_by: str
    collectives: tuple[CollectiveTotal, ...]
    gemms: tuple[GemmTotal, ...]
    unshaped_gemms: int  # kernels that seem to be GEMMs, of unknown shape (inside CUDA graphs)
    unshaped_gemm_s: float


State = Literal["holds", "explains", "not checked", "not reached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link's answer."""

    name: str
    state: State
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a stored run tells: `server` as in its verdict, `summary` too, and requests by replica."""

    rate: float
    server: Mapping[str, Mapping[str, float]]
    ttft_s: float | None
    by_replica: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that may be known. `ranks`: p."""

    ranks: int
    shape: Shape | None = None
    inapplicable: tuple[str, ...] = ()  # why the model of method section 9 does not hold, as config.json says
    topology: Topology | None = None
    log: NcclLog | None = None
    nccl: Microbenchmark | None = None
    profile: Profile | None = None
    alone: TokenTimes | None = None  # of a TP=1 profile
    load: Load | None = None
