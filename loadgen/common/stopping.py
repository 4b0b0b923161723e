"""The user's stop, in every wait: what is waited for is cancelled at once, and its cleaning up is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from loadgen.common.errors import Aborted

__all__ = ["StopSignal", "unless_stopped"]

T = TypeVar("T")


class StopSignal(Protocol):
    """An event such as `asyncio.Event` or `anyio.Event`: set when the user wishes to stop."""

    def is_set(self) -> bool:
        """Whether the user wishes to stop."""
        ...

    async def wait(self) -> object:
        """Return once the user wishes to stop."""
        ...


async def unless_stopped(stop: StopSignal, wait: Callable[[], Awaitable[T]], doing: str) -> T:
    """What `wait` returns. Raises `Aborted` ("stopped by the user `doing`") as soon as `stop` is set."""
    aborted = Aborted(f"stopped by the user {doing}")
    if stop.is_set():
        raise aborted
    with anyio.CancelScope() as scope:

        async def watch() -> None:
            await stop.wait()
            scope.cancel()

        watching = asyncio.create_task(watch())
        try:
            return await wait()
        finally:
            watching.cancel()
    raise aborted
