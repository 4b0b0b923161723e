"""The coordinator: sending processes that live as long as an experiment, and one run at a time on all of them.

Theory of operation. The processes are started once, since importing takes a second, and get an order for every run.
When all are ready each is told the same t0, an instant of CLOCK_MONOTONIC a little ahead. Twenty times a second they
say what is decided of their requests; the coordinator adds that up and asks the rule of a single process (`why_over`).
The end is an instant a little ahead, too, so that all processes stop at the same one and their parts add up to a run of
one process: same requests, same order, same conservation of ∫N(t)dt.

A process that ends or no longer answers stops the run at once. What it had sent stays due, so the run is INVALID; the
next run gets a new process in its place.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

import anyio
import anyio.abc

from loadgen.common.child import environment, let_go, module_command
from loadgen.common.errors import ClientLimited
from loadgen.common.members import JsonMembers
from loadgen.common.stopping import StopSignal, unless_stopped
from loadgen.experiment.workers.merge import counts_together, run_of
from loadgen.experiment.workers.messages import Channel, Done, Failed, Order, Ready, Start, StopAt, Tally
from loadgen.plan.types import RunPlan
from loadgen.results.journal import Journal
from loadgen.send.api import Endpoint, ProgressHook, RecordSink, RunOutput, SendOptions, Standing
from loadgen.send.clock import Clock
from loadgen.send.cohort import why_over

__all__ = ["Workers", "opened_workers"]

_START_NS: Final = 30_000_000  # from the order to start to t0
_STOP_NS: Final = 30_000_000  # from the decision to stop to the instant of it
_PROGRESS_S: Final = 0.2
_PATIENCE_S: Final = 60.0  # with a process that should have ended its part


class _Seat:
    """One sending process, as the coordinator sees it."""

    def __init__(self, process: anyio.abc.Process, channel: Channel, news: asyncio.Event) -> None:
        self.process, self._channel, self._news = process, channel, news
        self.alive = True
        self.clear()
        self._listening = asyncio.create_task(self._listen())

    def clear(self) -> None:
        """Forget the last run."""
        self.ready = False
        self.tally: Tally | None = None
        self.output: RunOutput | None = None
        self.error: Exception | None = None

    def send(self, message: Order | Start | StopAt) -> None:
        """Tell the process."""
        if self.alive:
            self._channel.send(message)

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come of this run."""
        return not self.alive or self.output is not None or self.error is not None

    async def close(self) -> None:
        """End the process and wait for it."""
        self.alive = False
        self._listening.cancel()
        self._channel.close()
        with suppress(ProcessLookupError):
            self.process.kill()
        await let_go(self.process)
        with suppress(asyncio.CancelledError):
            await self._listening

    async def _listen(self) -> None:
        async for message in self._channel:
            match message:
                case Ready():
                    self.ready = True
                case Tally():
                    self.tally = message
                case Done(output):
                    self.output = output
                case Failed(error):
                    self.error = error
            self._news.set()
        self.alive = False
        self._news.set()


@asynccontextmanager
async def opened_workers(count: int) -> AsyncIterator[Workers]:
    """So many sending processes, which end when the context does."""
    workers = Workers(count)
    try:
        await workers.man()
        yield workers
    finally:
        await workers.close()


class Workers:
    """The sending processes of one experiment."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seats: dict[int, _Seat] = {}
        self._news = asyncio.Event()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are alive."""
        return tuple(seat.process.pid for seat in self._seats.values() if seat.alive)

    async def man(self) -> None:
        """Start the processes that are missing."""
        for worker in range(self._count):
            seat = self._seats.get(worker)
            if seat is None or not seat.alive:
                if seat is not None:
                    await seat.close()
                self._seats[worker] = await _started(worker, self._count, self._news)

    async def close(self) -> None:
        """End them all."""
        with anyio.CancelScope(shield=True):
            for seat in self._seats.values():
                await seat.close()
            self._seats.clear()

    async def send(
        self,
        plan: RunPlan,
        slot: JsonMembers,
        endpoint: Endpoint,
        options: SendOptions,
        *,
        clock: Clock,
        sink: RecordSink | None,
        progress: ProgressHook,
        stop: StopSignal,
    ) -> RunOutput:
        """Offer one plan from all processes together; as `send_run`, which does it from one.

        Raises what `send_run` raises, and `ClientLimited` where a process ended before t0.
        """
        journal = sink if isinstance(sink, Journal) else None
        whole = False
        try:
            await unless_stopped(
                stop, lambda: self._prepare(plan, slot, endpoint, options, journal), "before the load began"
            )
            t0_ns = time.monotonic_ns() + _START_NS
            clock.start(t0_ns)
            for seat in self._seats.values():
                seat.send(Start(t0_ns))
            stopped_early = await self._governed(plan, options, clock, journal, progress, stop)
            whole = True
        finally:
            if not whole:  # they still hold the order
                await self.close()
        return self._merged(plan, endpoint, stopped_early=stopped_early)

    async def _prepare(
        self, plan: RunPlan, slot: JsonMembers, endpoint: Endpoint, options: SendOptions, journal: Journal | None
    ) -> None:
        await self.man()
        for worker, seat in self._seats.items():
            seat.clear()
            share = options.prewarm // self._count + (worker < options.prewarm % self._count)
            order = Order(
                plan=plan,
                slot=slot,
                endpoint=endpoint,
                options=replace(options, prewarm=share),
                worker=worker,
                workers=self._count,
                journal=None if journal is None else journal.part(worker),
            )
            seat.send(order)
        while not all(seat.ready for seat in self._seats.values()):
            for worker, seat in self._seats.items():
                if seat.error is not None:
                    raise seat.error
                if not seat.alive:
                    raise ClientLimited(f"sending process {worker} ended before the load began: try again")
            await self._heard(_PROGRESS_S)

    async def _governed(
        self,
        plan: RunPlan,
        options: SendOptions,
        clock: Clock,
        journal: Journal | None,
        progress: ProgressHook,
        stop: StopSignal,
    ) -> bool:
        """Wait for the end of the run, which is decided here; whether it came early because the run cannot pass."""
        seats = list(self._seats.values())
        stop_ns, stopped_early, told_s = -1, False, 0.0
        while not all(seat.ended for seat in seats):
            await self._heard(_PROGRESS_S)
            now_ns = clock.now_ns()
            tallies = [seat.tally for seat in seats if seat.tally is not None]
            if stop_ns < 0:
                gone = any(seat.ended for seat in seats)  # none ends before it is told to, or the schedule does
                why = "" if len(tallies) < len(seats) else why_over(_sum(tallies), now_ns, plan.window, options)
                if gone or why or stop.is_set():
                    stop_ns, stopped_early = now_ns + _STOP_NS, why == "early fail"
                    for seat in seats:
                        seat.send(StopAt(stop_ns))
            elif now_ns > stop_ns + _PATIENCE_S * 1e9:
                for seat in seats:
                    if not seat.ended:
                        await seat.close()
            if journal is not None:
                failed = [tally.journal_failure for tally in tallies if tally.journal_failure is not None]
                journal.failure = journal.failure or next(iter(failed), None)
            if time.monotonic() - told_s >= _PROGRESS_S or (journal is not None and journal.failure is not None):
                told_s = time.monotonic()
                progress(counts_together([tally.counts for tally in tallies], now_ns))
        progress(counts_together([seat.tally.counts for seat in seats if seat.tally is not None], clock.now_ns()))
        return stopped_early

    def _merged(self, plan: RunPlan, endpoint: Endpoint, *, stopped_early: bool) -> RunOutput:
        seats = self._seats.values()
        for seat in seats:
            if seat.error is not None:
                raise seat.error
        parts = [seat.output for seat in seats if seat.output is not None]
        if not parts:
            raise ClientLimited("every sending process ended during the run: see whether memory is short")
        lost = len(seats) - len(parts)
        merged = run_of(plan, parts, lost=lost, stopped_early=stopped_early, urls=endpoint.urls)
        for seat in seats:
            seat.clear()
        return merged

    async def _heard(self, timeout_s: float) -> None:
        """Wait until a process says something, or ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()


def _sum(tallies: list[Tally]) -> Standing:
    total = tallies[0].standing
    for tally in tallies[1:]:
        total += tally.standing
    return total


async def _started(worker: int, count: int, news: asyncio.Event) -> _Seat:
    """Start a process, on a core of its own where one is left for this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await anyio.open_process(
            [*module_command("loadgen.experiment.workers.process"), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None,
            env=environment(),
            start_new_session=True,  # Ctrl-C, which reaches a whole session, is the coordinator's alone
            pass_fds=(theirs.fileno(),),
        )
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if count < len(cores):
            with suppress(OSError):
                os.sched_setaffinity(process.pid, {cores[1 + worker]})
    try:
        return _Seat(process, await Channel.of(ours), news)
    except BaseException:  # the user may stop just now
        ours.close()
        process.kill()
        await let_go(process)
        raise
