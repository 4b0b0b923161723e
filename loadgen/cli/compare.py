"""`loadgen compare`: which configuration serves more good tokens per GPU, on the same arrivals."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from analysis.compare.types import Comparison
from loadgen import (
    ComparisonSettings,
    Note,
    Scenario,
    ScenarioError,
    UsageError,
    compare,
    forecast_comparison,
    load_comparison,
    prepare_comparison,
    rehearse_comparison,
    resumed_comparison,
)
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet, ScenarioFile, takes
from loadgen.cli.output import print_comparison, print_json, print_lines
from loadgen.cli.sweep import default_name
from loadgen.cli.work import work
from loadgen.common.interrupts import advise
from loadgen.scenario.overrides import Overrides

EXAMPLE = """
Example: loadgen compare --variant 'tp1=http://a:8000,gpus=1' --variant 'tp4=http://b:8000,gpus=4' --per-gpu
--rate 1..6 --slo ttft:800ms --slo tpot:50ms --runs 12

Without a server: loadgen compare --scenario tp-ab-emulated
"""
_BARE: Final = (
    "Name two variants or more. Type, for example:",
    "  loadgen compare --variant a=http://127.0.0.1:8000 --variant b=http://127.0.0.1:8001 --rate 2..18 "
    "--slo ttft:800ms",
    "Without a server: loadgen compare --scenario tp-ab-emulated",
)
# a variant brings its own target, and the blocks of a trace are no pairs
_NOT_COMPARED: Final = (
    "target", "routing", "require", "search", "replicates", "rate_method", "share_content", "metrics_url",
    "restart_command",
)  # fmt: skip
_EXIT_CODES: Final = {"COMPLETE": 0, "UNSTABLE_TARGET": 3, "ABORTED": 5}


@app.command("compare", epilog=EXAMPLE)
@takes(ComparisonSettings, "compare", into="compared")
@takes(Scenario, "sweep", without=_NOT_COMPARED)
def compare_command(
    overrides: Overrides,
    compared: Overrides,
    scenario: ScenarioFile = None,
    out: Annotated[Path | None, typer.Option(help="Results directory (default results/compare-DATE-TIME).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the comparison in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would cost, and stop.")] = False,
    rehearsals: Annotated[
        int | None,
        typer.Option(
            "--rehearse",
            metavar="N",
            min=1,
            help="Repeat it all N times in virtual time: how often each verdict comes, what it costs.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare configurations of a server per GPU, on the same arrivals and requests."""
    began_s = time.monotonic()
    if resume is not None and (scenario is not None or out is not None):
        raise ScenarioError("--resume goes on in its own directory with its own scenario: drop --scenario and --out")
    if resume is None and scenario is None and "variant" not in compared:
        print_lines(*_BARE)
        raise typer.Exit(UsageError.exit_code)
    setup = (
        prepare_comparison(*load_comparison(scenario, overrides.values, compared.values))
        if resume is None
        else resumed_comparison(resume, overrides.values, compared.values)
    )
    if rehearsals is not None:
        if dry_run or out is not None or resume is not None:
            raise ScenarioError("--rehearse writes no results: drop --out, --resume and --dry-run")
        with open_display(quiet=quiet) as display:
            report = rehearse_comparison(setup, rehearsals, progress=display.show)
        print_json(report) if as_json else print_lines(*report.lines())
        return
    plan = forecast_comparison(setup)
    if dry_run:
        print_json(plan.costs()) if as_json else print_lines(*plan.lines())
        return
    directory = resume or out or Path("results") / default_name("compare", setup.scenario.name)
    advise(lambda: going_on(directory))
    with open_display(quiet=quiet) as display:
        comparing = compare(setup, directory, resume=resume is not None, progress=display.show, began_s=began_s)
        for line in (*plan.lines(), f"results: {directory}"):
            display.show(Note(text=line))
        measured = work(comparing)
    print_json(measured.answer) if as_json else print_comparison(measured.answer)
    if measured.answer.outcome in ("ABORTED", "BUDGET_EXHAUSTED"):
        more = "" if measured.answer.outcome == "ABORTED" else " with more of it"
        typer.echo(f"{going_on(directory).capitalize()}{more}", err=as_json)
    raise typer.Exit(exit_code(measured.answer))


def exit_code(answer: Comparison) -> int:
    """0 completed, whoever is better; 3 a variant was lost; 4 cannot tell; 5 the user stopped it."""
    code = _EXIT_CODES.get(answer.outcome, 4)
    return 3 if answer.lost and code == 0 else code


def going_on(directory: Path) -> str:
    """How to go on with a comparison that was stopped."""
    if not (directory / "comparison.json").exists():
        return "nothing was measured"
    return f"go on with: loadgen compare --resume {shlex.quote(str(directory))}"
