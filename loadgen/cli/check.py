"""`loadgen check`: what a server can do, what is used instead where it cannot, and the effect on the result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from analysis.report.tables import Table
from loadgen import Scenario, Survey, TargetUnfit, check, load_scenario
from loadgen.cli import app
from loadgen.cli.display import open_display
from loadgen.cli.options import Json, Quiet, ScenarioFile, takes
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.cli.work import work
from loadgen.scenario.overrides import Overrides

EXAMPLE = """
Example: loadgen check --target http://127.0.0.1:8000
"""

_COLUMNS = ("feature", "found", "instead", "effect on the result")


@app.command("check", epilog=EXAMPLE)
@takes(Scenario, "check")
def check_command(
    overrides: Overrides,
    scenario: ScenarioFile = None,
    allow_reset: Annotated[
        bool,
        typer.Option("--allow-reset", help="Also try to empty the prefix cache, which changes the server's state."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find out what a server can do, with at most ten small requests (some 8 seconds)."""
    chosen = load_scenario(scenario, overrides.values)
    with open_display(quiet=quiet) as display:
        checked = work(check(chosen, allow_reset=allow_reset, progress=display.show))
    label, found = checked.label, checked.survey
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


def _table(label: str, found: Survey) -> Table:
    rows = tuple((row.feature, row.found, row.instead, row.cost) for row in found.findings)
    return Table(title=f"What {label} can do", columns=_COLUMNS, rows=rows, left=frozenset(_COLUMNS))


def _summary(found: Survey) -> str:
    if found.unfit:
        return f"Not usable where ttft or tpot is bounded: {'; '.join((*found.unfit, *found.options))}."
    if not found.options:
        return "Usable as it is: sweep and run adapt to the rows above by themselves."
    return "Usable, but only with another choice: " + "; ".join(found.options) + "."
