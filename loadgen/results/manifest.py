"""What an experiment was measured with: versions, machine and command, without any secret."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from loadgen.results.types import Machine

__all__ = ["machine", "versions"]

_PACKAGES = ("loadgen", "numpy", "scipy", "pandas", "pyarrow", "httptools", "uvloop", "httpx", "orjson")


def versions() -> dict[str, str]:
    """Version of Python and of each package that can change a number; `absent` where one is not installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def machine() -> Machine:
    """The client machine: system, processor and cores it may use. Not its name: results are passed around."""
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - read one line, not all
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
