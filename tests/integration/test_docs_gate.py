"""The session in docs/gate.md is what the commands print, and its example for CI uses options that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs/gate.md").read_text(encoding="utf-8")
SHOWN = PAGE.split("in a terminal of 80 columns:")[1].split("    […]")[0]
SESSION = [line[4:] for line in SHOWN.splitlines() if line]


def commands() -> list[list[str]]:
    joined = "\n".join(SESSION).replace("\\\n", " ")
    return [shlex.split(line[2:])[1:] for line in joined.splitlines() if line.startswith("$ ")]


@pytest.mark.slow
def test_the_session_is_what_the_commands_print(loadgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    baseline, gate = commands()
    loadgen(*baseline)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", loadgen(*gate, code=1).stdout).splitlines()
    there = {re.sub(r"20\d\d-\S+", "DATE", line.rstrip()) for line in printed}
    expected = [re.sub(r"20\d\d-\S+", "DATE", line) for line in SESSION if not re.match(r"\$ |      ", line)]
    assert len(expected) > 8
    assert not [line for line in expected if line.rstrip() and line.rstrip() not in there]
    slower = [gate[-1] if option == baseline[2] else option for option in baseline[:-2]]
    kept = loadgen(*slower, "--quiet").stdout
    assert kept.startswith("KEPT: ")  # as the page says


def test_the_example_for_ci_uses_options_that_there_are(loadgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    example = PAGE.split("```yaml")[1].split("```")[0].replace("\\\n", " ")
    known = loadgen("gate", "--help").stdout
    calls = " ".join(line for line in example.splitlines() if "loadgen gate" in line)
    used = set(re.findall(r"--[a-z-]+", calls))
    assert "--baseline" in used
    assert not [option for option in used if f"{option} " not in known]
