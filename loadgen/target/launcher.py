"""A server of our own for one variant of a comparison: started, watched, and stopped with all that came of it.

Theory of operation. The server runs under a small process of ours (`supervise`), which holds the read end of a pipe of
ours and so sees the end of this process, whatever the reason. It tells of the server's end by another pipe, so the wait
for a server that has died ends at once. When the context ends, the server gets SIGTERM, after `stop_timeout_s` its
whole process group gets SIGKILL, and the context ends once no process is left and the port can be bound again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from analysis.text import bounded
from loadgen.common.child import environment, let_go, module_command
from loadgen.common.errors import ResultsError, TargetUnfit, TargetUnreachable
from loadgen.common.redact import redacted
from loadgen.common.stopping import unless
from loadgen.target.launch_command import HOST, LaunchCommand, LaunchSpec, check_launch, port_is_free, resolve
from loadgen.target.supervise import KILL_WAIT_S, Order

__all__ = ["LaunchSpec", "Launched", "check_launch", "launched"]

T = TypeVar("T")

START_TIMEOUT_S: Final = 30.0  # of the supervisor, not of the server
PORT_FREE_S: Final = 10.0
LINES: Final = 5
_TAIL_BYTES: Final = 16_384
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True, kw_only=True)
class _Fate:
    """What the supervisor has reported so far."""

    ended: str = ""
    killed: bool = False
    left: str = ""
    stopping: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)  # the server has ended without being asked to
    silent: asyncio.Event = field(default_factory=asyncio.Event)  # the supervisor has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A server that was started, ready or not."""

    name: str  # of the variant
    url: str
    pid: int  # of the server's process, also the number of its process group
    log: Path
    ready_timeout_s: float
    _log_start: int = field(repr=False)  # byte of the log where this server's output begins
    _secrets: tuple[str, ...] = field(repr=False)
    _fate: _Fate = field(repr=False)

    def died(self) -> str:
        """Empty while the server lives or if it was we who stopped it; else `exit code 1` or `signal 9`."""
        return self._fate.ended

    def last_lines(self, count: int = LINES) -> tuple[str, ...]:
        """The last lines that this server wrote, fit for a terminal, without the secrets it was given."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self._log_start, size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        lines = [_COLOUR.sub("", line).strip() for line in text.splitlines()]
        return tuple(bounded(redacted(line, self._secrets)) for line in [line for line in lines if line][-count:])

    def obituary(self) -> str:
        """One line about a server that has died: variant, how it ended, the log's path and its last lines."""
        ended = f"variant {bounded(self.name)}: the server ended by itself ({self.died() or 'not yet'})"
        return f"{ended}; {self._last_words(LINES)}"

    async def until_ready(self, wait: Callable[[], Awaitable[T]]) -> T:
        """What `wait` returns, which waits for the server; it is cancelled as soon as the server dies.

        Raises `TargetUnreachable` with the end of the log if the server dies or does not get ready, and `TargetUnfit`
        as `wait` does; both name the variant.
        """
        try:
            return await self.while_it_lives(wait)
        except TargetUnfit as error:
            raise TargetUnfit(f"variant {bounded(self.name)}: {error}") from None
        except TargetUnreachable as error:
            if self.died():
                raise TargetUnreachable(self.obituary()) from None
            what = f"variant {bounded(self.name)}: {error}"
            raise TargetUnreachable(f"{what}; {self._last_words(1)}") from None

    async def while_it_lives(self, wait: Callable[[], Awaitable[T]]) -> T:
        """What `wait` returns; it is cancelled as soon as the server dies, which raises `TargetUnreachable`."""
        return await unless(self._fate.over, wait, lambda: TargetUnreachable(self.obituary()))

    def _last_words(self, count: int) -> str:
        lines = self.last_lines(count)
        if not lines:
            return f"it wrote nothing to {self.log}"
        return f"the end of {self.log}: {' | '.join(lines)}"


@asynccontextmanager
async def launched(spec: LaunchSpec, *, log: Path, note: Callable[[str], None]) -> AsyncIterator[Launched]:
    """Run the variant's server while the context is open; whether it is ready is for `Launched.until_ready` to see.

    Its output is appended to `log`. `note` gets a line at its start, and one at its end for what went wrong while
    another error was already under way.

    Raises `UsageError` for a spec that cannot be used, `ResultsError` for a log that cannot be written, `TargetUnfit`
    for a server that cannot be started, for a port in use, and at the end for processes that cannot be ended and for a
    port that stays in use.
    """
    command = resolve(spec)
    who = f"variant {bounded(spec.name)}"
    if not port_is_free(command.port):
        raise TargetUnfit(f"{who}: port {command.port} is in use; stop what listens there, or write --port {{port}}")
    log_fd, log_start = _open_log(spec, command, log)
    try:
        supervisor = await anyio.open_process(
            module_command("loadgen.target.supervise"),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            start_new_session=True,  # no Ctrl-C meant for us reaches it
        )
    except OSError as error:
        raise TargetUnfit(f"{who}: no process can be started for it ({error.strerror})") from None
    finally:
        os.close(log_fd)
    fate, following, pid, failing = _Fate(), None, 0, False
    try:
        assert supervisor.stdout is not None
        reports = BufferedByteReceiveStream(supervisor.stdout)
        pid = await _started(supervisor, reports, _order(spec, command), who)
        following = asyncio.create_task(_follow(reports, fate))
        note(f"{who}: process {pid} started, its output goes to {log}")
        yield Launched(
            name=spec.name,
            url=f"http://{HOST}:{command.port}",
            pid=pid,
            log=log,
            ready_timeout_s=spec.ready_timeout_s,
            _log_start=log_start,
            _secrets=command.secrets,
            _fate=fate,
        )
    except BaseException:
        failing = True
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(supervisor, following, fate, pid, spec.stop_timeout_s)
            fault = await _remains(fate, command.port)
        if fate.killed:
            note(f"{who}: the server did not end within {spec.stop_timeout_s:g} s of SIGTERM, it was killed")
        if fault and failing:
            note(f"{who}: {fault}")
        elif fault:
            raise TargetUnfit(f"{who}: {fault}")


def _open_log(spec: LaunchSpec, command: LaunchCommand, log: Path) -> tuple[int, int]:
    """The log's descriptor, and where the server's output will begin: after a line of ours, without values of `env`."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    names = f", env {' '.join(spec.env)}" if spec.env else ""
    where = f", cwd {spec.cwd}" if spec.cwd else ""
    head = bounded(f"# {when} variant {spec.name}: {command.shown}{where}{names}", 4000)
    try:
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(log_fd, 0o600)
            os.write(log_fd, f"{head}\n".encode())
            return log_fd, os.fstat(log_fd).st_size
        except BaseException:
            os.close(log_fd)
            raise
    except OSError as error:
        raise ResultsError(f"variant {bounded(spec.name)}: the log {log} cannot be written: {error.strerror}") from None


def _order(spec: LaunchSpec, command: LaunchCommand) -> bytes:
    order = Order(
        words=list(command.words),
        executable=command.executable,
        environment=dict(command.environment),
        cwd=spec.cwd,
        stop_timeout_s=spec.stop_timeout_s,
    )
    return json.dumps(order).encode() + b"\n"


async def _started(supervisor: anyio.abc.Process, reports: BufferedByteReceiveStream, order: bytes, who: str) -> int:
    """The server's process. Raises `TargetUnfit`."""
    assert supervisor.stdin is not None
    said = ""
    with anyio.move_on_after(START_TIMEOUT_S), suppress(*_CLOSED):
        await supervisor.stdin.send(order)  # by pipe: arguments can be seen by others
        said = (await reports.receive_until(b"\n", 1 << 12)).decode(errors="replace")
    word, _, rest = said.partition(" ")
    if word != "started":
        raise TargetUnfit(f"{who}: the command cannot be started: {bounded(rest) or 'its supervisor does not answer'}")
    return int(rest)


async def _follow(reports: BufferedByteReceiveStream, fate: _Fate) -> None:
    """Note what the supervisor tells, until it ends."""
    with suppress(*_CLOSED):
        while True:
            word, _, rest = (await reports.receive_until(b"\n", 1 << 16)).decode(errors="replace").partition(" ")
            if word == "ended" and not fate.stopping:
                fate.ended = f"signal {-int(rest)}" if rest.startswith("-") else f"exit code {rest}"
                fate.over.set()
            fate.killed |= word == "killed"
            if word == "left":
                fate.left = rest
    if not fate.stopping and not fate.ended:
        fate.ended = "its supervising process was ended, and the server with it"
        fate.over.set()
    fate.silent.set()


async def _stop(
    supervisor: anyio.abc.Process, following: asyncio.Task[None] | None, fate: _Fate, pid: int, timeout_s: float
) -> None:
    fate.stopping = True
    assert supervisor.stdin is not None
    with anyio.move_on_after(timeout_s + 2 * KILL_WAIT_S):
        with suppress(*_CLOSED):
            await supervisor.stdin.send(b"stop\n")
        await supervisor.wait()
        if following is not None:
            await fate.silent.wait()
    if following is not None:
        following.cancel()
    if supervisor.returncode is None:
        supervisor.kill()
    if supervisor.returncode != 0 and pid:  # it was killed: what it could not do is left to us
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    await let_go(supervisor)


async def _remains(fate: _Fate, port: int) -> str:
    """What the server left behind; empty if nothing."""
    if fate.left:
        return f"processes of the server are left {KILL_WAIT_S:g} s after SIGKILL: {bounded(fate.left)}"
    with anyio.move_on_after(PORT_FREE_S):
        while not port_is_free(port):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.05)
        return ""
    return (
        f"port {port} is still in use {PORT_FREE_S:g} s after the server was stopped; "
        "does the command leave the server to another process, as docker run -d does?"
    )


_CLOSED: Final = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.DelimiterNotFound,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    ConnectionError,
)
