"""The seam between a run and the sender: what is loaded, how, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from analysis.slo import Slo
from analysis.verdict import SenderFacts
from loadgen.common.members import JsonMembers
from loadgen.common.tls import Tls
from loadgen.send.pacing import OnSchedule, Pacing
from loadgen.send.routing import Routing

if TYPE_CHECKING:  # the metrics process, which comes by here, needs no pandas
    import pandas as pd

    from analysis.server_metrics.types import Observation

__all__ = [
    "Drain",
    "Endpoint",
    "Events",
    "Governor",
    "LiveCounts",
    "RecordSink",
    "RequestValues",
    "RunOutput",
    "SendOptions",
    "Share",
    "Standing",
    "is_prompt",
    "sampled",
]

Events = Literal["none", "sample", "prompt", "all"]  # prompt: of requests that were read promptly
_SAMPLE: Final = 2**32 // 16  # one request in 16
_PROMPT: Final = 2**32 // 8  # one in 8, and these among them
RequestValues = tuple[int | str, ...]  # in the order of analysis.schema.REQUEST_COLUMNS
Index = TypeVar("Index", int, npt.NDArray[np.int64])


def sampled(index: Index) -> Any:
    """Whether a request, or each of many, is one in 16 whose events a sample keeps; the same ones in every run.

    Spread by a multiplicative hash, so that no period of the workload falls in with it.
    """
    return index * 2_654_435_761 % 2**32 < _SAMPLE


def is_prompt(index: int) -> bool:
    """Whether a request is one in 8 that is read promptly whatever the load, those of `sampled` among them."""
    return index * 2_654_435_761 % 2**32 < _PROMPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go, and what each body's slot holds. `headers` may hold secrets: never logged or stored."""

    urls: tuple[str, ...]  # base URLs (http, https, unix:/path.sock); each request goes to one of them
    path: str  # e.g. /v1/completions
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extras: JsonMembers = field(default_factory=JsonMembers)  # cache_salt, API extras
    tls: Tls = field(default_factory=Tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """When a decided cohort is waited for: its certain misses may yet be answered, or turn out to be errors."""

    unanswered: int  # cohort requests that may be left, those that ended as errors among them
    misses: int  # with more than so many misses the run fails anyway, and nothing is waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """How the load is offered."""

    transport: Literal["wire", "httpx"] = "wire"
    stamps: Literal["kernel", "user"] | None = None  # of reads; None: the kernel's where it gives them
    timeout_s: float = 60.0  # of one request, from its scheduled instant
    max_concurrency: int | None = None  # models a gateway; the wait for a slot is logged and counted
    pacing: Pacing = field(default_factory=OnSchedule)  # when each request leaves
    routing: Routing = "round-robin"  # which of several URLs it goes to
    keepalive_s: float = 4.0  # a connection idle longer than this is not reused (vLLM closes at 5 s)
    slo: Slo = field(default_factory=Slo)  # to know when a cohort request is decided
    events: Events = "all"  # whose token events are recorded; all: every request is read promptly for that
    prewarm: int = 0  # connections opened to each URL just before t0
    early_fail_misses: int | None = None  # stop once more decided cohort misses than this; None: never early
    early_fail_after_ns: int = 0
    drain: Drain | None = None  # None: the load stops once the cohort is decided


@dataclass(slots=True)
class LiveCounts:
    """Counters the dispatcher keeps for the progress display; read at leisure from the same loop."""

    elapsed_ns: int = 0
    due: int = 0
    sent: int = 0
    in_flight: int = 0
    ok: int = 0
    errors: int = 0
    cohort_decided: int = 0
    cohort_misses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is decided of a cohort's requests so far, in one sending process or in all together."""

    undecided: int  # of all that the schedule has, those that are not due yet included
    misses: int
    errors: int
    unanswered: int  # certain misses that are still in flight

    def __add__(self, more: Standing) -> Standing:
        return Standing(
            undecided=self.undecided + more.undecided,
            misses=self.misses + more.misses,
            errors=self.errors + more.errors,
            unanswered=self.unanswered + more.unanswered,
        )


class Governor(Protocol):
    """Decides for several sending processes when the load begins and when it stops."""

    async def begin(self, stop_at: Callable[[int], None]) -> int:
        """This process is ready: t0 as ns of CLOCK_MONOTONIC. `stop_at` takes the instant of the end, ns since t0."""
        ...

    def tell(self, counts: LiveCounts, standing: Standing) -> None:
        """Called some twenty times a second."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One process's part of a plan."""

    indices: npt.NDArray[np.int64]  # the requests it sends, increasing
    worker: int  # its number, from 0
    governor: Governor


class RecordSink(Protocol):
    """Receives each request's row as it ends; must not block (the journal batches and writes off the loop)."""

    def add(self, row: RequestValues, events: list[tuple[int, int]]) -> None:
        """One finished request: its values of `analysis.schema.REQUEST_COLUMNS`, and its (at_ns, tokens) events."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """What a run leaves: request table and event table (analysis.schema), and what the sender saw of itself."""

    requests: pd.DataFrame
    events: pd.DataFrame
    facts: SenderFacts
    observed: Observation | None = None  # what the target reported meanwhile; None: it was not asked


ProgressHook = Callable[[LiveCounts], None]
