"""A measurement as a value: await it for its result, iterate over it for its events, stop it in good order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Generic, TypeVar

import anyio

from loadgen.common.loop import run_loop
from loadgen.experiment.progress import Progress, ProgressEvent

__all__ = ["Work"]

T = TypeVar("T")


class Work(Generic[T]):
    """A measurement that starts when it is first awaited or iterated over.

    `await work` gives its result, or raises as the function that made it says. `async for event in work` gives its
    events until it ends; leaving that loop early stops it as `stop` does, and so does cancelling the task that awaits
    it. It runs on the event loop that started it, which should have nothing else to do: what delays the loop delays
    requests, and a run whose requests were late is INVALID.
    """

    def __init__(
        self,
        start: Callable[[Progress, anyio.Event], Awaitable[T]],
        progress: Callable[[ProgressEvent], object] | None,
    ) -> None:
        self._start = start
        self._progress = progress
        self._queue: asyncio.Queue[ProgressEvent | None] | None = None
        self._stop: anyio.Event | None = None
        self._task: asyncio.Future[T] | None = None
        self._asked = False

    def __await__(self) -> Generator[None, None, T]:
        return self._started().__await__()

    async def __aiter__(self) -> AsyncIterator[ProgressEvent]:
        queue: asyncio.Queue[ProgressEvent | None] = asyncio.Queue()
        self._queue = queue
        task = self._started()
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._queue = None
            if not task.done():
                self.stop()

    def stop(self) -> None:
        """Ask for an orderly end: sealed runs are kept, and what was under way counts for nothing. From its loop."""
        self._asked = True
        if self._stop is not None:
            self._stop.set()

    def result(self) -> T:
        """Carry it out on an event loop of its own and return its result. Not from within a running loop."""

        async def awaited() -> T:
            return await self

        return run_loop(awaited())

    def _tell(self, event: ProgressEvent) -> None:
        if self._progress is not None:
            self._progress(event)
        if self._queue is not None:
            self._queue.put_nowait(event)

    def _started(self) -> asyncio.Future[T]:
        if self._task is None:
            self._stop = anyio.Event()
            if self._asked:
                self._stop.set()
            self._task = asyncio.ensure_future(self._start(Progress(self._tell), self._stop))
        return self._task
