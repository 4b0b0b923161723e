"""Running asynchronous work from a command: the event loop, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from loadgen.common.errors import Aborted, UsageError
from loadgen.common.interrupts import GRACE_S, asking
from loadgen.common.loop import run_loop
from loadgen.scenario.model import Scenario

__all__ = ["check_system", "work"]

T = TypeVar("T")
_ORDERLY_S: Final = 0.75 * GRACE_S  # for an end by the event; then the work is cancelled where it waits


def check_system(scenario: Scenario) -> None:
    """Raise `UsageError` where load cannot be timed: the timers and stamps of a run are Linux's."""
    simulated = scenario.target[0].partition(":")[0] == "virtual"
    if not simulated and not sys.platform.startswith("linux"):
        name = {"darwin": "macOS"}.get(sys.platform, sys.platform)
        raise UsageError(
            f"{name} cannot time a load as loadgen does on Linux: run this on Linux, in a container or a virtual "
            "machine; --target virtual, trace and show work here too"
        )


def work(start: Callable[[anyio.Event], Awaitable[T]]) -> T:
    """Run it to its end. Ctrl-C or SIGTERM sets the event, for an orderly end; what does not heed it is cancelled.

    Raises `Aborted` where it was.
    """

    async def supervised() -> T:
        stop, asked = anyio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        with asking(lambda: loop.call_soon_threadsafe(asked.set), signal.SIGINT, signal.SIGTERM):
            task, waiting = asyncio.ensure_future(start(stop)), asyncio.create_task(asked.wait())
            try:
                await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    stop.set()
                    await asyncio.wait({task}, timeout=_ORDERLY_S)
                    if not task.done():
                        task.cancel()
                return await task
            except asyncio.CancelledError:
                raise Aborted("stopped by the user") from None
            finally:
                waiting.cancel()

    return run_loop(supervised())
