"""`loadgen check`: what a server can do, what is used instead where it cannot, and what that costs in trust."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import anyio
import typer

from analysis.report.tables import Table
from loadgen.cli import app
from loadgen.cli.options import takes
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.cli.work import check_system, work
from loadgen.common.errors import Aborted, TargetUnfit
from loadgen.experiment.live_sut import opened_target
from loadgen.experiment.progress import Progress, open_progress
from loadgen.scenario.file import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.target.idle import IdleWatch
from loadgen.target.survey import Survey, survey
from loadgen.target.target import Target
from loadgen.workload.workload import request_format

EXAMPLE = """
Example: loadgen check --target http://127.0.0.1:8000
"""

_COLUMNS = ("feature", "found", "instead", "effect on the result")


@app.command("check", epilog=EXAMPLE)
@takes(Scenario, "check")
def check_command(
    overrides: dict[str, Any],
    scenario: Annotated[str | None, typer.Option(help="TOML file, or the name of a ready one.")] = None,
    allow_reset: Annotated[
        bool,
        typer.Option("--allow-reset", help="Also try to empty the prefix cache, which changes the server's state."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Find out what a server can do, with at most ten small requests (some 8 seconds)."""
    chosen = load_scenario(scenario, overrides)
    check_system(chosen)
    may_chat = "endpoint" not in chosen.model_fields_set
    with open_progress(quiet=quiet) as progress:
        label, found = work(lambda stop: _check(chosen, progress, stop, may_chat=may_chat, allow_reset=allow_reset))
    if as_json:
        print_json(
            {
                "target": label,
                "usable": not found.unfit,
                "unfit": list(found.unfit),
                "options": list(found.options),
                "features": [
                    {key: value for key, value in asdict(finding).items() if key != "surprise"}
                    for finding in found.findings
                ],
                "format": asdict(found.format),
                "requests": {"generating": found.generating, "others": found.others},
            }
        )
    else:
        print_tables(_table(label, found))
        print_lines(f"{found.generating} requests that generate, {found.others} others.", _summary(found))
    if found.unfit:
        raise typer.Exit(TargetUnfit.exit_code)


async def _check(
    scenario: Scenario, progress: Progress, stop: anyio.Event, *, may_chat: bool, allow_reset: bool
) -> tuple[str, Survey]:
    async with opened_target(scenario, progress.note) as target:
        watches = [] if scenario.transport == "httpx" else [IdleWatch(http) for http in target.https]
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        work = asyncio.create_task(_survey(target, scenario, watches, tasks, may_chat, allow_reset))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Aborted("stopped by the user; nothing was changed")
            return target.label, work.result()
        finally:
            for task in (*tasks, work, stopped):
                task.cancel()
            await asyncio.gather(*tasks, work, stopped, return_exceptions=True)


async def _survey(
    target: Target,
    scenario: Scenario,
    watches: list[IdleWatch],
    tasks: list[asyncio.Task[None]],
    may_chat: bool,
    allow_reset: bool,
) -> Survey:
    """The survey, whose last rows wait for the watched connections to be closed or watched for long enough."""
    found = await survey(
        target, request_format(scenario), extras=scenario.extra, may_chat=may_chat, allow_reset=allow_reset
    )
    await asyncio.gather(*tasks)
    return found.with_connections(watches)


def _table(label: str, found: Survey) -> Table:
    rows = tuple((row.feature, row.found, row.instead, row.cost) for row in found.findings)
    return Table(title=f"What {label} can do", columns=_COLUMNS, rows=rows, left=frozenset(_COLUMNS))


def _summary(found: Survey) -> str:
    if found.unfit:
        return f"Not usable where ttft or tpot is bounded: {'; '.join((*found.unfit, *found.options))}."
    if not found.options:
        return "Usable as it is: sweep and run adapt to the rows above by themselves."
    return "Usable, but only with another choice: " + "; ".join(found.options) + "."
