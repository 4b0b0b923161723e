"""One run from beginning to end: prepares the process, runs a dispatcher, restores what it changed, says what it
saw."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from analysis.units import NS_PER_S
from analysis.verdict import SenderFacts
from loadgen.common.errors import UsageError
from loadgen.common.redact import secrets_of
from loadgen.common.stopping import StopSignal, unless_stopped
from loadgen.plan.types import RunPlan
from loadgen.send.active import BodySource, Transport
from loadgen.send.address import connection_limit, raise_descriptor_limit
from loadgen.send.api import Endpoint, ProgressHook, RecordSink, RunOutput, SendOptions, Share
from loadgen.send.clock import Clock, ClockHealth
from loadgen.send.dispatch import Dispatcher
from loadgen.send.heartbeat import Heartbeat
from loadgen.send.httpx_transport import HttpxTransport
from loadgen.send.pacing import FixedConcurrency, OnSchedule
from loadgen.send.stamped import StampedTransport
from loadgen.send.stamps import stamps_refused
from loadgen.send.table import Tables
from loadgen.send.wire import WireTransport

__all__ = ["send_run"]

PROGRESS_S: Final = 0.2
TELL_S: Final = 0.05  # how often a governor is told
PERIOD_S: Final = 0.05  # of batched reads, at most
PERIODS_A_BOUND: Final = 10  # of the SLO
_PREFILL_SLICE_NS: Final = 50_000_000
_PREFILL_SLICES: Final = 200
_BEFORE: Final = "before the load began"
_REFUSED: Final = "this machine refused a connection, for it had no port or file descriptor left"


async def send_run(
    plan: RunPlan,
    bodies: BodySource,
    endpoint: Endpoint,
    options: SendOptions,
    *,
    clock: Clock,
    sink: RecordSink | None = None,
    progress: ProgressHook | None = None,
    stop: StopSignal | None = None,
    share: Share | None = None,
) -> RunOutput:
    """Offer one plan to an endpoint and return the tables and the facts of the run.

    `clock`'s t0 is set here, after names are resolved and the first bodies are ready. `sink` gets every row as its
    request ends, `progress` the live counts five times a second. `stop` ends the load early, with what is in flight
    cancelled. Of a plan that several processes send, `share` is this one's part. The process is changed for the time of
    the run only (garbage collection is frozen and off), except that the soft limit of open files stays raised.

    Raises `UsageError` (URL, certificate, header) or `TargetUnreachable` (unknown name) before anything is sent, and
    `Aborted` where the user stops it before t0.
    """
    raise_descriptor_limit()
    transport = _transport(endpoint, options, clock)
    stop = stop or asyncio.Event()
    await unless_stopped(stop, transport.open, _BEFORE)
    try:
        await _prefill(bodies)
        await unless_stopped(stop, lambda: transport.prewarm(options.prewarm), _BEFORE)
        limit = connection_limit(endpoint.urls)
        stopped = asyncio.Event()
        dispatcher = Dispatcher(
            plan=plan,
            bodies=bodies,
            transport=transport,
            clock=clock,
            options=options,
            tables=Tables(
                sink, worker=share.worker if share else 0, secrets=secrets_of(endpoint.headers), keep=options.events
            ),
            targets=len(endpoint.urls),
            on_stopped=stopped.set,
            indices=share.indices if share else None,
            governed=share is not None,
        )
        heartbeat = Heartbeat(clock)
        health = ClockHealth.read()
        with _no_garbage_collection():
            clock.start(await share.governor.begin(dispatcher.stop_at) if share else None)
            heartbeat.start()
            dispatcher.start()
            try:
                await _until_stopped(dispatcher, stopped, stop, progress, share)
            finally:
                heartbeat.stop()
                if dispatcher.failure is None:
                    dispatcher.stop()
                    await stopped.wait()
        if dispatcher.failure is not None:
            raise dispatcher.failure
        later = ClockHealth.read()
    finally:
        await transport.close()
    if transport.opened_peak is not None:
        limit = min(limit or transport.opened_peak, transport.opened_peak)
    refused = transport.opened_peak is not None
    stamps = transport.stamps if isinstance(transport, StampedTransport) else None
    if stamps is not None:
        stamps.measure()
    facts = SenderFacts(
        rate=0.0 if isinstance(options.pacing, FixedConcurrency) else plan.rate,
        warmup_ns=plan.window.warmup_ns,
        window_ns=plan.window.window_ns,
        stop_ns=dispatcher.stop_ns,
        due=dispatcher.due,
        sent=dispatcher.sent,
        cohort_due=dispatcher.cohort.due,
        open_loop=isinstance(options.pacing, OnSchedule),
        stopped_early=dispatcher.cohort.stopped_early,
        heartbeat_p99_s=heartbeat.p99_s(),
        heartbeat_max_s=heartbeat.max_s(),
        live_area_s=dispatcher.area_s,
        peak_in_flight=dispatcher.peak_in_flight,
        connection_limit=limit,
        concurrency_cap=options.max_concurrency,
        encode_starved=bodies.starved,
        suspended_s=health.suspended_s(later),
        clock_ratio_error=health.ratio_error(later),
        wall_step_s=health.wall_step_s(later),
        urls=endpoint.urls if len(endpoint.urls) > 1 else (),
        routing=options.routing if len(endpoint.urls) > 1 else "",
        target_died=dispatcher.target_died,
        stamps="user" if stamps is None else "kernel",
        stamps_moved_s=0.0 if stamps is None else stamps.moved_ns / NS_PER_S,
        stamps_by_reading=0.0 if stamps is None or not stamps.reads else stamps.by_reading / stamps.reads,
        connections_refused=f"{_REFUSED}, with {transport.opened_peak} on a request" if refused else "",
    )
    tables = dispatcher.tables
    return RunOutput(requests=tables.requests(), events=tables.events(), facts=facts)


def _transport(endpoint: Endpoint, options: SendOptions, clock: Clock) -> Transport:
    """The kernel's stamps where they can be had. Raises `UsageError` where they were asked for and cannot."""
    keepalive_s = options.keepalive_s
    if options.transport == "httpx":
        if options.stamps == "kernel":
            raise UsageError("--stamps kernel: httpx reads sockets itself: use --transport wire, or --stamps user")
        return HttpxTransport(endpoint, clock, keepalive_s=keepalive_s)
    why_not = stamps_refused(endpoint.urls) if options.stamps != "user" else ""
    if options.stamps == "kernel" and why_not:
        raise UsageError(f"--stamps kernel: {why_not}: use --stamps user")
    if options.stamps == "user" or why_not:
        return WireTransport(endpoint, clock, keepalive_s=keepalive_s)
    return StampedTransport(endpoint, clock, keepalive_s=keepalive_s, period_ns=_period_ns(options))


def _period_ns(options: SendOptions) -> int:
    """How often a request is read after its first token, ns; 0: at once.

    At once where the end of one request lets another one go, and where everybody's token events are wanted.
    """
    if options.events == "all":
        return 0
    if not isinstance(options.pacing, OnSchedule) or options.max_concurrency or options.routing == "least-in-flight":
        return 0
    slo = options.slo
    bounds = [bound for bound in (slo.ttft_s, slo.e2e_s) if bound is not None]
    return round(min([PERIOD_S, *(bound / PERIODS_A_BOUND for bound in bounds)]) * NS_PER_S)


async def _prefill(bodies: BodySource) -> None:
    """Fill the ring before t0, in slices that leave the loop alive; a ring that is slow to fill is not waited for."""
    for _ in range(_PREFILL_SLICES):
        if bodies.fill(0, _PREFILL_SLICE_NS) == 0:
            return
        await asyncio.sleep(0)


async def _until_stopped(
    dispatcher: Dispatcher,
    stopped: asyncio.Event,
    stop: StopSignal,
    progress: ProgressHook | None,
    share: Share | None,
) -> None:
    waits: list[asyncio.Task[object]] = [asyncio.create_task(stopped.wait())]
    waits.append(asyncio.create_task(_wait(stop)))
    period_s = PROGRESS_S if share is None else TELL_S
    try:
        while True:
            done, _ = await asyncio.wait(waits, timeout=period_s, return_when=asyncio.FIRST_COMPLETED)
            if progress is not None:
                progress(dispatcher.counts())
            if share is not None:
                share.governor.tell(dispatcher.counts(), dispatcher.cohort.standing())
            if done:
                return
    finally:
        for wait in waits:
            wait.cancel()


async def _wait(stop: StopSignal) -> object:
    return await stop.wait()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Freeze what exists and switch collection off: a full collection amid a run pauses it for up to 200 ms."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
