"""The command line as a process of its own; in this process it is the fixture `loadgen`."""

from __future__ import annotations

import sys
from pathlib import Path

LOADGEN = [sys.executable, "-m", "loadgen"]
_GATES = Path(__file__).with_name("gates.py")


def unhurried(package: str = "") -> list[str]:
    """The command with `tests.fakes.gates.relaxed`; `package` is the prefix of `analysis` in an installed wheel."""
    script = (
        f"import importlib, runpy, loadgen; judge = importlib.import_module({package + 'analysis.judge.run'!r}); "
        f"judge.gates = runpy.run_path({str(_GATES)!r})['relaxed'](judge.gates); "
        "from loadgen.cli import main; main()"
    )
    return [sys.executable, "-c", script]
