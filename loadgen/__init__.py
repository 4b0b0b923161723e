"""Open-loop load generator and SLO capacity finder for OpenAI-compatible LLM servers.

`sweep`, `run`, `replay` and `rehearse` measure, `load` reads what was measured; docs/library.md shows how. What a name
needs is imported when the name is first used.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any


def _companions() -> None:
    """In the repository `analysis` and `traces` lie beside this package: take those, not others of the same name.

    A folder `analysis/` where `python -m loadgen` is run, or another distribution's `traces`, may come first on the
    path. An installed package has them inside, under names of its own, and nothing is done here. Raises `ImportError`
    where another one was imported before.
    """
    here = Path(__file__).resolve().parent
    if (here / "analysis").is_dir():
        return
    for name in ("analysis", "traces"):
        wanted = here.parent / name / "__init__.py"
        other = sys.modules.get(name)
        if other is not None:
            if other.__file__ is None or Path(other.__file__).resolve() != wanted:
                where = other.__file__ or list(other.__path__)
                raise ImportError(f"loadgen needs its own package {name!r} ({wanted.parent}), not that of {where}")
            continue
        spec = importlib.util.spec_from_file_location(name, wanted, submodule_search_locations=[str(wanted.parent)])
        if spec is None or spec.loader is None or not wanted.is_file():
            raise ImportError(f"loadgen is not whole: {wanted.parent} is missing beside it; install it again")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_companions()

if TYPE_CHECKING:
    from loadgen.common.errors import (
        Aborted,
        ClientLimited,
        LoadgenError,
        ResultsError,
        ScenarioError,
        TargetError,
        TargetUnfit,
        UsageError,
    )
    from loadgen.experiment.calibrate import calibrate
    from loadgen.experiment.check import Checked, check
    from loadgen.experiment.compare.forecast import ComparisonForecast, forecast_comparison
    from loadgen.experiment.compare.library import (
        Compared,
        compare,
        compare_sync,
        load_compared,
        rehearse_comparison,
        resumed_comparison,
    )
    from loadgen.experiment.compare.rehearsal import ComparisonRehearsal
    from loadgen.experiment.compare.setup import ComparisonSetup, prepare_comparison
    from loadgen.experiment.forecast import Forecast, forecast
    from loadgen.experiment.gate.against import GateSetup, prepare_gate_against, resumed_gate
    from loadgen.experiment.gate.forecast import GateForecast, forecast_gate
    from loadgen.experiment.gate.library import gate, gate_sync, prepare_gate
    from loadgen.experiment.library import (
        rehearse,
        rehearse_sync,
        replay,
        replay_sync,
        run,
        run_sync,
        sweep,
        sweep_sync,
    )
    from loadgen.experiment.measured import Experiment, load
    from loadgen.experiment.prepare import Setup, prepare, resumed_scenario
    from loadgen.experiment.progress import Note, ProgressEvent, RunLabel, RunSealed, RunStarted, Tick
    from loadgen.experiment.replay import ReplayedRun
    from loadgen.experiment.work import Work
    from loadgen.results.calibration import Calibration
    from loadgen.results.types import LedgerLine
    from loadgen.scenario.comparison import ComparisonSettings
    from loadgen.scenario.file import load_comparison, load_scenario
    from loadgen.scenario.model import Scenario
    from loadgen.target.survey import Survey

__all__ = [
    "Aborted",
    "Calibration",
    "Checked",
    "ClientLimited",
    "Compared",
    "ComparisonForecast",
    "ComparisonRehearsal",
    "ComparisonSettings",
    "ComparisonSetup",
    "Experiment",
    "Forecast",
    "GateForecast",
    "GateSetup",
    "LedgerLine",
    "LoadgenError",
    "Note",
    "ProgressEvent",
    "ReplayedRun",
    "ResultsError",
    "RunLabel",
    "RunSealed",
    "RunStarted",
    "Scenario",
    "ScenarioError",
    "Setup",
    "Survey",
    "TargetError",
    "TargetUnfit",
    "Tick",
    "UsageError",
    "Work",
    "calibrate",
    "check",
    "compare",
    "compare_sync",
    "forecast",
    "forecast_comparison",
    "forecast_gate",
    "gate",
    "gate_sync",
    "load",
    "load_compared",
    "load_comparison",
    "load_scenario",
    "prepare",
    "prepare_comparison",
    "prepare_gate",
    "prepare_gate_against",
    "rehearse",
    "rehearse_comparison",
    "rehearse_sync",
    "replay",
    "replay_sync",
    "resumed_comparison",
    "resumed_gate",
    "resumed_scenario",
    "run",
    "run_sync",
    "sweep",
    "sweep_sync",
]

_AT = {
    "common.errors": (
        "Aborted", "ClientLimited", "LoadgenError", "ResultsError", "ScenarioError", "TargetError", "TargetUnfit",
        "UsageError",
    ),
    "experiment.calibrate": ("calibrate",),
    "experiment.check": ("Checked", "check"),
    "experiment.compare.forecast": ("ComparisonForecast", "forecast_comparison"),
    "experiment.compare.library": (
        "Compared", "compare", "compare_sync", "load_compared", "rehearse_comparison", "resumed_comparison",
    ),
    "experiment.compare.rehearsal": ("ComparisonRehearsal",),
    "experiment.compare.setup": ("ComparisonSetup", "prepare_comparison"),
    "experiment.forecast": ("Forecast", "forecast"),
    "experiment.gate.against": ("GateSetup", "prepare_gate_against", "resumed_gate"),
    "experiment.gate.forecast": ("GateForecast", "forecast_gate"),
    "experiment.gate.library": ("gate", "gate_sync", "prepare_gate"),
    "experiment.library": (
        "rehearse", "rehearse_sync", "replay", "replay_sync", "run", "run_sync", "sweep", "sweep_sync",
    ),
    "experiment.prepare": ("Setup", "prepare", "resumed_scenario"),
    "experiment.measured": ("Experiment", "load"),
    "experiment.progress": ("Note", "ProgressEvent", "RunLabel", "RunSealed", "RunStarted", "Tick"),
    "experiment.replay": ("ReplayedRun",),
    "experiment.work": ("Work",),
    "results.calibration": ("Calibration",),
    "results.types": ("LedgerLine",),
    "scenario.comparison": ("ComparisonSettings",),
    "scenario.file": ("load_comparison", "load_scenario"),
    "scenario.model": ("Scenario",),
    "target.survey": ("Survey",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _AT.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from loadgen.results.manifest import versions

        return versions()["loadgen"]
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
