"""The user's stop, in every wait: what is waited for is cancelled at once, and its cleaning up is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from loadgen.common.errors import Aborted, LoadgenError

__all__ = ["StopSignal", "unless", "unless_stopped"]

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
    return await unless(stop, wait, lambda: Aborted(f"stopped by the user {doing}"))


async def unless(event: StopSignal, wait: Callable[[], Awaitable[T]], error: Callable[[], LoadgenError]) -> T:
    """What `wait` returns. Raises `error()` as soon as `event` is set."""
    if event.is_set():
        raise error()
    with anyio.CancelScope() as scope:

        async def watch() -> None:
            await event.wait()
            scope.cancel()

        watching = asyncio.create_task(watch())
        try:
            return await wait()
        finally:
            watching.cancel()
    raise error()
