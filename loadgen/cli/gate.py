"""`loadgen gate`: is one rate kept, or is the server worse than before?"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from analysis.search import exit_code
from loadgen import Note, Scenario, ScenarioError, forecast, gate, load_scenario, prepare_gate, resumed_scenario
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet, ScenarioFile, takes
from loadgen.cli.output import print_answer, print_json, print_lines
from loadgen.cli.sweep import default_name
from loadgen.cli.work import work
from loadgen.common.interrupts import advise
from loadgen.scenario.overrides import Overrides

EXAMPLE = """
Example: loadgen gate --target http://127.0.0.1:8000 --rate 6 --slo ttft:800ms --slo tpot:50ms

Exit code 0: kept, 1: broken, 4: cannot tell.
"""
# what only a search has
_SEARCHED: Final = ("rate", "require", "search", "explore", "width", "all_runs", "confirm", "seeding")


@app.command("gate", epilog=EXAMPLE)
@takes(Scenario, "sweep", without=_SEARCHED)
def gate_command(
    overrides: Overrides,
    rate: Annotated[str | None, typer.Option(help="Requests/s: the one rate to test.", metavar="RATE")] = None,
    scenario: ScenarioFile = None,
    out: Annotated[Path | None, typer.Option(help="Results directory (default results/gate-DATE-TIME).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the gate in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would cost, and stop.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Test one rate and nothing else, with an exit code for CI."""
    began_s = time.monotonic()
    given = overrides if rate is None else overrides.and_(rate=rate)
    if resume is not None and (scenario is not None or out is not None):
        raise ScenarioError("--resume goes on in its own directory with its own scenario: drop --scenario and --out")
    chosen = load_scenario(scenario, given.values) if resume is None else resumed_scenario(resume, given.values)
    setup = prepare_gate(chosen)
    plan = forecast(setup)
    if dry_run:
        print_json(plan.costs()) if as_json else print_lines(*plan.lines())
        return
    directory = resume or out or Path("results") / default_name("gate", chosen.name)
    advise(lambda: going_on(directory))
    with open_display(quiet=quiet) as display:
        gating = gate(setup, directory, resume=resume is not None, progress=display.show, began_s=began_s)
        for line in (*plan.lines(), f"results: {directory}"):
            display.show(Note(text=line))
        measured = work(gating)
    outcome = measured.outcome
    print_json(measured.answer) if as_json else print_answer(measured.answer, buckets=False)
    if outcome.name in ("ABORTED", "BUDGET_EXHAUSTED"):
        more = "" if outcome.name == "ABORTED" else " with more of it"
        typer.echo(f"{going_on(directory).capitalize()}{more}", err=as_json)
    raise typer.Exit(exit_code(outcome, setup.scenario.require))


def going_on(directory: Path) -> str:
    """How to go on with a gate that was stopped."""
    if not (directory / "experiment.json").exists():
        return "nothing was measured"
    return f"go on with: loadgen gate --resume {shlex.quote(str(directory))}"
