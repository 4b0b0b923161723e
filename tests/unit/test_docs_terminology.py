"""docs/terminology.md explains every column of the tables and every key of a verdict."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from analysis.schema import DERIVED, EVENT_COLUMNS, REQUEST_COLUMNS, TARGET_COLUMNS
from analysis.verdict import RunVerdict

PAGE = (Path(__file__).parents[2] / "docs/terminology.md").read_text(encoding="utf-8")
NAMES = (*REQUEST_COLUMNS, *DERIVED, *EVENT_COLUMNS, *TARGET_COLUMNS, *(field.name for field in fields(RunVerdict)))


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_a_name_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE
