"""Experiments on simulated servers, and processes to carry out many of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, Self, TypeVar

from analysis.report.repeats import Repeat
from analysis.search import Kind, RunRequest
from analysis.verdict import RunVerdict
from loadgen.experiment.prepare import prepare
from loadgen.experiment.rehearse import MemoryRunner, Rehearsal, plan_rehearsal, repeat
from loadgen.plan.seeds import derive
from loadgen.scenario.file import load_scenario

T = TypeVar("T")
Asked = tuple[tuple[str, Any], ...]  # a scenario's keys and values, hashable

QUEUE = {"input": "16", "output": "1", "slo": ("e2e<=250ms",)}


def asked(profile: str, **settings: Any) -> Asked:
    return tuple(sorted({"target": (f"virtual:{profile}",), **settings}.items()))


@cache
def ready(of: Asked) -> Rehearsal:
    """The experiment on its server; made once in each process."""
    return plan_rehearsal(prepare(load_scenario(None, dict(of))))


def one_run(of: Asked, rate: float, seed: int, kind: Kind = "explore", early_fail: bool = False) -> RunVerdict:
    """One run exactly as a search makes it."""
    return MemoryRunner(on=ready(of), early_fail=early_fail).run(request(rate, seed, kind)).verdict


def request(rate: float, seed: int, kind: Kind = "explore") -> RunRequest:
    return RunRequest(
        kind=kind, rate=rate, rate_index=0, replicate=0, block=-1, seed=seed, attempt=0,
        key="",
    )  # fmt: skip


def sweep(of: Asked, seed: int) -> Repeat:
    return repeat(ready(of), seed)


class Crew:
    """Processes that carry out calls (a count of one stays in this process), and the seeds of all that is random."""

    def __init__(self, processes: int, seed: int = 20) -> None:
        self._seed = seed
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(processes, mp_context=context) if processes > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def seeds(self, name: str, count: int) -> tuple[int, ...]:
        return derive(self._seed, f"truth/{name}", count)

    def all(self, work: Callable[..., T], calls: Iterable[tuple[Any, ...]], *, together: int = 1) -> list[T]:
        """The results in order of the calls, `together` of them handed over at once."""
        calls = list(calls)
        if self._pool is None or len(calls) < 4:
            return [work(*call) for call in calls]
        return list(self._pool.map(work, *zip(*calls, strict=True), chunksize=together))


__all__ = ["QUEUE", "Asked", "Crew", "asked", "one_run", "ready", "request", "sweep"]
