"""How many processes send the load of a scenario."""

from __future__ import annotations

import os
from collections.abc import Callable

from loadgen.scenario.model import Scenario

__all__ = ["sending_processes"]


def sending_processes(scenario: Scenario, note: Callable[[str], None], cores: int | None = None) -> int:
    """The number asked for; for `auto`, one for each core but one, and one for an indivisible load.

    `note` gets a line where there are more processes than cores.
    """
    cores = cores or _cores()
    if scenario.workers == "auto":
        return 1 if scenario.indivisible else max(1, cores - 1)
    count = int(scenario.workers)
    if count > cores:
        note(
            f"--workers {count}: this process may use {cores} cores, so they take turns and send late: {cores} at most"
        )
    return count


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
