"""Running asynchronous work from a command: the event loop, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from loadgen.send.session import run_loop

__all__ = ["work"]

T = TypeVar("T")


def work(start: Callable[[anyio.Event], Awaitable[T]]) -> T:
    """Run it to its end. Ctrl-C or SIGTERM sets the event, for an orderly end; a second one interrupts at once."""

    async def supervised() -> T:
        stop = anyio.Event()
        loop = asyncio.get_running_loop()

        def ask() -> None:
            stop.set()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ask)
        return await start(stop)

    return run_loop(supervised())
