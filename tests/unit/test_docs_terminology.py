"""docs/terminology.md explains every column of the tables and every key of a verdict."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from analysis.compare.types import (
    CapacityPerGpu,
    Comparison,
    LoneRequests,
    PairedDifference,
    PrimaryVerdict,
    VariantRun,
    VariantSpec,
)
from analysis.schema import DERIVED, EVENT_COLUMNS, REQUEST_COLUMNS, TARGET_COLUMNS
from analysis.verdict import RunVerdict

PAGE = (Path(__file__).parents[2] / "docs/terminology.md").read_text(encoding="utf-8")
NAMES = (*REQUEST_COLUMNS, *DERIVED, *EVENT_COLUMNS, *TARGET_COLUMNS, *(field.name for field in fields(RunVerdict)))


COMPARED = (Comparison, VariantSpec, CapacityPerGpu, LoneRequests, VariantRun, PrimaryVerdict, PairedDifference)


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_a_name_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted({field.name for kind in COMPARED for field in fields(kind)}))
def test_a_key_of_a_comparison_is_explained(name: str) -> None:
    section = PAGE.partition("## answer.json")[2].partition("\n## ")[0]
    assert re.search(rf"[` ]{name}[` ]", section)
