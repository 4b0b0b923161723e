"""Tests use what a caller could use, and say what they expect."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULES = sorted(TESTS.rglob("*.py"))
OURS = ("analysis", "benchmarks", "loadgen", "tests", "traces")
OUTCOMES = ("blame", "code", "exit_code", "returncode")
ALLOWED = {"os._exit"}  # the standard library's own name for a public function


def private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name != "_"


def faults(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for text in (*reaches_in(node), *takes_several(node)):
            yield f"{getattr(node, 'lineno', 0)}: {text}"


def reaches_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            pass  # a test's own helper class
        case ast.Attribute(attr=name) if private(name) and ast.unparse(node) not in ALLOWED:
            yield f"{ast.unparse(node)} is a private attribute"
        case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in OURS:
            for part in [*module.split("."), *(alias.name for alias in names)]:
                if private(part):
                    yield f"{part} of {module} is private"
        case ast.Call(func=function, args=[*given]) if named(function) in ("setattr", "getattr", "delattr"):
            for argument in given[:2]:
                text = argument.value if isinstance(argument, ast.Constant) else ""
                if isinstance(text, str) and private(text.rpartition(".")[2]):
                    yield f"{text!r} is a private attribute"


def takes_several(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.BoolOp(op=ast.Or(), values=values):
            if any(isinstance(each, ast.Compare) and named(each.left) == "blame" for each in values):
                yield f"{ast.unparse(node)}: say whose fault it is"
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple() | ast.List() | ast.Set() as among]):
            if named(left) in OUTCOMES and all(isinstance(each, ast.Constant) for each in among.elts):
                yield f"{ast.unparse(node)}: say which one is expected"


def named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_reaches_into_the_code_or_takes_more_than_one_outcome(path: Path) -> None:
    assert [f"{path.name}:{fault}" for fault in faults(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    "source",
    [
        "from loadgen.send import _x",
        "from loadgen._send import x",
        "transport._pools[0]",
        "module._make()",
        "monkeypatch.setattr(module, '_name', 1)",
        "monkeypatch.setattr('loadgen.send._name', 1)",
        "getattr(value, '_name')",
        "assert ok or blame == 'client'",
        "assert run.blame == 'client' or run.blame == 'target'",
        "assert code in (0, 4)",
        "assert process.returncode in {0, 1}",
    ],
)
def test_such_tests_are_found(source: str) -> None:
    assert len(list(faults(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "self._x",
        "os._exit(0)",
        "x.__name__",
        "from __future__ import annotations",
        "import _thread",
        "assert a in (0, 4)",
    ],
)
def test_others_are_not(source: str) -> None:
    assert list(faults(ast.parse(source))) == []
