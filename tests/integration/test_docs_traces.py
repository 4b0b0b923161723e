"""The commands that docs/traces.md shows do what it says they do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def shown() -> list[str]:
    text = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    section = text.split("## Commands\n")[1].split("\n## ")[0]
    return [line.strip() for line in section.splitlines() if line.startswith("    loadgen ")]


COMMANDS = shown()


def test_the_page_shows_every_command_of_traces() -> None:
    assert {tuple(shlex.split(command)[1:3])[: 1 + (" trace " in command)] for command in COMMANDS} == {
        ("trace", "describe"), ("trace", "convert"), ("replay",),
    }  # fmt: skip


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[pytest.mark.slow] if "emulator" in one else []) for one in COMMANDS]
)
def test_a_command_of_the_page_works(loadgen: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    _, *arguments = shlex.split(command)
    # a replay of a dozen requests proves nothing of a server, and says so with exit code 4
    done = loadgen(*arguments, code=4 if arguments[0] == "replay" else 0)
    assert "sha256" in done.stdout or "wrote" in done.stdout, done.stderr
