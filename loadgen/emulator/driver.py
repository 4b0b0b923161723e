"""Runs a sans-IO model in real time: arrivals go in, tokens reach the request that waits for them.

Theory of operation. One alarm is set to the model's next instant. When it rings, everything due is taken from the
model in one go and handed to the channels of the requests concerned; each channel wakes its request's coroutine once,
however many tokens came. All instants are absolute monotonic ns counted from the arrival stamps, so lateness of one
wake-up never carries over to the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.common.timer import Alarm
from loadgen.emulator.model import Emission, Job, Model

__all__ = ["Batch", "Channel", "Driver"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens that came out since the last look, and when the model says the latest of them did."""

    tokens: int
    due_ns: int
    finished: bool


class Channel:
    """What one request waits on, and what the model said of it. Single consumer, same loop as the driver."""

    def __init__(self) -> None:
        self.first: Emission | None = None  # the model's first word on this request
        self.latest: Emission | None = None
        self._tokens = 0
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None

    def push(self, emission: Emission) -> None:
        """Called by the driver."""
        if self.first is None:
            self.first = emission
        self.latest = emission
        self._tokens += emission.tokens
        self._wake()

    def hang_up(self) -> None:
        """The client is gone: `next` answers `None` from now on."""
        self._gone = True
        self._wake()

    async def next(self) -> Batch | None:
        """The tokens that came out since the last call, waiting for one at least; `None` once the client is gone."""
        while not (self._tokens or self._gone):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._gone:
            return None
        assert self.latest is not None
        batch = Batch(self._tokens, self.latest.at_ns, self.latest.finished)
        self._tokens = 0
        return batch

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Driver:
    """One model on one running loop; make it inside the loop. `on_gap` hears of (seconds a token, tokens)."""

    def __init__(self, model: Model, on_gap: Callable[[float, int], None]) -> None:
        self.model = model
        self._on_gap = on_gap
        self._channels: dict[int, Channel] = {}
        self._alarm = Alarm(asyncio.get_running_loop(), self._ring)

    def submit(self, job: Job, arrived_ns: int) -> Channel:
        """Hand a job to the model. Raises `Busy`."""
        due_ns = self.model.next_ns()
        if due_ns is not None and due_ns <= arrived_ns:
            self._take(arrived_ns)
        self.model.submit(job, arrived_ns)
        channel = self._channels[job.key] = Channel()
        self._arm()
        return channel

    def leave(self, key: int) -> None:
        """The client of this job went away."""
        if self._channels.pop(key, None) is not None:
            self.model.cancel(key, time.monotonic_ns())
            self._arm()

    def settle(self) -> None:
        """Advance the model to now, before its gauges are read."""
        self._take(time.monotonic_ns())
        self._arm()

    def close(self) -> None:
        """Stop."""
        self._alarm.close()

    def _ring(self) -> None:
        self._take(time.monotonic_ns())
        self._arm()

    def _take(self, now_ns: int) -> None:
        for emission in self.model.advance(now_ns):
            channel = self._channels.get(emission.key)
            if channel is None:
                continue
            if channel.latest is not None:
                self._on_gap((emission.at_ns - channel.latest.at_ns) / 1e9 / emission.tokens, emission.tokens)
            channel.push(emission)
            if emission.finished:
                del self._channels[emission.key]

    def _arm(self) -> None:
        next_ns = self.model.next_ns()
        if next_ns is not None:
            self._alarm.set(next_ns)
