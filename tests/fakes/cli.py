"""The command line as a process of its own; in this process it is the fixture `loadgen`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

LOADGEN = [sys.executable, "-m", "loadgen"]
ROOT = Path(__file__).parents[2]
_FORKS = """
import json, os, socket, sys
import loadgen.cli.show, loadgen.cli.sweep, loadgen.cli.trace
from loadgen.__main__ import main
link = socket.socket(fileno=int(sys.argv[1]))
while True:
    asked, files, _, _ = socket.recv_fds(link, 65536, 3)
    if not asked:
        sys.exit()
    if not (child := os.fork()):
        break
    for file in files:
        os.close(file)
    link.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
link.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)
directory, variables, arguments = json.loads(asked)
os.chdir(directory)
os.environ.update(variables)
sys.argv = ["loadgen", *arguments]
main()
"""
_GATES = Path(__file__).with_name("gates.py")


def unhurried(package: str = "") -> list[str]:
    """The command with `tests.fakes.gates.relaxed`; `package` is the prefix of `analysis` in an installed wheel."""
    script = (
        f"import importlib, runpy, loadgen; judge = importlib.import_module({package + 'analysis.judge.run'!r}); "
        f"judge.gates = runpy.run_path({str(_GATES)!r})['relaxed'](judge.gates); "
        "from loadgen.cli import main; main()"
    )
    return [sys.executable, "-c", script]


class Forks:
    """Processes of the command that need no second to import it: each is forked from one that has done so.

    Files, directory, variables and exit are a process's own. Only what an interpreter does as it starts was done
    before: a test of that, or of signals, starts `LOADGEN`.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def __call__(
        self, *arguments: str, cwd: Path, given: bytes = b"", stdout: int = -1, stderr: int = -1, **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it between pipes, or with these open files as its output, which is then not in what is returned."""
        (source, sink), *outputs = (os.pipe() for _ in range(3))
        os.write(sink, given)  # no more than a pipe holds
        os.close(sink)
        theirs = [source, *(outputs[i][1] if file < 0 else file for i, file in enumerate((stdout, stderr)))]
        socket.send_fds(self._link, [json.dumps([str(cwd), variables, arguments]).encode()], theirs)
        for file in (source, *(writing for _, writing in outputs)):
            os.close(file)
        with ThreadPoolExecutor() as pool:
            out, err = pool.map(_read, (reading for reading, _ in outputs))
        return subprocess.CompletedProcess(arguments, int(self._link.recv(64)), out, err)


def _read(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as file:
        return file.read()


@contextmanager
def forks() -> Iterator[Forks]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        handed = theirs.fileno()
        command = [sys.executable, "-c", _FORKS, str(handed)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[handed]):
            theirs.close()
            yield Forks(ours)
            ours.close()


@contextmanager
def nobody() -> Iterator[int]:
    """A pipe whose reader has left."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)
