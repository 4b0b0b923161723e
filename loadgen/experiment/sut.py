"""The system under test as the rest of the program sees it: what receives a plan's load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import anyio

from loadgen.plan.types import RequestFormat, RunPlan
from loadgen.results.look import Look
from loadgen.send.api import ProgressHook, RecordSink, RunOutput, SendOptions

__all__ = ["RequestTerms", "Sut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """How a target takes requests and what keeps runs cold on it, found out by a few small requests."""

    format: RequestFormat | None = None  # None: as asked
    salted: bool = False  # requests carry a cache_salt
    content_unpaired: bool = False  # content must differ between rates: the cache cannot be proved cold
    events_per_read: float | None = None  # token events in one read of a lone stream; None: no stream was seen


class Sut(Protocol):
    """What receives a plan's load: a live server, or a simulated one in virtual time."""

    @property
    def label(self) -> str:
        """The target as a user knows it."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether no real server is behind it."""
        ...

    @property
    def model(self) -> str:
        """The model requests ask for."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """Tokens that the target's context holds, where it says so."""
        ...

    @property
    def terms(self) -> RequestTerms:
        """How the target takes requests, as found when it was opened."""
        ...

    @property
    def notes(self) -> list[str]:
        """What every output has to say about this target."""
        ...

    async def settle(self) -> str:
        """Wait until the target is idle and its state is as the policy wants it; what is odd about it, in words.

        Raises `TargetError`, and `ClientLimited` where this machine gives no connection to ask by.
        """
        ...

    async def settled(self) -> str:
        """Look at the idle target after a run; what is odd about it, in words. Raises as `settle`."""
        ...

    def looks(self) -> tuple[Look, ...]:
        """Every look at the idle target since the last call."""
        ...

    async def identity(self) -> Mapping[str, str]:
        """What the target says of itself. Raises `TargetUnreachable` when it is gone."""
        ...

    async def environment(self) -> Mapping[str, str]:
        """What the target runs on: machine, cards, libraries; what is not measured is named."""
        ...

    def changed(
        self,
        before: Mapping[str, str],
        after: Mapping[str, str],
        *,
        between_runs: bool = False,
        restarted: bool = False,
    ) -> str:
        """What differs between two identities that should not, in words; empty if nothing does.

        Between runs a restart is no difference under policies that restart; with `restarted` it never is.
        """
        ...

    async def send_load(
        self,
        plan: RunPlan,
        options: SendOptions,
        *,
        salt: str,
        sink: RecordSink | None,
        progress: ProgressHook,
        stop: anyio.Event,
    ) -> RunOutput:
        """Send the plan's load and return what was recorded. `stop` ends it at once."""
        ...
