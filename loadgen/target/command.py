"""The user's own commands: run without a shell, waited for, their output bounded and fit for a terminal."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

import anyio

from analysis.text import bounded
from loadgen.common.errors import TargetUnfit, UsageError

__all__ = ["TIMEOUT_S", "check_command", "run_command"]

TIMEOUT_S: Final = 900.0  # a restart that has not returned after this long hangs
_TAIL_BYTES: Final = 4000


def check_command(option: str, command: Sequence[str]) -> None:
    """Raises `UsageError` for a command that cannot be started."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"{option}: there is no command {bounded(command[0])}; give a program's name or its path")


async def run_command(option: str, command: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> None:
    """Run it to its end. Raises `TargetUnfit` with its last line if it fails or does not end in time.

    Its output goes to an unnamed file and not to a pipe: a server that it starts and leaves behind may hold that open
    for ever. For the same reason it has a session of its own, which no Ctrl-C meant for us reaches; it gets SIGTERM
    where the wait for it is cancelled.
    """
    with tempfile.TemporaryFile() as output:
        try:
            process = await anyio.open_process(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise TargetUnfit(f"{option}: {bounded(shlex.join(command))} cannot be started: {error.strerror}") from None
        with anyio.move_on_after(timeout_s) as scope:
            try:
                await process.wait()
            except anyio.get_cancelled_exc_class():
                if not scope.cancel_called:  # the user's stop: the command is asked to end, and not waited for
                    process.terminate()
                raise
        if scope.cancelled_caught:
            process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
            ended = f"did not end within {timeout_s:g} s"
        elif process.returncode:
            ended = f"ended with {process.returncode}"
        else:
            return
        size = output.seek(0, 2)
        output.seek(max(0, size - _TAIL_BYTES))
        lines = output.read().decode(errors="replace").strip().splitlines()
    said = f": {bounded(lines[-1].strip())}" if lines else ""
    raise TargetUnfit(f"{option}: {bounded(shlex.join(command), 100)} {ended}{said}")
