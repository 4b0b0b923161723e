"""The supervisor of a launched server by itself: it ends in every case, and takes no CPU time while it waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen.common.child import environment, module_command
from loadgen.target.supervise import Order
from tests.fakes.processes import marked, running

WATCH_S = 2.0
MOST_CPU_S = 0.2  # in WATCH_S
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

SLEEPS = "print('up', flush=True); time.sleep(60)"
ENDS = "print('up', flush=True)"
STUBBORN = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
LEAVES_A_CHILD = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif os.fork() == 0:\n  {SLEEPS}"
STOPPED = "print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)"
# a child that stops and continues the server, each time a SIGCHLD for the supervisor
FLICKERS = f"""
server = os.getpid()
if os.fork() == 0:
    until = time.monotonic() + 3
    while time.monotonic() < until:
        os.kill(server, signal.SIGSTOP)
        os.kill(server, signal.SIGCONT)
    os._exit(0)
{STUBBORN}
"""


class Supervisor:
    """One that runs; `server` is the script of the server that it is ordered to start."""

    def __init__(self, folder: Path, marker: str, server: str, stop_timeout_s: float = 60.0) -> None:
        self.log = folder / "log"
        self.order = Order(
            words=[sys.executable, "-c", f"import os, signal, sys, time\n{server}", marker],
            executable=sys.executable,
            environment={},
            cwd=None,
            stop_timeout_s=stop_timeout_s,
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                module_command("loadgen.target.supervise"),
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                bufsize=0,
            )

    def start(self) -> Supervisor:
        self.send(json.dumps(self.order).encode() + b"\n")
        assert self.line().startswith(b"started ")
        deadline = time.monotonic() + 10
        while b"up" not in self.log.read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def let_go(self) -> None:
        """What it sees when the process that started it is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def cpu_s(self) -> float:
        """User and system time by fields 14 and 15 of /proc/PID/stat, proc(5)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S


@pytest.fixture
def marker() -> Iterator[str]:
    with marked(patience_s=10.0) as word:
        yield word


def stop(one: Supervisor) -> None:
    one.send(b"stop\n")


def nothing(one: Supervisor) -> None:
    del one


WAITS: dict[str, tuple[str, Callable[[Supervisor], None]]] = {
    "the server runs": (SLEEPS, nothing),
    "the server has ended": (ENDS, nothing),
    "the server has ended and a child of it runs": (LEAVES_A_CHILD, nothing),
    "the server ignores SIGTERM": (STUBBORN, stop),
    "a child of the server ignores SIGTERM": (LEAVES_A_CHILD, stop),
    "the server is stopped by SIGSTOP": (STOPPED, stop),
    "the supervisor got SIGTERM": (STUBBORN, lambda one: one.process.terminate()),
    "its parent is gone": (STUBBORN, lambda one: one.let_go()),
    "signals come without end": (FLICKERS, nothing),
    "signals come without end while it stops": (FLICKERS, stop),
    "input comes without end while it stops": (STUBBORN, lambda one: one.send(b"stop\n" * 10_000)),
}


@pytest.mark.realtime
def test_a_supervisor_that_waits_takes_no_cpu_time(tmp_path: Path, marker: str) -> None:
    """All cases at once; each supervisor waits for longer than it is watched."""
    ones: dict[str, Supervisor] = {}
    try:
        for number, (name, (server, act)) in enumerate(WAITS.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            ones[name] = Supervisor(folder, marker, server).start()
            act(ones[name])
        before_s = {name: one.cpu_s() for name, one in ones.items()}
        time.sleep(WATCH_S)
        taken_s = {name: one.cpu_s() - before_s[name] for name, one in ones.items()}
        assert not [name for name, one in ones.items() if one.process.poll() is not None]
        assert not {name: cpu_s for name, cpu_s in taken_s.items() if cpu_s >= MOST_CPU_S}
    finally:
        for pid in running(marker):
            os.kill(pid, signal.SIGKILL)
        for one in ones.values():
            one.let_go()
            assert one.process.wait(10) == 0
            assert b"Traceback" not in one.log.read_bytes()


@pytest.mark.parametrize("sent", ["", "cut", "whole"])
def test_a_parent_that_goes_during_the_start_leaves_nothing(sent: str, tmp_path: Path, marker: str) -> None:
    one = Supervisor(tmp_path, marker, SLEEPS)
    order = json.dumps(one.order).encode() + b"\n"
    one.send({"": b"", "cut": order[:-20], "whole": order}[sent])
    one.let_go()
    assert one.process.wait(10) == 0
    assert not running(marker)
    assert b"Traceback" not in one.log.read_bytes()


def test_a_stopped_server_is_killed_in_time(tmp_path: Path, marker: str) -> None:
    one = Supervisor(tmp_path, marker, STOPPED, stop_timeout_s=0.2).start()
    stop(one)
    assert one.line() == b"killed\n"
    assert one.line() == b"ended -9\n"
    assert one.process.wait(10) == 0
    one.let_go()


def test_a_server_that_ends_is_reported_at_once_and_its_number_waited_for(tmp_path: Path, marker: str) -> None:
    one = Supervisor(tmp_path, marker, f"{ENDS}; sys.exit(3)").start()
    assert one.line() == b"ended 3\n"
    assert not running(marker)
    stop(one)
    assert one.line() == b""
    assert one.process.wait(10) == 0
    one.let_go()
