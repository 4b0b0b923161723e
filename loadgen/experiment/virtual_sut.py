"""The simulated system under test: an emulator profile in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from loadgen.emulator.profiles import Profile, load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.experiment.sut import RequestTerms
from loadgen.plan.types import RunPlan
from loadgen.results.look import Look
from loadgen.send.api import ProgressHook, RecordSink, RunOutput, SendOptions

__all__ = ["VirtualSut"]


@dataclass(slots=True, kw_only=True)
class VirtualSut:
    """An emulator profile in virtual time: the same plans, records and verdicts, with no waiting and no client."""

    profile_name: str
    profile: Profile = field(init=False)
    terms: RequestTerms = field(default_factory=RequestTerms)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.profile = load_profile(self.profile_name)
        self.notes.append(f"SIMULATED in virtual time, no server: {self.profile.description}")

    @property
    def label(self) -> str:
        """See `Sut`."""
        return f"virtual:{self.profile_name}"

    @property
    def simulated(self) -> bool:
        """See `Sut`."""
        return True

    @property
    def model(self) -> str:
        """See `Sut`."""
        return "emulator"

    @property
    def max_model_len(self) -> int | None:
        """See `Sut`."""
        return self.profile.server.max_model_len

    async def settle(self) -> str:
        """Every simulated run begins idle and cold."""
        return ""

    async def settled(self) -> str:
        """Nobody else is there."""
        return ""

    def looks(self) -> tuple[Look, ...]:
        """There is nothing to look at."""
        return ()

    async def identity(self) -> Mapping[str, str]:
        """See `Sut`."""
        return {"profile": self.profile_name, "description": self.profile.description}

    async def environment(self) -> Mapping[str, str]:
        """A simulated run has no machine."""
        return {}

    def changed(
        self,
        before: Mapping[str, str],
        after: Mapping[str, str],
        *,
        between_runs: bool = False,
        restarted: bool = False,
    ) -> str:
        """A profile does not change."""
        return ""

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
        """Simulate the plan; nothing goes through the journal, since nothing takes time that could be lost."""
        return await anyio.to_thread.run_sync(simulate_run, plan, self.profile, options)
