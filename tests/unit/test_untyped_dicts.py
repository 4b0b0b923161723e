"""Values travel as types: a dict of anything stands in a signature or field only where parsed text becomes a type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
MOST: Final = 30  # in all
MAPPINGS: Final = ("dict", "Mapping", "MutableMapping")
ANYTHING: Final = ("Any", "object", "JsonValue")
# file -> how many it may hold, and what is parsed there
EDGES: Final[dict[str, tuple[int, str]]] = {
    "analysis/tp/chrome.py": (1, "events of a profiler's trace, as the file has them"),
    "analysis/tp/config.py": (1, "a model's config.json"),
    "loadgen/emulator/app.py": (1, "messages of ASGI, which are open mappings"),
    "loadgen/emulator/profiles.py": (1, "tables of a profile file until they are validated"),
    "loadgen/emulator/request.py": (1, "the body of a request to the emulator"),
    "loadgen/results/comparison.py": (1, "comparison.json: the stored settings, which `Scenario.restore` validates"),
    "loadgen/results/types.py": (1, "experiment.json: the stored settings, which `Scenario.restore` validates"),
    "loadgen/scenario/comparison.py": (1, "a variant of a scenario file or an option until it is validated"),
    "loadgen/scenario/file.py": (2, "scenario files, and the settings that users of the library pass"),
    "loadgen/scenario/model.py": (2, "the stored settings, written and read"),
    "loadgen/scenario/settings.py": (1, "members of any JSON that a user adds to requests"),
    "loadgen/scenario/validate.py": (1, "all settings: what was written becomes a model"),
    "loadgen/send/fold.py": (2, "events of answers, read one by one without a model for speed"),
    "loadgen/target/answers.py": (1, "a server's small pages"),
    "traces/formats/documents.py": (1, "the first objects of a JSON file, of which the format is guessed"),
    "traces/formats/exports.py": (1, "an object of a JSON line, of which the layout is guessed"),
}


def untyped(annotation: ast.expr | None) -> int:
    """Mappings of text to anything in an annotation, quoted ones too."""
    found = 0
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "[" in node.value:
            try:
                found += untyped(ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                continue
        if isinstance(node, ast.Subscript) and _name(node.value) in MAPPINGS and isinstance(node.slice, ast.Tuple):
            found += _name(node.slice.elts[-1]) in ANYTHING
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def annotations(module: ast.Module) -> Iterator[ast.expr | None]:
    """Of parameters, results, fields and of what a module defines, aliases among it."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
                yield None if argument is None else argument.annotation
            yield node.returns
        elif isinstance(node, ast.ClassDef):
            yield from (inner.annotation for inner in node.body if isinstance(inner, ast.AnnAssign))
    for node in module.body:
        if isinstance(node, ast.Assign):
            yield node.value
        elif isinstance(node, ast.AnnAssign):
            yield from (node.annotation, node.value)


def counted(source: str) -> int:
    return sum(map(untyped, annotations(ast.parse(source))))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(a: dict[str, Any], *, b: 'Mapping[str, object]') -> list[dict[str, JsonValue]]: ...", 3),
        ("class A:\n    b: typing.Mapping[str, typing.Any]", 1),
        ("A = tuple[Mapping[str, Any], int]\nB: TypeAlias = dict[str, Any]", 2),
        ("def f(a: dict[str, int], b: Any) -> Mapping[str, str]:\n    c: dict[str, Any] = {}", 0),
    ],
)
def test_the_count_sees_parameters_results_fields_and_aliases(source: str, count: int) -> None:
    assert counted(source) == count


def test_dicts_of_anything_stand_only_where_text_is_parsed() -> None:
    files = [path for package in ("loadgen", "analysis", "traces") for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix(): counted(path.read_text(encoding="utf-8")) for path in files}
    held = {name: count for name, count in found.items() if count}
    assert held == {name: count for name, (count, _) in EDGES.items()}
    assert sum(held.values()) <= MOST
