"""`loadgen replay`: a production trace, sent at its own instants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen import Note, Scenario, load_scenario, replay
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet, ScenarioFile, takes
from loadgen.cli.output import print_json, print_run
from loadgen.cli.run import exit_code_of
from loadgen.cli.sweep import default_name
from loadgen.cli.work import work
from loadgen.common.interrupts import advise
from loadgen.scenario.overrides import Overrides

EXAMPLE = """
Example: loadgen replay azure.csv --target http://127.0.0.1:8000 --window 10m..40m --speed 2 --slo ttft:800ms

Sessions that wait for their answers: loadgen replay turns.csv --target http://127.0.0.1:8000 --sessions dependent
"""


@app.command("replay", epilog=EXAMPLE)
@takes(Scenario, "replay")
def replay_command(
    overrides: Overrides,
    trace: Annotated[Path, typer.Argument(help="The trace; docs/traces.md says what is read.", show_default=False)],
    window: Annotated[
        str | None,
        typer.Option(
            help="Measure this part of the trace; what lies before it is the warm-up.",
            metavar="A..B",
            rich_help_panel="Traces",
        ),
    ] = None,
    scenario: ScenarioFile = None,
    out: Annotated[Path | None, typer.Option(help="Results directory (default results/replay-DATE-TIME).")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Send a trace's requests at their own instants, with their lengths and shared prefixes, and judge the run."""
    given = overrides.and_(arrivals=f"trace:{trace}")
    if window is not None:
        given = given.and_(trace_window=window)
    chosen = load_scenario(scenario, given.values)
    directory = out or Path("results") / default_name("replay", chosen.name)
    advise(lambda: f"what was measured is kept in {directory}" if directory.exists() else "nothing was measured")
    with open_display(quiet=quiet) as display:
        replaying = replay(chosen, directory, progress=display.show)
        display.show(Note(text=f"results: {directory}"))
        measured = work(replaying)
    (line,) = measured.ledger
    if as_json:
        print_json(line)
    else:
        print_run(line, measured.notes, chosen.objective)
    raise typer.Exit(exit_code_of(measured))
