"""The terminal session that the README shows is what the command prints in 80 columns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = README.split("In a terminal of 80 columns")[1].split("\nHow the search works")[0]
SESSION = [line[4:] for line in SHOWN.splitlines()[2:]]
COMMAND = " ".join(line.removesuffix("\\").removeprefix("$ ") for line in SESSION[:2])


def test_a_session_fits_into_80_columns() -> None:
    assert max(map(len, SESSION)) <= 80


@pytest.mark.slow
def test_the_session_is_what_the_command_prints(loadgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", loadgen(*shlex.split(COMMAND)[1:]).stdout).splitlines()
    lines = iter(line.rstrip() for line in printed)
    missing = [line for line in SESSION[2:] if line and line != "[…]" and line not in lines]
    assert not missing
