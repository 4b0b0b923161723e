"""The process between us and a server that we launch: no process of the server outlives it.

It reads one line of JSON from its standard input (`Order`), starts the server in a session of its own and writes to its
standard output what happens, one line each: `started PID`, `failed WHY`, `ended CODE` (as `Popen.returncode`), `killed`
and `left PID…` (processes that not even SIGKILL ended). Its standard error is the server's log.

Any further input means: stop. Each child gets SIGTERM; the server first, then what it leaves behind. After
`stop_timeout_s` the server's process group and all other descendants get SIGKILL until none is left. The end of the
input means that our own process is gone, whatever ended it: then the same is done within `ORPHANS_S`.

This process is a "child subreaper" (prctl(2)): a descendant whose parent ends becomes its child, also one that left the
server's process group. Should this process be killed, the kernel kills the server (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, TypedDict

__all__ = ["KILL_WAIT_S", "ORPHANS_S", "Order", "main"]

KILL_WAIT_S: Final = 10.0  # from the first SIGKILL; a process that hangs in a driver may take long
ORPHANS_S: Final = 5.0
_LOOK_S: Final = 0.02  # between two looks at who is left, while the server is being stopped
_SET_PDEATHSIG: Final = 1
_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Order(TypedDict):
    """What to start, and how long it has from SIGTERM to SIGKILL."""

    words: list[str]
    executable: str
    environment: dict[str, str]
    cwd: str | None
    stop_timeout_s: float


class _Input:
    """Standard input, read without a buffer that would hide a line from `select`."""

    def __init__(self) -> None:
        self.open = True
        self._rest = b""

    def line(self) -> bytes:
        """The first line, or what there is of it; what follows is kept."""
        while b"\n" not in self._rest and self.open:
            self.read()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def read(self) -> None:
        chunk = os.read(0, 1 << 16)
        self._rest += chunk
        self.open = chunk != b""

    @property
    def stop_asked(self) -> bool:
        return self._rest != b"" or not self.open


class _Server:
    """The server's process, its process group and whatever else came of it."""

    def __init__(self, order: Order) -> None:
        process = subprocess.Popen(
            order["words"],
            executable=order["executable"],
            env=order["environment"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # this process has one thread
        )
        process.returncode = 0  # it is waited for here, with all other descendants
        self.pid = process.pid
        self._ended = self._group_gone = False
        self._told: set[int] = set()

    def left(self) -> bool:
        """Whether a process is left, after those that ended were waited for."""
        children = True
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.pid:
                    self._ended = True
                    _say(f"ended {os.waitstatus_to_exitcode(status)}")
        except ChildProcessError:
            children = False
        if self._ended and not self._group_gone:  # once it is gone, its number may be given to a stranger
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                self._group_gone = True
            except PermissionError:  # another user's: it is there
                pass
        return children or not self._group_gone

    def terminate(self) -> None:
        """SIGTERM, once, for each process that is our child by now."""
        for pid in set(_children()) - self._told:
            self._told.add(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for the whole group, and for children that have left it."""
        with suppress(ProcessLookupError, PermissionError):
            if not self._group_gone:
                os.killpg(self.pid, signal.SIGKILL)
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Start what standard input orders, and stop it when asked to; an exit code other than 0 is a bug or a signal."""
    said = _Input()
    stopped = False

    def ignore(_number: int, _frame: object) -> None:
        """Not SIG_IGN, which the server would inherit."""

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True

    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ignore)
    if _libc is not None:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    line = said.line()
    if not line:
        return
    order: Order = json.loads(line)
    try:
        server = _Server(order)
    except OSError as error:
        _say(f"failed {error.strerror}")
        return
    _say(f"started {server.pid}")
    while not (stopped or said.stop_asked):
        server.left()
        ready, _, _ = select.select([0, wake], [], [])
        if 0 in ready:
            said.read()
        if wake in ready:
            os.read(wake, 1 << 10)
    _stop(server, said, order["stop_timeout_s"])


def _stop(server: _Server, said: _Input, timeout_s: float) -> None:
    kill_s, killed = time.monotonic() + timeout_s, False
    while server.left():
        now_s = time.monotonic()
        if not said.open:
            kill_s = min(kill_s, now_s + ORPHANS_S)
        if now_s < kill_s:
            server.terminate()
        else:
            if not killed:
                killed, kill_s = True, now_s
                _say("killed")
            if now_s > kill_s + KILL_WAIT_S:
                _say("left " + " ".join(map(str, _children() or [server.pid])))
                return
            server.kill()
        if said.open and select.select([0], [], [], _LOOK_S)[0]:
            said.read()
        elif not said.open:
            time.sleep(_LOOK_S)


def _children() -> list[int]:
    """Our children by the fourth field of /proc/PID/stat, proc(5); what ended and was not waited for is among them."""
    found, own = [], os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == own:
                found.append(int(stat.parent.name))
    return found


def _end_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _say(line: str) -> None:
    with suppress(OSError):  # nobody may be there to read it
        os.write(1, line.encode(errors="replace") + b"\n")


if __name__ == "__main__":
    main()
