"""Starting one of our own modules as a process of its own."""

from __future__ import annotations

import os
import sys

__all__ = ["environment", "module_command"]


def module_command(module: str) -> list[str]:
    """The command that runs the module; -P keeps the working directory's folders from taking our packages' names."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """The environment for it: modules are found where this process finds them, in the same order."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}  # noqa: PTH109
