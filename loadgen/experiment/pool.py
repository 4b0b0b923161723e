"""Independent pieces of work in virtual time, spread over processes of their own, one a core."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

from loadgen.common.errors import LoadgenError

__all__ = ["cores_for", "spread"]

Shared = TypeVar("Shared")
Job = TypeVar("Job")
Result = TypeVar("Result")

_WORTH_A_PROCESS: Final = 8  # pieces of work: a process takes seconds to start


def cores_for(jobs: int, asked: int | None = None) -> int:
    """How many processes that many pieces are worth, at most one a core; `asked` if it is given."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return asked or max(1, min(cores, -(-jobs // _WORTH_A_PROCESS)))


def spread(
    do: Callable[[Shared, Job], Result], shared: Shared, jobs: Sequence[Job], cores: int
) -> Generator[Result, None, None]:
    """`do(shared, job)` of every job as it is done; with one core in this process, and then in order.

    `do`, `shared` and what is returned are pickled. Close the generator to end the work. Raises what `do` raises, and
    `LoadgenError` for a process that was killed.
    """
    if cores == 1:
        yield from (do(shared, job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(cores, mp_context=context, initializer=_enter, initargs=(do, shared))
    try:
        futures = [pool.submit(_job, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()
    except BaseException as error:
        for worker in multiprocessing.active_children():  # none of them is waited for: a repeat may take minutes
            worker.terminate()
        if isinstance(error, BrokenProcessPool):
            raise LoadgenError("a rehearsing process was killed (out of memory?); give a smaller --window") from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_entered: list[Any] = []  # of a worker process: what to do, and with what


def _enter(do: Callable[[Any, Any], Any], shared: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
    _entered[:] = [do, shared]


def _job(job: Any) -> Any:
    do, shared = _entered
    return do(shared, job)
