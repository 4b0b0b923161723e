"""`loadgen replay`: a production trace, sent at its own instants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen.cli import app
from loadgen.cli.options import takes
from loadgen.cli.output import print_json, print_lines, print_run
from loadgen.cli.run import exit_code_of
from loadgen.cli.sweep import default_name
from loadgen.cli.work import check_system, work
from loadgen.common.interrupts import advise
from loadgen.experiment.execute import single_run
from loadgen.experiment.progress import open_progress
from loadgen.experiment.replay import prepare_replay, replayed, replayed_lines
from loadgen.results.answer import notes
from loadgen.results.store import read_experiment, read_ledger
from loadgen.scenario.file import load_scenario
from loadgen.scenario.model import Scenario

EXAMPLE = """
Example: loadgen replay azure.csv --target http://127.0.0.1:8000 --window 10m..40m --speed 2 --slo ttft:800ms

Sessions that wait for their answers: loadgen replay turns.csv --target http://127.0.0.1:8000 --sessions dependent
"""


@app.command("replay", epilog=EXAMPLE)
@takes(Scenario, "replay")
def replay_command(
    overrides: dict[str, Any],
    trace: Annotated[Path, typer.Argument(help="The trace; docs/traces.md says what is read.", show_default=False)],
    window: Annotated[
        str | None,
        typer.Option(
            help="Measure this part of the trace; what lies before it is the warm-up.",
            metavar="A..B",
            rich_help_panel="Traces",
        ),
    ] = None,
    scenario: Annotated[str | None, typer.Option(help="TOML file, or the name of a ready one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Results directory (default results/replay-DATE-TIME).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Send a trace's requests at their own instants, with their lengths and shared prefixes, and judge the run."""
    given = {"arrivals": f"trace:{trace}", **({} if window is None else {"trace_window": window})}
    setup = prepare_replay(load_scenario(scenario, overrides | given))
    check_system(setup.scenario)
    directory = out or Path("results") / default_name("replay", setup.scenario.name)
    advise(lambda: f"what was measured is kept in {directory}" if directory.exists() else "nothing was measured")
    with open_progress(quiet=quiet) as progress:
        progress.note(f"results: {directory}")
        verdict = work(lambda stop: single_run(setup, directory, kind="replay", progress=progress, stop=stop))
    (line,) = read_ledger(directory)
    told = replayed(directory, line)
    if as_json:
        print_json(told)
    else:
        print_run(line, notes(setup.scenario, read_experiment(directory)), setup.scenario.objective)
        print_lines(*replayed_lines(told.replay))
    raise typer.Exit(exit_code_of(verdict, setup.scenario))
