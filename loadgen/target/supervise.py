"""The process between us and a server that we launch: no process of the server outlives it.

It reads one line of JSON from its standard input (`Order`), starts the server in a session of its own and writes to its
standard output what happens, one line each: `started PID`, `failed WHY`, `ended CODE` (as `Popen.returncode`), `killed`
and `left PID…` (processes that not even SIGKILL ended). Its standard error is the server's log.

Any further input means: stop. Each child gets SIGTERM; the server first, then what it leaves behind. After
`stop_timeout_s` the server's process group and all other descendants get SIGKILL until none is left. The end of the
input means that our own process is gone, whatever ended it: then the same is done within `ORPHANS_S`.

This process is a "child subreaper" (prctl(2)): a descendant whose parent ends becomes its child, also one that left the
server's process group. Should this process be killed, the kernel kills the server (PR_SET_PDEATHSIG).

No loop here can occupy a core. Each round ends in `_Events.wait`, which first sleeps for 20 ms and for nineteen times
the CPU time of the round, whatever is readable: signals without end (a server whose children stop and continue), an
input at its end, or a slow search of a large /proc cost at most a twentieth of a core. A loop that only time can end
has a deadline.
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
from functools import partial
from pathlib import Path
from typing import Final, TypedDict

__all__ = ["KILL_WAIT_S", "ORPHANS_S", "Order", "main"]

KILL_WAIT_S: Final = 10.0  # from the first SIGKILL; a process that hangs in a driver may take long
ORPHANS_S: Final = 5.0
_SLEEP_S: Final = 0.02  # the least between two rounds of a loop
_SLEEP_PER_CPU: Final = 19.0  # further sleep per second of CPU that a round took
_LOOK_S: Final = 0.05  # the longest between two looks at who is left, while the server is being stopped
_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
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


class _Events:
    """What this process waits for: its standard input, read without a buffer that hides a line, and signals."""

    def __init__(self) -> None:
        self._open = True
        self._rest = b""
        self._terminated = False
        self._slept_s = time.process_time()
        self._wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._note)

    def line(self) -> bytes:
        """The first line, empty if the input ends within it; what follows is kept."""
        while b"\n" not in self._rest and self._open:
            self._read()
        line, end, self._rest = self._rest.partition(b"\n")
        return line if end else b""

    @property
    def stop_asked(self) -> bool:
        return self._terminated or self._rest != b"" or not self._open

    @property
    def orphaned(self) -> bool:
        """Whether the process that started this one is gone."""
        return not self._open

    def wait(self, most_s: float | None = None) -> None:
        """Sleep as the module's docstring says, then wait for input or a signal, for `most_s` at the longest."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # each one would wake the sleep
        time.sleep(max(_SLEEP_S, _SLEEP_PER_CPU * (time.process_time() - self._slept_s)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self._slept_s = time.process_time()
        ready, _, _ = select.select([self._wake, 0] if self._open else [self._wake], [], [], most_s)
        if 0 in ready:
            self._read()
        if self._wake in ready:
            os.read(self._wake, 1 << 10)

    def _read(self) -> None:
        chunk = b""
        with suppress(OSError):  # a socket whose other end was reset has ended, too
            chunk = os.read(0, 1 << 16)
        self._rest += chunk
        self._open = chunk != b""

    def _note(self, number: int, _frame: object) -> None:
        """Signals other than SIGTERM only end the wait; the server would inherit SIG_IGN."""
        self._terminated |= number == signal.SIGTERM


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
            preexec_fn=partial(_end_with_parent, os.getpid()),  # this process has one thread
        )
        process.returncode = 0  # it is waited for here, with all other descendants
        self.pid = process.pid
        self._ended = self._group_gone = False
        self._asked: set[int] = set()

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
        children = set(_children())
        new = children - self._asked
        self._asked = children  # the number of one that was waited for may be given to another
        for pid in new:
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
    events = _Events()
    if _libc is not None:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    line = events.line()
    if not line:
        return
    order: Order = json.loads(line)
    try:
        server = _Server(order)
    except OSError as error:
        _say(f"failed {error.strerror}")
        return
    _say(f"started {server.pid}")
    while not events.stop_asked:
        server.left()
        events.wait()
    _stop(server, events, order["stop_timeout_s"])


def _stop(server: _Server, events: _Events, timeout_s: float) -> None:
    kill_s, killed = time.monotonic() + timeout_s, False
    while server.left():
        now_s = time.monotonic()
        if events.orphaned:
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
        events.wait(_LOOK_S)


def _children() -> list[int]:
    """Our children by the fourth field of /proc/PID/stat, proc(5); what ended and was not waited for is among them."""
    found, own = [], os.getpid()
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - half the CPU of Path.glob
        with suppress(OSError, ValueError):
            if int(Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[1]) == own:
                found.append(int(name))
    return found


def _end_with_parent(parent: int) -> None:
    if _libc is not None:
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was killed before the call
            os.kill(os.getpid(), signal.SIGKILL)


def _say(line: str) -> None:
    with suppress(OSError):  # nobody may be there to read it
        os.write(1, line.encode(errors="replace") + b"\n")


if __name__ == "__main__":
    main()
