"""`loadgen show`: print an experiment's answer again, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analysis.report.types import CapacityAnswer
from analysis.search import Search
from loadgen.cli import app
from loadgen.cli.output import print_answer, print_json, print_lines, print_run
from loadgen.common.errors import ResultsError
from loadgen.experiment.prepare import prepare
from loadgen.experiment.replay import replayed, replayed_lines
from loadgen.experiment.run_plan import criteria_of
from loadgen.results.answer import assemble, notes, told
from loadgen.results.store import holds_experiment, read_answer, read_experiment, read_ledger
from loadgen.results.types import Experiment
from loadgen.scenario.model import Scenario

EXAMPLE = "Example: loadgen show results/demo-20260101-120000 --buckets"


@app.command("show", epilog=EXAMPLE)
def show_command(
    directory: Annotated[Path, typer.Argument(help="A results directory.", show_default=False)],
    buckets: Annotated[bool, typer.Option("--buckets", help="Also print it by (input, output) length.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Print the result of an experiment again."""
    if not holds_experiment(directory):
        raise ResultsError(f"{directory} holds no experiment (no experiment.json in it)")
    experiment = read_experiment(directory)
    if experiment.kind != "sweep":
        scenario = Scenario.restore(experiment.scenario)
        for line in read_ledger(directory):
            told = replayed(directory, line) if experiment.kind == "replay" else None
            if as_json:
                print_json(told or line)
                continue
            print_run(line, notes(scenario, experiment), scenario.objective)
            print_lines(*(() if told is None else replayed_lines(told.replay)))
        return
    answer = read_answer(directory) or _so_far(directory, experiment)
    print_json(answer) if as_json else print_answer(answer, buckets=buckets)


def _so_far(directory: Path, experiment: Experiment) -> CapacityAnswer:
    """The answer that the ledger of an unfinished experiment adds up to."""
    setup = prepare(Scenario.restore(experiment.scenario))
    criteria = criteria_of(setup.scenario, setup.workload)
    search = Search.replay(setup.spec, setup.seeds, criteria, told(directory))
    outcome = search.stop("UNFINISHED", f"go on with: loadgen sweep --resume {directory}")
    return assemble(directory, setup.scenario, setup.spec, outcome)
