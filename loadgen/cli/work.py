"""Running asynchronous work from a command: the event loop, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from typing import Final, TypeVar

from loadgen import Aborted, Work
from loadgen.common.interrupts import GRACE_S, asking
from loadgen.common.loop import run_loop

__all__ = ["work"]

T = TypeVar("T")
_ORDERLY_S: Final = 0.75 * GRACE_S  # for an end by the event; then the work is cancelled where it waits


def work(asked: Work[T]) -> T:
    """Carry it out to its end. Ctrl-C or SIGTERM stops it in good order; what does not heed that is cancelled.

    Raises `Aborted` where it was.
    """

    async def supervised() -> T:
        interrupted = asyncio.Event()
        loop = asyncio.get_running_loop()
        with asking(lambda: loop.call_soon_threadsafe(interrupted.set), signal.SIGINT, signal.SIGTERM):
            task, waiting = asyncio.ensure_future(asked), asyncio.create_task(interrupted.wait())
            try:
                await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    asked.stop()
                    await asyncio.wait({task}, timeout=_ORDERLY_S)
                    if not task.done():
                        task.cancel()
                return await task
            except asyncio.CancelledError:
                raise Aborted("stopped by the user") from None
            finally:
                waiting.cancel()

    return run_loop(supervised())
