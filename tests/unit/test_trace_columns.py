"""A trace's columns cannot contradict each other, and what is asked of a reader must make sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traces.errors import TraceError
from traces.read import files_of, read_trace
from traces.trace import BlockHashes, Trace

GOOD: dict[str, Any] = {
    "at_ns": np.array([0, 5]),
    "input_tokens": np.array([3, 3]),
    "output_tokens": np.array([1, 1]),
    "line": np.array([1, 2]),
    "outcome": np.zeros(2, dtype=np.int8),
}
HASHES = BlockHashes(ids=np.array([7, 8, 9]), starts=np.array([0, 2, 2, 3]), block_tokens=16)


def test_columns_are_read_only_and_blocks_are_those_of_their_request() -> None:
    trace = Trace(**GOOD, session=np.array([0, 0]), parent=np.array([-1, 0]))
    with pytest.raises(ValueError, match="read-only"):
        trace.at_ns[0] = 1
    assert [HASHES.of(row).tolist() for row in range(3)] == [[7, 8], [], [9]]
    assert HASHES.take(np.array([2, 0])).ids.tolist() == [9, 7, 8]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({name: column[:0] for name, column in GOOD.items()}, "no requests"),
        ({"line": np.array([1])}, r"column line has shape \(1,\), not \(2,\)"),
        ({"at_ns": np.array([1, 5])}, "not sorted offsets from the first one"),
        ({"at_ns": np.array([0, -5])}, "not sorted offsets from the first one"),
        ({"input_tokens": np.array([0, 3])}, "less than one token"),
        ({"output_tokens": np.array([1, 0])}, "less than one token"),
        ({"hashes": HASHES}, "hashes of 3 requests in a trace of 2"),
        ({"session": np.array([0, 0])}, "sessions without parents"),
        ({"session": np.array([0, 0]), "parent": np.array([-1, 1])}, "a turn whose previous turn comes later"),
    ],
)
def test_columns_that_contradict_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(TraceError, match=says):
        Trace(**GOOD | wrong)


@pytest.mark.parametrize(
    ("starts", "block", "says"),
    [
        ([0, 2], 0, "a block of 0 tokens"),
        ([], 16, "do not cover"),
        ([1, 2], 16, "do not cover"),
        ([0, 1], 16, "do not cover"),
        ([0, 2, 1, 2], 16, "do not cover"),
    ],
)
def test_blocks_cover_their_ids_in_order(starts: list[int], block: int, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        BlockHashes(ids=np.array([1, 2]), starts=np.array(starts, dtype=np.int64), block_tokens=block)


def test_what_is_asked_of_the_reader_is_checked_before_the_file_is_opened(tmp_path: Path) -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"on_invalid": "ignore"}, "pass error, drop or clip"),
        ({"block_tokens": 0}, "a block of 0 tokens"),
    ]
    for wrong, says in options:
        with pytest.raises(TraceError, match=says):
            read_trace(tmp_path / "missing", **wrong)


def test_names_and_patterns_stand_for_files_each_once(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c[1].csv"):
        (tmp_path / name).write_text("x")
    (tmp_path / "d.csv").mkdir()
    named = [str(tmp_path / name) for name in ("a.csv", "b.csv", "c[1].csv")]
    assert files_of(tmp_path / "*.csv") == named  # no directory
    assert files_of([tmp_path / "c[1].csv", tmp_path / "?.csv", tmp_path / "a.csv"]) == [named[2], *named[:2]]
    with pytest.raises(TraceError, match="no file has such a name"):
        files_of(tmp_path / "*.parquet")
    with pytest.raises(TraceError, match="no files"):
        files_of([])
