"""What tests of several folders share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import settings

from analysis.judge import run as judge
from loadgen.cli import main
from loadgen.target.emulated import launch
from tests.fakes.cli import Forks, forks
from tests.fakes.gates import relaxed

settings.register_profile("loadgen", deadline=None)  # how long an example takes is the machine's matter
settings.load_profile("loadgen")


@dataclass(frozen=True)
class RunResult:
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    code: int


@pytest.fixture
def loadgen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., RunResult]:
    """The command line in this process (a new one takes seconds to import), in an empty directory.

    `code`: the exit code that is expected; None, for a server of unknown speed: any.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int | None = 0) -> RunResult:
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "argv", ["loadgen", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = (text.decode() for text in capfdbinary.readouterr())
        done = RunResult(stdout=out, stderr=err, code=int(ended.value.code or 0))
        assert "Traceback" not in err
        assert code in (None, done.code), err
        return done

    return run


@pytest.fixture(scope="session")
def forked() -> Iterator[Forks]:
    """The command line as a process with pipes, files and an exit of its own."""
    with forks() as command:
        yield command


@pytest.fixture(scope="session")
def emulator() -> Iterator[str]:
    """The URL of one emulated server, for tests that neither set it up, count what it served, nor end it."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(launch("fcfs-fast")) as emulated:
        yield emulated.url


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates on the client's lateness inform and do not block, in a test of servers on a machine that may be busy."""
    monkeypatch.setattr(judge, "gates", relaxed(judge.gates))
