"""The wheel's layout: `analysis` and `traces` lie beside `loadgen` in the repository, and inside it once installed.

Installed under their own names they would collide with a user's folders and with other distributions (PyPI has a
`traces`). So the wheel holds `loadgen.analysis` and `loadgen.traces`, with the imports of all three packages rewritten
line by line. An editable installation keeps the repository's layout; `loadgen/__init__.py` then sees to the names.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPANIONS = ("analysis", "traces")
_IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(COMPANIONS)})(?=[. ])", re.MULTILINE)
_BARE = re.compile(rf"^\s*import (?:{'|'.join(COMPANIONS)})\b(?!.* as )", re.MULTILINE)


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Lays the wheel out."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Give a wheel its files; an editable one has none but the path to this folder."""
        if version == "editable":
            return
        self._tree = Path(tempfile.mkdtemp())
        lay_out(Path(self.root), self._tree)
        build_data["force_include"][str(self._tree)] = "loadgen"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was laid out."""
        if version != "editable":
            shutil.rmtree(self._tree)


def lay_out(root: Path, into: Path) -> None:
    """The package as it is installed. Raises `ValueError` for an import that cannot be rewritten."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "loadgen", into, dirs_exist_ok=True, ignore=ignore)
    for name in (*COMPANIONS, "scenarios"):
        shutil.copytree(root / name, into / name, ignore=ignore)
    for path in into.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if bare := _BARE.search(source):
            raise ValueError(
                f"{path}: write {bare[0].strip()!r} as `from … import`, for the name is another in a wheel"
            )
        path.write_text(_IMPORT.sub(r"\1loadgen.\2", source), encoding="utf-8")
