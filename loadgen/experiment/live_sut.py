"""The live system under test: a server over HTTP, asked through `loadgen.target` and loaded through `loadgen.send`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace

import anyio
import anyio.to_thread

from analysis.records import outcome_is
from loadgen.common import defaults
from loadgen.common.errors import TargetUnfit, UsageError
from loadgen.common.headers import load_headers
from loadgen.common.members import JsonMembers
from loadgen.common.stopping import unless_stopped
from loadgen.common.tls import Tls
from loadgen.experiment.sut import RequestTerms, Sut
from loadgen.experiment.virtual_sut import VirtualSut
from loadgen.experiment.workers.count import sending_processes
from loadgen.experiment.workers.pool import Workers, opened_workers
from loadgen.plan.bodies import Bodies, BodyRing
from loadgen.plan.types import RunPlan
from loadgen.results.look import Look
from loadgen.scenario.model import Scenario
from loadgen.send.api import ProgressHook, RecordSink, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from loadgen.target.between import Between
from loadgen.target.command import check_command
from loadgen.target.findings import IDS, Adaptable
from loadgen.target.http import load_api_key
from loadgen.target.identity import changed
from loadgen.target.idle import IdleWatch
from loadgen.target.observe import Observer
from loadgen.target.probe import NoEndpoint
from loadgen.target.scraped import Page
from loadgen.target.target import Target, open_target
from loadgen.workload.workload import request_format

__all__ = ["LiveSut", "open_sut", "opened_target"]


def opened_target(scenario: Scenario, note: Callable[[str], None]) -> AbstractAsyncContextManager[Target]:
    """The scenario's server, waited for; `note` gets a line for each step meanwhile. Raises as `open_target` does."""
    return open_target(
        scenario.target,
        model=scenario.model,
        api_key=load_api_key(env=scenario.api_key_env, file=scenario.api_key_file),
        headers=load_headers(scenario.header),
        tls=Tls(
            ca_file=scenario.ca_file,
            cert_file=scenario.cert_file,
            key_file=scenario.key_file,
            insecure=scenario.insecure,
        ),
        proxied=scenario.transport == "httpx",
        ready_timeout_s=scenario.ready_timeout,
        progress=note,
    )


@asynccontextmanager
async def open_sut(scenario: Scenario, note: Callable[[str], None]) -> AsyncIterator[Sut]:
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
            raise UsageError("--target virtual cannot be combined with other targets; replicas are several URLs")
        yield VirtualSut(profile_name=scenario.target[0].partition(":")[2] or defaults.PROFILE)
        return
    count = sending_processes(scenario, note)
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(opened_target(scenario, note))
        workers = await stack.enter_async_context(opened_workers(count)) if count > 1 else None
        watches = [] if scenario.transport == "httpx" else [IdleWatch(http) for http in target.https]
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        observer = _observer(target, scenario)
        try:
            if observer is not None:
                await observer.start()
            sut = await LiveSut.of(target, scenario, note, watches)
            sut.observer, sut.workers = observer, workers
            yield sut
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
class LiveSut:
    """A live target under one cache policy."""

    target: Target
    scenario: Scenario
    terms: RequestTerms
    between: Between
    watches: Sequence[IdleWatch] = ()
    workers: Workers | None = None  # send the load, where more than one process does
    observer: Observer | None = None  # reads the target's metrics while load is on
    notes: list[str] = field(default_factory=list)

    @classmethod
    async def of(
        cls, target: Target, scenario: Scenario, note: Callable[[str], None], watches: Sequence[IdleWatch] = ()
    ) -> LiveSut:
        """Find out how the target takes requests, and what keeps runs cold on it.

        Raises `TargetUnfit` with the option to set where it cannot do the work asked.
        """
        asked, extras = request_format(scenario), JsonMembers.of(**scenario.extra)
        ask = Adaptable(prompt=scenario.prompt is None, salt=scenario.cache == "salt")
        try:
            found = await target.capabilities(asked, extras=extras, ask=ask)
        except NoEndpoint as error:
            other = "completions" if asked.endpoint == "chat" else "chat"
            raise TargetUnfit(f"{error}; if the server has the other one, pass --endpoint {other}") from None
        if found.needs:
            raise TargetUnfit(f"{target.label}: {found.needs[0]}")
        form, text_note = await target.exact_text(found.format, extras)
        between = Between(
            target=target,
            policy=scenario.cache,
            form=form,
            command=scenario.restart_command or scenario.between_command,
            ready_timeout_s=scenario.ready_timeout,
            progress=note,
        )
        sut = cls(
            target=target,
            between=between,
            scenario=scenario,
            terms=RequestTerms(
                format=form,
                salted=found.salt.accepted,
                content_unpaired=scenario.cache == "salt" and not found.salt.proved,
                events_per_read=found.events_per_read,
            ),
            watches=watches,
        )
        if scenario.insecure:
            sut.notes.append("the server's certificate was not verified (--insecure)")
        if scenario.cache == "keep":
            sut.notes.append("cache kept between runs: replicates are blocks of one history, not independent runs")
        # exact_text, which asks the tokenizer, notes how long texts are
        approximate = () if form.prompt == "ids" else (IDS,)
        sut.notes += [
            f"{one.feature}: {one.found}; {one.instead}" if one.feature in approximate else one.note
            for one in found.findings
            if one.note and one.surprise
        ]
        sut.notes += [text_note] if text_note else []
        for line in sut.notes:
            note(line)
        return sut

    @property
    def label(self) -> str:
        """See `Sut`."""
        return self.target.label

    @property
    def simulated(self) -> bool:
        """See `Sut`."""
        return self.target.simulated

    @property
    def model(self) -> str:
        """See `Sut`."""
        return self.target.model

    @property
    def max_model_len(self) -> int | None:
        """See `Sut`."""
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
        """See `Sut`."""
        return await self.between.settled()

    def looks(self) -> tuple[Look, ...]:
        """See `Sut`."""
        return tuple(self.between.take_looks())

    async def identity(self) -> Mapping[str, str]:
        """See `Sut`."""
        return await self.target.identity()

    async def environment(self) -> Mapping[str, str]:
        """See `Sut`."""
        return await self.target.environment()

    def changed(
        self,
        before: Mapping[str, str],
        after: Mapping[str, str],
        *,
        between_runs: bool = False,
        restarted: bool = False,
    ) -> str:
        """See `Sut`; a restart between runs is what two of the policies are for."""
        meant = between_runs and self.scenario.cache in ("restart", "command")
        return changed(before, after, restarted=restarted or meant)

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
        """Send the plan over HTTP."""
        extras = JsonMembers.of(**self.scenario.extra)
        if self.terms.salted:
            extras |= JsonMembers.of(cache_salt=salt)
        endpoint = self.target.endpoint(plan.format, extras)
        slot = JsonMembers.of(model=endpoint.model) | endpoint.extras
        if self.watches:
            options = replace(options, keepalive_s=min(watch.keepalive_s() for watch in self.watches))
        observer, observed = self.observer, None
        with closing(LoopClock()) as clock:
            if observer is not None:
                await unless_stopped(stop, self._observe, "before the load began")
            try:
                if self.workers is not None:
                    output = await self.workers.send(
                        plan, slot, endpoint, options, clock=clock, sink=sink, progress=progress, stop=stop
                    )
                else:
                    bodies = BodyRing(Bodies(plan, slot))
                    output = await send_run(
                        plan, bodies, endpoint, options, clock=clock, sink=sink, progress=progress, stop=stop
                    )
            finally:
                t0_ns = time.monotonic_ns() - clock.now_ns()
                if observer is not None and not stop.is_set():  # a stopped run is not judged, and must end at once
                    observed = await unless_stopped(stop, lambda: observer.end(t0_ns), "when the load had ended")
        given_up = outcome_is(output.requests, "censored", "aborted", "timeout")
        self.between.load_ended(cancelled=bool(given_up.any()) or output.facts.workers_lost > 0)
        return replace(output, observed=observed)

    async def _observe(self) -> None:
        assert self.observer is not None
        if self.workers is not None:
            await self.workers.man()  # one that died has another in its place
        await self.observer.begin(() if self.workers is None else self.workers.pids)
