"""What plans are offered to: a live target over HTTP, asked through `loadgen.target`, loaded by `loadgen.send`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread

from analysis.records import outcome_is
from loadgen import defaults
from loadgen.emulator.profiles import Profile, load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.errors import TargetUnfit, UsageError
from loadgen.offer import Offering
from loadgen.plan.bodies import Bodies, BodyRing
from loadgen.plan.types import RequestFormat, RunPlan
from loadgen.scenario import Scenario
from loadgen.send.api import ProgressHook, RecordSink, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from loadgen.target.between import Between
from loadgen.target.command import check_command
from loadgen.target.findings import IDS, Unasked
from loadgen.target.headers import load_headers
from loadgen.target.http import load_api_key
from loadgen.target.identity import changed
from loadgen.target.idle import IdleWatch
from loadgen.target.observe import Observer, Page
from loadgen.target.probe import NoEndpoint
from loadgen.target.target import Target, open_target
from loadgen.workload import request_format

__all__ = ["LiveOffering", "VirtualOffering", "open_offering", "opened_target"]


def opened_target(scenario: Scenario, note: Callable[[str], None]) -> AbstractAsyncContextManager[Target]:
    """The scenario's server, waited for; `note` is told in words meanwhile. Raises as `open_target` does."""
    return open_target(
        scenario.target,
        model=scenario.model,
        api_key=load_api_key(env=scenario.api_key_env, file=scenario.api_key_file),
        headers=load_headers(scenario.header),
        ca_file=scenario.ca_file,
        cert_file=scenario.cert_file,
        key_file=scenario.key_file,
        insecure=scenario.insecure,
        proxied=scenario.transport == "httpx",
        ready_timeout_s=scenario.ready_timeout,
        progress=note,
    )


@asynccontextmanager
async def open_offering(scenario: Scenario, note: Callable[[str], None]) -> AsyncIterator[Offering]:
    """Open the scenario's target; it is closed (and an emulator stopped) when the context ends.

    Raises `UsageError`, `TargetUnreachable` or `TargetUnfit` with one line, before any load.
    """
    for option, command in (
        ("--restart-command", scenario.restart_command),
        ("--between-command", scenario.between_command),
    ):
        if command:
            check_command(option, command)
    if scenario.target[0].partition(":")[0] == "virtual":
        if len(scenario.target) > 1:
            raise UsageError("--target virtual stands alone; several targets are several URLs")
        yield VirtualOffering(profile_name=scenario.target[0].partition(":")[2] or defaults.PROFILE)
        return
    async with opened_target(scenario, note) as target:
        watches = [] if scenario.transport == "httpx" else [IdleWatch(http) for http in target.https]
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        observer = _observer(target, scenario)
        try:
            if observer is not None:
                await observer.start()
            offering = await LiveOffering.of(target, scenario, note, watches)
            offering.observer = observer
            yield offering
        finally:
            if observer is not None:
                await observer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _observer(target: Target, scenario: Scenario) -> Observer | None:
    if not scenario.scrape_interval:
        return None
    own = [Page.of_target(http.base, http.headers) for http in target.https]
    named = (entry.partition("=") for entry in scenario.metrics_url)
    others = [Page(name=name, url=url) for name, _, url in named]
    return Observer(own, others, interval_s=scenario.scrape_interval, tls=target.tls)


@dataclass(slots=True, kw_only=True)
class LiveOffering:
    """A live target under one cache policy."""

    target: Target
    scenario: Scenario
    salted: bool  # the server takes a cache_salt
    content_unpaired: bool  # that it works could not be proved: content differs between rates instead
    between: Between
    format: RequestFormat | None = None
    watches: Sequence[IdleWatch] = ()
    observer: Observer | None = None  # reads the target's metrics while load is on
    events_per_read: float | None = None  # of a lone stream
    notes: list[str] = field(default_factory=list)

    @classmethod
    async def of(
        cls, target: Target, scenario: Scenario, note: Callable[[str], None], watches: Sequence[IdleWatch] = ()
    ) -> LiveOffering:
        """Find out how the target takes requests, and what keeps runs cold on it.

        Raises `TargetUnfit` with the option to set where it cannot do the work asked.
        """
        asked = request_format(scenario)
        ask = Unasked(prompt=scenario.prompt is None, salt=scenario.cache == "salt")
        try:
            found = await target.capabilities(asked, extras=scenario.extra, ask=ask)
        except NoEndpoint as error:
            other = "completions" if asked.endpoint == "chat" else "chat"
            raise TargetUnfit(f"{error}; if the server has the other one, pass --endpoint {other}") from None
        if found.needs:
            raise TargetUnfit(f"{target.label}: {found.needs[0]}")
        form, told = await target.exact_text(found.format, scenario.extra)
        between = Between(
            target=target,
            policy=scenario.cache,
            form=form,
            command=scenario.restart_command or scenario.between_command,
            ready_timeout_s=scenario.ready_timeout,
            progress=note,
        )
        offering = cls(
            target=target,
            between=between,
            scenario=scenario,
            salted=found.salt.accepted,
            content_unpaired=scenario.cache == "salt" and not found.salt.proved,
            format=form,
            watches=watches,
            events_per_read=found.events_per_read,
        )
        if scenario.insecure:
            offering.notes.append("the server's certificate was not verified (--insecure)")
        if scenario.cache == "keep":
            offering.notes.append("cache kept between runs: replicates are blocks of one history, not independent runs")
        # how long texts are is told by whoever asked the tokenizer
        approximate = () if form.prompt == "ids" else (IDS,)
        offering.notes += [
            f"{one.feature}: {one.found}; {one.instead}" if one.feature in approximate else one.note
            for one in found.findings
            if one.note and one.surprise
        ]
        offering.notes += [told] if told else []
        for line in offering.notes:
            note(line)
        return offering

    @property
    def label(self) -> str:
        """See `Offering`."""
        return self.target.label

    @property
    def simulated(self) -> bool:
        """See `Offering`."""
        return self.target.simulated

    @property
    def model(self) -> str:
        """See `Offering`."""
        return self.target.model

    @property
    def max_model_len(self) -> int | None:
        """See `Offering`."""
        return self.target.max_model_len

    async def settle(self) -> str:
        """Wait until nothing runs or waits, act as the cache policy says, and see whether the target is well."""
        odd = await self.between.settle()
        if odd and self.between.first:  # no run has it in its record
            self.notes.append(f"when the target was opened, {odd}")
        if self.between.unseen and self.between.unseen not in self.notes:
            self.notes.append(self.between.unseen)
        return odd

    async def settled(self) -> str:
        """See `Offering`."""
        return await self.between.settled()

    def looks(self) -> list[dict[str, Any]]:
        """See `Offering`."""
        return [asdict(look) for look in self.between.take_looks()]

    async def identity(self) -> Mapping[str, str]:
        """See `Offering`."""
        return await self.target.identity()

    async def environment(self) -> Mapping[str, str]:
        """See `Offering`."""
        return await self.target.environment()

    def changed(
        self,
        before: Mapping[str, str],
        after: Mapping[str, str],
        *,
        between_runs: bool = False,
        restarted: bool = False,
    ) -> str:
        """See `Offering`; a restart between runs is what two of the policies are for."""
        meant = between_runs and self.scenario.cache in ("restart", "command")
        return changed(before, after, restarted=restarted or meant)

    async def offer(
        self,
        plan: RunPlan,
        options: SendOptions,
        *,
        salt: str,
        sink: RecordSink | None,
        progress: ProgressHook,
        stop: anyio.Event,
    ) -> RunOutput:
        """Send the plan over HTTP."""
        extras = {**self.scenario.extra, **({"cache_salt": salt} if self.salted else {})}
        endpoint = self.target.endpoint(plan.format, extras)
        bodies = BodyRing(Bodies(plan, {"model": endpoint.model, **endpoint.extras}))
        if self.watches:
            options = replace(options, keepalive_s=min(watch.keepalive_s() for watch in self.watches))
        clock = LoopClock()
        observed = None
        if self.observer is not None:
            await self.observer.begin()
        try:
            output = await send_run(
                plan, bodies, endpoint, options, clock=clock, sink=sink, progress=progress, stop=stop
            )
        finally:
            if self.observer is not None and not stop.is_set():  # a stopped run is not judged, and must end at once
                observed = await self.observer.end(time.monotonic_ns() - clock.now_ns())
            clock.close()
        output.observed = observed
        given_up = outcome_is(output.requests, "censored", "aborted", "timeout")
        self.between.load_ended(cancelled=bool(given_up.any()))
        output.facts = replace(output.facts, survey_events_per_read=self.events_per_read)
        return output


@dataclass(slots=True, kw_only=True)
class VirtualOffering:
    """An emulator profile in virtual time: the same plans, records and verdicts, with no waiting and no client."""

    profile_name: str
    profile: Profile = field(init=False)
    content_unpaired: bool = False
    format: RequestFormat | None = None
    events_per_read: float | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.profile = load_profile(self.profile_name)
        self.notes.append(f"SIMULATED in virtual time, no server: {self.profile.description}")

    @property
    def label(self) -> str:
        """See `Offering`."""
        return f"virtual:{self.profile_name}"

    @property
    def simulated(self) -> bool:
        """See `Offering`."""
        return True

    @property
    def model(self) -> str:
        """See `Offering`."""
        return "emulator"

    @property
    def max_model_len(self) -> int | None:
        """See `Offering`."""
        return self.profile.server.max_model_len

    async def settle(self) -> str:
        """Every simulated run begins idle and cold."""
        return ""

    async def settled(self) -> str:
        """Nobody else is there."""
        return ""

    def looks(self) -> list[dict[str, Any]]:
        """There is nothing to look at."""
        return []

    async def identity(self) -> Mapping[str, str]:
        """See `Offering`."""
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

    async def offer(
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
