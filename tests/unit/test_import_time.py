"""What a process imports, and so how soon it is ready: judged by the modules it loaded, not by a clock."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from loadgen.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
HEAVY = frozenset({"httpx", "numpy", "pandas", "pyarrow", "pydantic", "scipy", "uvicorn"})
HELP = "import sys; from loadgen.__main__ import main; sys.argv[1:] = {}\ntry: main()\nexcept SystemExit: pass\n"


def loaded(code: str) -> set[str]:
    """The top-level modules that a new process has after this code."""
    code += "\nimport sys; sys.stderr.write(' '.join(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stderr.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded("import loadgen") & (HEAVY | {"typer", "rich", "asyncio"})


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_the_list_of_commands_loads_nothing_heavy(arguments: list[str]) -> None:
    assert not loaded(HELP.format(arguments)) & HEAVY


def test_the_process_that_watches_a_launched_server_loads_nothing_heavy() -> None:
    assert not loaded("import loadgen.target.supervise") & (HEAVY | {"anyio", "asyncio", "typer", "rich"})


def test_the_metrics_process_loads_no_tables() -> None:
    assert not loaded("import loadgen.target.scraper") & {"pandas", "pyarrow", "scipy", "uvicorn", "pydantic"}


def test_what_is_loaded_is_seen() -> None:
    assert loaded("import pandas") >= {"pandas", "numpy"}


def test_the_list_says_of_a_command_what_its_own_help_says() -> None:
    for name in COMMANDS:
        import_module(f"loadgen.cli.{name}")
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    assert {name: command.help for name, command in group.commands.items()} == COMMANDS
