"""A sending process: `python -m loadgen.experiment.workers.process DESCRIPTOR`, started by the coordinator.

It waits for orders, sends its part of each run's plan, and ends with its channel, whatever it is doing: so none is left
when the coordinator is gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Final

import numpy as np

from loadgen.common.errors import LoadgenError
from loadgen.common.loop import run_loop
from loadgen.experiment.workers.messages import Channel, Done, Failed, Order, Ready, Start, StopAt, Tally
from loadgen.plan.bodies import Bodies, BodyRing
from loadgen.results.journal import Journal
from loadgen.send.api import LiveCounts, Share, Standing
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run

_AHEAD_BYTES: Final = 256 * 2**20  # of encoded bodies, in all processes together


class _Member:
    """This process's side of a run: the governor that its sender is given."""

    def __init__(self, channel: Channel, order: Order) -> None:
        self._channel = channel
        self._order = order
        self._t0_ns: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stop_at: Callable[[int], None] | None = None
        self._journal: Journal | None = None
        self._told: tuple[Standing, int] | None = None

    async def begin(self, stop_at: Callable[[int], None]) -> int:
        """See `Governor`."""
        self._stop_at = stop_at
        self._channel.send(Ready())
        return await self._t0_ns

    def tell(self, counts: LiveCounts, standing: Standing) -> None:
        """See `Governor`. What has not changed is not said again."""
        if (news := (standing, counts.due + counts.ok + counts.errors)) != self._told:
            self._told = news
            self._channel.send(Tally(counts, standing, None if self._journal is None else self._journal.failure))

    def take(self, message: Start | StopAt) -> None:
        """What the coordinator decided."""
        if isinstance(message, Start):
            self._t0_ns.set_result(message.t0_ns)
        elif self._stop_at is not None:
            self._stop_at(message.at_ns)

    async def run(self) -> None:
        """Carry out the order, and say how it ended."""
        try:
            await self._send()
        except (LoadgenError, OSError) as error:
            self._channel.send(Failed(error))
        except Exception as error:
            fault = RuntimeError(f"sending process {self._order.worker}: {type(error).__name__}: {error}")
            self._channel.send(Failed(fault))

    async def _send(self) -> None:
        order = self._order
        indices = np.arange(order.worker, len(order.plan), order.workers, dtype=np.int64)
        bodies = BodyRing(Bodies(order.plan, order.slot), indices, max_bytes=_AHEAD_BYTES // order.workers)
        with ExitStack() as stack:
            clock = stack.enter_context(closing(LoopClock()))
            if order.journal is not None:
                self._journal = stack.enter_context(Journal(order.journal))
            output = await send_run(
                order.plan,
                bodies,
                order.endpoint,
                order.options,
                clock=clock,
                sink=self._journal,
                share=Share(indices=indices, worker=order.worker, governor=self),
            )
        if self._journal is not None and self._journal.failure is not None:
            raise self._journal.failure
        self._channel.send(Done(output))


async def _serve(end: socket.socket) -> None:
    channel = await Channel.of(end)
    member: _Member | None = None
    running: asyncio.Task[None] | None = None
    async for message in channel:
        if isinstance(message, Order):
            member = _Member(channel, message)
            running = asyncio.create_task(member.run())
        elif isinstance(message, Start | StopAt) and member is not None:
            member.take(message)
    del running
    os._exit(0)  # the coordinator is gone, and what is in flight with it


if __name__ == "__main__":
    run_loop(_serve(socket.socket(fileno=int(sys.argv[1]))))
