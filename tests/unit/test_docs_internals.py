"""The tests that docs/internals.md names for each fault exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/internals.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:unit|integration|property|golden)/\w+\.py)::(\w+)`", PAGE)


def test_each_test_that_is_named_exists() -> None:
    assert len(NAMED) > 40
    missing = [
        f"{file}::{name}" for file, name in NAMED if f"def {name}(" not in (ROOT / "tests" / file).read_text("utf-8")
    ]
    assert not missing
