"""`loadgen run`: one run at one rate, or the fixed-concurrency baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen import Experiment, Note, Scenario, ScenarioError, load_scenario, run
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet, ScenarioFile, takes
from loadgen.cli.output import print_json, print_run
from loadgen.cli.sweep import default_name
from loadgen.cli.work import work
from loadgen.common.interrupts import advise
from loadgen.scenario.overrides import Overrides

EXAMPLE = """
Example: loadgen run --target http://127.0.0.1:8000 --rate 6 --window 2m --slo ttft:800ms

Baseline: loadgen run --closed 16 --window 2m
"""


@app.command("run", epilog=EXAMPLE)
@takes(Scenario, "run")
def run_command(
    overrides: Overrides,
    scenario: ScenarioFile = None,
    out: Annotated[Path | None, typer.Option(help="Results directory (default results/run-DATE-TIME).")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Offer one rate once (or N requests at a time) and judge it."""
    chosen = load_scenario(scenario, overrides.and_(runs=1).values)
    if chosen.closed is not None and "rate" in overrides:
        raise ScenarioError("--closed and --rate exclude each other: a closed loop sends as fast as it is answered")
    directory = out or Path("results") / default_name("run", chosen.name)
    advise(lambda: f"what was measured is kept in {directory}" if directory.exists() else "nothing was measured")
    with open_display(quiet=quiet) as display:
        running = run(chosen, directory, progress=display.show)
        display.show(Note(text=f"results: {directory}"))
        measured = work(running)
    (line,) = measured.ledger
    print_json(line) if as_json else print_run(line, measured.notes, chosen.objective)
    raise typer.Exit(exit_code_of(measured))


def exit_code_of(measured: Experiment) -> int:
    """Of a single run: without an SLO of one's own only an INVALID one says something."""
    (line,), scenario = measured.ledger, measured.scenario
    verdict = line.verdict
    return {"PASS": 0, "FAIL": 1, "INVALID": 4}[verdict.status] if scenario.slo else 4 * (verdict.status == "INVALID")
