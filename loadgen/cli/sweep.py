"""`loadgen sweep`: the largest rate at which every replicate keeps the SLO."""

from __future__ import annotations

import datetime
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from analysis.report.rehearsal import rehearsal_sentences, rehearsal_tables
from analysis.search import exit_code
from loadgen import (
    Note,
    Scenario,
    ScenarioError,
    Setup,
    UsageError,
    forecast,
    load_scenario,
    prepare,
    rehearse_sync,
    resumed_scenario,
    sweep,
)
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet, ScenarioFile, takes
from loadgen.cli.output import print_answer, print_json, print_lines, print_tables
from loadgen.cli.work import work
from loadgen.common.interrupts import advise
from loadgen.scenario.overrides import Overrides

EXAMPLE = """
Example: loadgen sweep --target http://127.0.0.1:8000 --rate 2..18 --runs 12 --slo ttft:800ms --slo tpot:50ms

Without a server: loadgen sweep --scenario demo

Rehearsed: loadgen sweep --target virtual:llama8b-80gb --rate 2..18 --slo ttft:800ms --rehearse 200
"""


_BARE = (
    "Nothing was sent: name at least the server or the rates. Type, for example:",
    "  loadgen sweep --target http://127.0.0.1:8000 --rate 2..18 --runs 12 --slo ttft:800ms --slo tpot:50ms",
    "Without a server: loadgen sweep --scenario demo",
    "To start the plan above as it stands: loadgen sweep --rate 2..18",
)


@app.command("sweep", epilog=EXAMPLE)
@takes(Scenario, "sweep")
def sweep_command(
    overrides: Overrides,
    scenario: ScenarioFile = None,
    out: Annotated[Path | None, typer.Option(help="Results directory (default results/sweep-DATE-TIME).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the experiment in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would cost, and stop.")] = False,
    rehearsals: Annotated[
        int | None,
        typer.Option(
            "--rehearse",
            metavar="N",
            min=1,
            help="Repeat it all N times in virtual time: where λ* lands, what it costs.",
        ),
    ] = None,
    buckets: Annotated[bool, typer.Option("--buckets", help="Also print it by (input, output) length.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the largest arrival rate at which every replicate keeps the joint SLO."""
    began_s = time.monotonic()
    if resume is not None and (scenario is not None or out is not None):
        raise ScenarioError("--resume goes on in its own directory with its own scenario: drop --scenario and --out")
    chosen = load_scenario(scenario, overrides.values) if resume is None else resumed_scenario(resume, overrides.values)
    if chosen.closed is not None:
        raise ScenarioError("--closed has no arrival rate to search: use loadgen run --closed N")
    setup = prepare(chosen)
    if rehearsals is not None:
        if dry_run or out is not None or resume is not None:
            raise ScenarioError("--rehearse writes no results: drop --out, --resume and --dry-run")
        _rehearse(setup, rehearsals, as_json=as_json, quiet=quiet)
        return
    plan = forecast(setup)
    if dry_run:
        print_json(plan.costs()) if as_json else print_lines(*plan.lines())
        return
    if not overrides and scenario is None and resume is None:
        print_lines(*plan.lines(), *_BARE)
        raise typer.Exit(UsageError.exit_code)
    directory = resume or out or Path("results") / default_name("sweep", chosen.name)
    advise(lambda: going_on(directory))
    with open_display(quiet=quiet) as display:
        sweeping = sweep(setup, directory, resume=resume is not None, progress=display.show, began_s=began_s)
        for line in (*plan.lines(), f"results: {directory}"):
            display.show(Note(text=line))
        measured = work(sweeping)
    outcome = measured.outcome
    print_json(measured.answer) if as_json else print_answer(measured.answer, buckets=buckets)
    if outcome.name in ("ABORTED", "BUDGET_EXHAUSTED"):
        more = "" if outcome.name == "ABORTED" else " with more of it"
        typer.echo(f"{going_on(directory).capitalize()}{more}", err=as_json)
    raise typer.Exit(exit_code(outcome, chosen.require))


def _rehearse(setup: Setup, repeats: int, *, as_json: bool, quiet: bool) -> None:
    with open_display(quiet=quiet) as display:
        report = rehearse_sync(setup, repeats, progress=display.show)
    if as_json:
        print_json(report)
    else:
        print_tables(*rehearsal_tables(report))
        print_lines(*rehearsal_sentences(report))


def going_on(directory: Path) -> str:
    """How to go on with a sweep that was stopped."""
    if not (directory / "experiment.json").exists():
        return "nothing was measured"
    return f"go on with: loadgen sweep --resume {shlex.quote(str(directory))}"


def default_name(kind: str, name: str | None) -> str:
    """A directory name that says what and when."""
    return f"{name or kind}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
