"""What tests of several folders share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadgen.cli import main


@dataclass(frozen=True)
class RunResult:
    """What a command printed."""

    stdout: str
    stderr: str


@pytest.fixture
def loadgen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., RunResult]:
    """The command line in this process (a new one takes seconds to import), in an empty directory.

    `code`: the exit code that is expected; None: any.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int | None = 0) -> RunResult:
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "argv", ["loadgen", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = (text.decode() for text in capfdbinary.readouterr())
        assert code in (None, ended.value.code or 0), err
        return RunResult(stdout=out, stderr=err)

    return run
