"""`loadgen show`: print an experiment's answer again, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen import load, load_compared
from loadgen.cli import app
from loadgen.cli.options import Json
from loadgen.cli.output import print_answer, print_comparison, print_json, print_regression, print_run

EXAMPLE = "Example: loadgen show results/demo-20260101-120000 --buckets"


@app.command("show", epilog=EXAMPLE)
def show_command(
    directory: Annotated[Path, typer.Argument(help="A results directory.", show_default=False)],
    buckets: Annotated[bool, typer.Option("--buckets", help="Also print it by (input, output) length.")] = False,
    as_json: Json = False,
) -> None:
    """Print the result of an experiment again."""
    if (directory / "comparison.json").exists():
        answer = load_compared(directory).answer
        print_json(answer) if as_json else print_comparison(answer)
        return
    measured = load(directory)
    if measured.kind in ("sweep", "gate"):
        print_json(measured.answer) if as_json else print_answer(measured.answer, buckets=buckets)
        return
    if measured.kind == "regression":
        print_json(measured.gate) if as_json else print_regression(measured.gate)
        return
    for line in measured.ledger:
        print_json(line) if as_json else print_run(line, measured.notes, measured.scenario.objective)
