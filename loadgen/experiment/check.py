"""What a server can do, found out with a few small requests before any load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from loadgen.common.errors import Aborted
from loadgen.common.members import JsonMembers
from loadgen.experiment.library import check_system
from loadgen.experiment.live_sut import opened_target
from loadgen.experiment.progress import Progress, ProgressEvent
from loadgen.experiment.work import Work
from loadgen.scenario.model import Scenario
from loadgen.target.idle import IdleWatch
from loadgen.target.survey import Survey, survey
from loadgen.target.target import Target
from loadgen.workload.workload import request_format

__all__ = ["Checked", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A target, as a user knows it, and what it can do."""

    label: str
    survey: Survey


def check(
    scenario: Scenario, *, allow_reset: bool = False, progress: Callable[[ProgressEvent], object] | None = None
) -> Work[Checked]:
    """Find out what the scenario's server can do, with at most ten small requests (some 8 seconds).

    With `allow_reset` it also tries to empty the prefix cache, which changes the server's state. Raises at once
    `UsageError` where the system cannot time a load. The work raises `TargetError`, and `Aborted` where it was stopped.
    """
    check_system(scenario)

    async def start(events: Progress, stop: anyio.Event) -> Checked:
        async with opened_target(scenario, events.note) as target:
            watches = [] if scenario.transport == "httpx" else [IdleWatch(http) for http in target.https]
            tasks = [asyncio.create_task(watch.run()) for watch in watches]
            work = asyncio.create_task(_survey(target, scenario, watches, tasks, allow_reset))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise Aborted("stopped by the user; nothing was changed")
                return Checked(label=target.label, survey=work.result())
            finally:
                for task in (*tasks, work, stopped):
                    task.cancel()
                await asyncio.gather(*tasks, work, stopped, return_exceptions=True)

    return Work(start, progress)


async def _survey(
    target: Target,
    scenario: Scenario,
    watches: list[IdleWatch],
    tasks: list[asyncio.Task[None]],
    allow_reset: bool,
) -> Survey:
    """The survey, whose last rows wait for the watched connections to be closed or watched for long enough."""
    found = await survey(
        target,
        request_format(scenario),
        extras=JsonMembers.of(**scenario.extra),
        may_chat="endpoint" not in scenario.model_fields_set,
        allow_reset=allow_reset,
    )
    await asyncio.gather(*tasks)
    return found.with_connections(watches)
