"""The emulator as a child process: started on a free loopback port, ready when handed over, gone when done with.

The child holds the read end of a pipe whose other end is ours: should this process die without a word, the pipe ends
and the child with it. Its stderr goes to an unnamed file, whose end is shown if it fails to start.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import anyio
import anyio.abc

from analysis.text import bounded
from loadgen.common import defaults
from loadgen.common.child import environment, let_go, module_command
from loadgen.common.errors import TargetUnreachable
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.serve import READY

__all__ = ["Emulated", "cores_apart", "launch"]

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 3.0
_URL: Final = re.compile(re.escape(READY) + r"(http://\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """A running emulator."""

    url: str
    profile: str
    description: str
    pid: int


@asynccontextmanager
async def launch(
    profile: str = defaults.PROFILE, *, truth_log: Path | None = None, settings: Sequence[str] = ()
) -> AsyncIterator[Emulated]:
    """Run the emulator while the context is open; `settings` replace keys of the profile, see `load_profile`.

    Raises `UsageError` for a profile that cannot be used and `TargetUnreachable` if the process does not get ready.
    """
    description = load_profile(profile, settings).description
    command = [*module_command("loadgen.emulator"), "--profile", profile, "--watch-stdin"]
    if truth_log is not None:
        command += ["--truth-log", str(truth_log)]
    for setting in settings:
        command += ["--set", setting]
    with tempfile.TemporaryFile() as stderr:
        process = await anyio.open_process(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        )
        try:
            url = await _ready(process, stderr)
            with cores_apart(process.pid):
                yield Emulated(url=url, profile=profile, description=description, pid=process.pid)
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)


@contextmanager
def cores_apart(pid: int) -> Iterator[None]:
    """Give a server of ours one core of its own, and what this thread starts the others, while there are two or more.

    On a shared core the scheduler lets a sender wait until the emulator's turn is over: on two idle cores that doubled
    the p95 of the send lag, from 0.55 to 1.2 ms, and the client was to blame for its own emulator.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) < 2:
        yield
        return
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores[:1])
    os.sched_setaffinity(0, cores[1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


async def _ready(process: anyio.abc.Process, stderr: IO[bytes]) -> str:
    """The URL from the line that says it is ready."""
    assert process.stdout is not None
    seen = b""
    with anyio.move_on_after(START_TIMEOUT_S) as scope:
        async for chunk in process.stdout:
            seen += chunk
            match = _URL.search(seen.decode(errors="replace"))
            if match is not None and b"\n" in seen:
                return match[1]
    reason = f"not ready after {START_TIMEOUT_S:.0f} s" if scope.cancelled_caught else "it ended before it was ready"
    stderr.seek(0)
    last_words = stderr.read()[-2000:].decode(errors="replace").strip().splitlines()[-1:]
    said = f": {bounded(last_words[0])}" if last_words else ""
    raise TargetUnreachable(f"the embedded emulator did not start: {reason}{said}")


async def _stop(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
    await let_go(process)
