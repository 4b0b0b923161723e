"""`loadgen gate`: is one rate kept, or is the server worse than before?"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from analysis.compare.regression import RegressionAnswer
from analysis.search import exit_code
from loadgen import (
    Experiment,
    GateSetup,
    Note,
    Scenario,
    ScenarioError,
    forecast,
    forecast_gate,
    gate,
    load_scenario,
    prepare_gate,
    prepare_gate_against,
    resumed_gate,
)
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet, ScenarioFile, takes
from loadgen.cli.output import print_answer, print_json, print_lines, print_regression
from loadgen.cli.sweep import default_name
from loadgen.cli.work import work
from loadgen.common.interrupts import advise
from loadgen.scenario.overrides import Overrides

EXAMPLE = """
Example: loadgen gate --target http://127.0.0.1:8000 --rate 6 --slo ttft:800ms --slo tpot:50ms

Worse than before? loadgen gate --target http://127.0.0.1:8000 --baseline results/main

Exit code 0: kept, or not worse. 1: broken, or worse. 4: cannot tell. docs/gate.md has an example for CI.
"""
# what only a search has
_SEARCHED: Final = ("rate", "require", "search", "explore", "width", "all_runs", "confirm", "seeding")
_SEEDS: Final = ("seed", "seeds", "arrival_seed", "workload_seed")
_MARGIN: Final = "5%"


@app.command("gate", epilog=EXAMPLE)
@takes(Scenario, "sweep", without=_SEARCHED)
def gate_command(
    overrides: Overrides,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Requests/s: the one rate to test. With --baseline one of its rates (default its proved one).",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Stored results to make again and compare with: a sweep, a gate, or DIR/variants/NAME."),
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help=f"With --baseline: what is worse by less is let pass (default {_MARGIN})."),
    ] = None,
    scenario: ScenarioFile = None,
    out: Annotated[Path | None, typer.Option(help="Results directory (default results/gate-DATE-TIME).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the gate in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would cost, and stop.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Test one rate and nothing else, or whether a server is worse than a baseline, with an exit code for CI."""
    began_s = time.monotonic()
    if margin is not None and baseline is None:
        raise ScenarioError("--margin belongs to a new gate with --baseline DIR")
    given = overrides if rate is None or baseline is not None else overrides.and_(rate=rate)
    if resume is not None:
        if scenario is not None or out is not None or baseline is not None:
            raise ScenarioError(
                "--resume goes on in its own directory with its own settings: drop --scenario, --out and --baseline"
            )
        setup = resumed_gate(resume, given.values)
    elif baseline is not None:
        setup = _against(baseline, given, scenario=scenario, rate=rate, margin=margin or _MARGIN)
    else:
        setup = prepare_gate(load_scenario(scenario, given.values))
    plan = forecast_gate(setup) if isinstance(setup, GateSetup) else forecast(setup)
    if dry_run:
        print_json(plan.costs()) if as_json else print_lines(*plan.lines())
        return
    directory = resume or out or Path("results") / default_name("gate", setup.scenario.name)
    advise(lambda: going_on(directory))
    with open_display(quiet=quiet) as display:
        gating = gate(setup, directory, resume=resume is not None, progress=display.show, began_s=began_s)
        for line in (*plan.lines(), f"results: {directory}"):
            display.show(Note(text=line))
        measured = work(gating)
    ended, code = _printed(measured, as_json=as_json)
    if ended in ("ABORTED", "BUDGET_EXHAUSTED"):
        more = "" if ended == "ABORTED" else " with more of it"
        typer.echo(f"{going_on(directory).capitalize()}{more}", err=as_json)
    raise typer.Exit(code)


def _against(baseline: Path, given: Overrides, *, scenario: str | None, rate: str | None, margin: str) -> GateSetup:
    if named := [key for key in _SEEDS if key in given]:
        raise ScenarioError(f"--baseline replays the baseline's seeds: drop --{named[0].replace('_', '-')}")
    runs = given.values.get("runs")
    return prepare_gate_against(
        baseline,
        {key: value for key, value in given.values.items() if key != "runs"},
        scenario=scenario,
        rate=rate,
        runs=runs if isinstance(runs, int) else None,
        margin=margin,
    )


def _printed(measured: Experiment, *, as_json: bool) -> tuple[str, int]:
    """Print the answer; the name of its outcome, and the exit code."""
    if measured.kind == "regression":
        gated = measured.gate
        print_json(gated) if as_json else print_regression(gated)
        return gated.outcome, regression_code(gated)
    outcome = measured.outcome
    print_json(measured.answer) if as_json else print_answer(measured.answer, buckets=False)
    return outcome.name, exit_code(outcome, measured.scenario.require)


def regression_code(answer: RegressionAnswer) -> int:
    """0 not worse, 1 worse, 3 an unstable target, 4 cannot tell, 5 the user stopped it."""
    if answer.outcome in ("UNSTABLE_TARGET", "ABORTED"):
        return 3 if answer.outcome == "UNSTABLE_TARGET" else 5
    return {"NOT_WORSE": 0, "WORSE": 1, "CANNOT_TELL": 4}[answer.verdict]


def going_on(directory: Path) -> str:
    """How to go on with a gate that was stopped."""
    if not (directory / "experiment.json").exists():
        return "nothing was measured"
    return f"go on with: loadgen gate --resume {shlex.quote(str(directory))}"
