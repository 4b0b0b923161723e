"""Imports go one way: loadgen → analysis, loadgen → traces; the cores know no sockets, loop, clock or typer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    "analysis": {"loadgen", "traces"},
    "traces": {"loadgen", "analysis"},
    "loadgen": {"tests", "benchmarks"},
}
OUTSIDE = {"socket", "asyncio", "time", "typer", "anyio", "httpx", "httptools", "uvloop", "uvicorn", "selectors", "ssl"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            yield node.lineno, (node.module or "").partition(".")[0]


def wrong_arrows(package: str, source: str) -> list[tuple[int, str]]:
    forbidden = FORBIDDEN[package] | (OUTSIDE if package != "loadgen" else set())
    return [(line, name) for line, name in imported(source) if name in forbidden]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_import_points_the_wrong_way(package: str) -> None:
    assert modules(package)
    wrong = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules(package)
        for line, name in wrong_arrows(package, path.read_text(encoding="utf-8"))
    }
    assert not wrong


def test_the_pure_parts_of_loadgen_know_no_sockets_loop_or_clock() -> None:
    allowed = {"loadgen/plan/bodies.py": {"time"}}  # measures how long encoding takes, on the dispatcher's behalf
    for path in modules("loadgen/plan"):
        names = {name for _, name in imported(path.read_text(encoding="utf-8"))}
        assert not (names & OUTSIDE) - allowed.get(path.relative_to(ROOT).as_posix(), set()), path


# a room imports only from rooms before it
ROOMS = (
    "common", "plan", "send", "scenario", "workload", "results", "emulator", "target", "experiment", "cli",
)  # fmt: skip


def test_no_room_of_loadgen_imports_from_one_that_stands_on_it() -> None:
    wrong = set()
    for path in modules("loadgen"):
        inside = path.relative_to(ROOT / "loadgen").parts
        if len(inside) == 1:  # the library's door and the program's
            continue
        below = ROOMS[: ROOMS.index(inside[0]) + 1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loadgen."):
                room = (node.module or "").split(".")[1]
                if room not in below:
                    wrong.add(f"{path.relative_to(ROOT)}:{node.lineno}: {room}")
    assert not wrong


def test_the_rooms_of_loadgen_are_these_ten() -> None:
    assert {path.parent.name for path in (ROOT / "loadgen").glob("*/__init__.py")} == set(ROOMS)
    # planned: a former path that scripts outside of the repository import
    assert {path.stem for path in (ROOT / "loadgen").glob("*.py")} == {"__init__", "__main__", "planned"}


@pytest.mark.parametrize(
    ("package", "source"),
    [("analysis", "import loadgen.experiment"), ("analysis", "from traces import trace"),
     ("traces", "import asyncio"),
     ("analysis", "def f():\n    import time\n")],
)  # fmt: skip
def test_the_check_sees_a_wrong_arrow(package: str, source: str) -> None:
    assert wrong_arrows(package, source)
