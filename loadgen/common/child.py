"""Starting one of our own modules as a process of its own, and letting go of it."""

from __future__ import annotations

import os
import sys

import anyio
import anyio.abc
import anyio.lowlevel

__all__ = ["environment", "let_go", "module_command"]

_ROUNDS = 3  # of the event loop: asyncio closes a process's pipes one after the other, each in a round of its own


def module_command(module: str) -> list[str]:
    """The command that runs the module; -P keeps the working directory's folders from taking our packages' names."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """The environment for it: modules are found where this process finds them, in the same order."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}  # noqa: PTH109


async def let_go(process: anyio.abc.Process) -> None:
    """Wait for a process that was asked to end, and for its pipes, even while the task is being cancelled.

    A pipe that is still open when the event loop closes is reported as a leak.
    """
    with anyio.CancelScope(shield=True):
        await process.aclose()
        for _ in range(_ROUNDS):
            await anyio.lowlevel.checkpoint()
