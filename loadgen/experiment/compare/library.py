"""The library's functions for comparisons: measure, go on, read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from analysis.compare.types import Comparison
from loadgen.common.errors import ResultsError, ScenarioError
from loadgen.experiment.compare.bench import LiveBench
from loadgen.experiment.compare.evidence import assembled, measured_so_far
from loadgen.experiment.compare.phases import run_phases
from loadgen.experiment.compare.rehearsal import ComparisonRehearsal, rehearse_repeatedly
from loadgen.experiment.compare.setup import ComparisonSetup, prepare_comparison
from loadgen.experiment.library import check_system
from loadgen.experiment.measured import Experiment
from loadgen.experiment.progress import Progress, ProgressEvent
from loadgen.experiment.search_loop import Budget
from loadgen.experiment.work import Work
from loadgen.results.comparison import (
    holds_comparison,
    read_comparison,
    read_comparison_answer,
    variant_directory,
    write_comparison_answer,
)
from loadgen.scenario.comparison import ComparisonSettings
from loadgen.scenario.model import Scenario, differences
from loadgen.scenario.overrides import Value
from loadgen.scenario.validate import validated

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Compared", "compare", "compare_sync", "load_compared", "rehearse_comparison", "resumed_comparison"]


def compare(
    setup: ComparisonSetup,
    directory: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[ProgressEvent], object] | None = None,
    began_s: float | None = None,
) -> Work[Compared]:
    """Search the capacity of every variant, then run the pairs and say which variant is better.

    Results go to `directory`, a new one; with `resume` to that of the comparison that goes on (`resumed_comparison`
    gives its setup). The time budget counts from `began_s` on the monotonic clock, by default from now.

    Raises at once `UsageError` where the system cannot time a load. The work raises `TargetError` for a variant that
    cannot be prepared, before any load; `ResultsError`, `ClientLimited` and `Aborted` as `sweep` does. A variant whose
    target is gone later leaves the comparison, and the others go on.
    """
    directory = Path(directory)
    for variant in setup:
        check_system(variant.setup.scenario)
    began_s = time.monotonic() if began_s is None else began_s

    async def start(events: Progress, stop: anyio.Event) -> Compared:
        for line in setup.variants[0].setup.workload.notes:
            events.note(line)
        async with LiveBench(setup=setup, directory=directory, progress=events, stop=stop, booked_s=began_s) as bench:
            if resume:
                bench.reopen()
            else:
                await bench.create()
            ledger = [line for one in setup for line in bench.ledger(one.name)]
            if resume:
                events.note(f"resuming {directory}: {len(ledger)} sealed runs carried over")
            budget = Budget.of(setup.scenario, ledger, clock=lambda: time.monotonic() - began_s)
            measured = await run_phases(setup, bench, budget)
            # before the servers are stopped, which may take longer than a user who stops the command waits
            answer = assembled(directory, setup, measured)
            write_comparison_answer(directory, answer)
        return Compared(directory, answer)

    return Work(start, progress)


def compare_sync(
    setup: ComparisonSetup,
    directory: str | Path,
    *,
    resume: bool = False,
    progress: Callable[[ProgressEvent], object] | None = None,
    began_s: float | None = None,
) -> Compared:
    """As `compare`, to its end, on an event loop of its own."""
    return compare(setup, directory, resume=resume, progress=progress, began_s=began_s).result()


def rehearse_comparison(
    setup: ComparisonSetup, repeats: int, *, progress: Callable[[ProgressEvent], object] | None = None
) -> ComparisonRehearsal:
    """Repeat a comparison of `virtual:` variants in virtual time, in this thread; nothing is written to the disk.

    Processes share the repeats, so a script that calls this needs the usual `if __name__ == "__main__":`. Raises
    `ScenarioError` for a variant that is not `virtual:PROFILE`, and `Aborted` for Ctrl-C.
    """
    return rehearse_repeatedly(setup, repeats, progress=Progress(progress))


def resumed_comparison(
    directory: str | Path, overrides: Mapping[str, Value], compared: Mapping[str, Value]
) -> ComparisonSetup:
    """The setup of a stored comparison under new options: budgets and the price may change.

    Raises `ScenarioError` for options that would change what was measured so far, and `ResultsError`.
    """
    directory = Path(directory)
    stored = read_comparison(directory)
    before = Scenario.restore(stored.scenario)
    scenario = Scenario.restore({**stored.scenario, **overrides})
    own = stored.comparison.model_dump()
    settings = validated(ComparisonSettings, own | dict(compared), "", option=True)
    setup = prepare_comparison(scenario, settings)
    if setup.sha256 != stored.sha256:
        names = [name for name in compared if getattr(settings, name) != getattr(stored.comparison, name)]
        changed = "; ".join([*differences(before, scenario), *names]) or "its files were changed by hand"
        raise ScenarioError(
            f"--resume {directory}: not the same comparison ({changed}); drop these options to go on, or choose "
            "another --out"
        )
    return setup


def load_compared(directory: str | Path) -> Compared:
    """The comparison in a results directory, finished or not. Raises `ResultsError` where there is none."""
    directory = Path(directory)
    if not holds_comparison(directory):
        raise ResultsError(f"{directory} holds no comparison (no comparison.json in it)")
    return Compared(directory)


class Compared:
    """The results of a comparison. docs/terminology.md says what each column of its frames means."""

    def __init__(self, directory: Path, answer: Comparison | None = None) -> None:
        self.directory = directory
        self._answer = answer

    def __repr__(self) -> str:
        return f"<loadgen.Compared {str(self.directory)!r}>"

    @cached_property
    def answer(self) -> Comparison:
        """What answer.json holds; of a comparison that has not ended, what its sealed runs add up to so far."""
        if self._answer is not None:
            return self._answer
        if (stored := read_comparison_answer(self.directory)) is not None:
            return stored
        setup = resumed_comparison(self.directory, {}, {})
        return assembled(self.directory, setup, measured_so_far(self.directory, setup))

    @cached_property
    def variants(self) -> Mapping[str, Experiment]:
        """The experiment of each variant: its search, and the sealed runs of the pairs."""
        names = [one.name for one in read_comparison(self.directory).comparison.variant]
        return {name: Experiment(variant_directory(self.directory, name)) for name in names}

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run that counts and each point it belongs to (`label`)."""
        import pandas as pd

        return pd.DataFrame([asdict(run) for run in self.answer.runs])

    @cached_property
    def differences(self) -> pd.DataFrame:
        """A row for each paired difference, the primary ones first."""
        import pandas as pd

        found = (*(one.difference for one in self.answer.primary), *self.answer.exploratory)
        return pd.DataFrame([asdict(one) for one in found])
