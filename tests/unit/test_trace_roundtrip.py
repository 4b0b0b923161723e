"""What is written reads back exactly, whatever the instants, lengths, block ids and sessions."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.errors import TraceError
from traces.read import read_trace
from traces.trace import BlockHashes, Trace, canonical_codes
from traces.write import WRITERS, write_trace

SAMPLES = Path(__file__).resolve().parents[2] / "traces" / "samples"


@st.composite
def traces(draw: st.DrawFn, *, hashed: bool | None = None) -> Trace:
    n = draw(st.integers(1, 30))
    gaps = draw(
        st.lists(st.one_of(st.just(0), st.integers(0, 10**13), st.integers(0, 2000)), min_size=n - 1, max_size=n - 1)
    )
    counts = st.lists(st.integers(1, 2**31 - 1), min_size=n, max_size=n)
    size = draw(st.sampled_from([16, 512]))
    blocks = draw(st.integers(0, 4).flatmap(lambda most: st.lists(st.integers(0, most), min_size=n, max_size=n)))
    inputs = np.array(draw(counts), dtype=np.int64)
    hashes = None
    if draw(st.booleans()) if hashed is None else hashed:
        blocks[0] = max(blocks[0], 1)
        ids = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=sum(blocks), max_size=sum(blocks)))
        hashes = BlockHashes(ids=np.array(ids, dtype=np.int64), starts=np.cumsum([0, *blocks]), block_tokens=size)
        inputs = np.maximum(np.array(blocks) * size, 1)
    session = parent = None
    if draw(st.booleans()):
        parent = np.array([draw(st.integers(-1, i - 1)) for i in range(n)], dtype=np.int32)
        parent[-1] = max(int(parent[-1]), n - 2) if n > 1 else -1
        roots = np.arange(n)
        for i in range(n):
            roots[i] = i if parent[i] < 0 else roots[parent[i]]
        session = canonical_codes(roots)
        if draw(st.booleans()):  # as a window leaves them: turns of one session that lost their previous one
            parent = np.where(np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))), -1, parent)
    return Trace(
        at_ns=np.cumsum([0, *gaps]),
        input_tokens=inputs.astype(np.int32),
        output_tokens=np.array(draw(counts), dtype=np.int32),
        line=np.zeros(n, dtype=np.int32),
        outcome=np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), dtype=np.int8),
        hashes=hashes,
        session=session,
        parent=parent,
    )


def _again(trace: Trace, name: str, **options: Any) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        report = write_trace(trace, path, name)
        assert report.rows == len(trace)
        back, read = read_trace(path, **options)
        assert read.rows == read.kept == len(trace)
        assert [p.name for p in Path(folder).iterdir()] == ["trace"]
    return back


@settings(max_examples=25)
@given(trace=traces(), name=st.sampled_from(["csv", "parquet"]))
def test_our_tables_keep_everything(trace: Trace, name: str) -> None:
    back = _again(trace, name)
    assert back.sha256 == trace.sha256
    assert np.array_equal(back.outcome, trace.outcome)


@settings(max_examples=25)
@given(trace=traces(hashed=True), name=st.sampled_from(["mooncake", "timed_trace"]))
def test_json_lines_keep_instants_lengths_and_blocks(trace: Trace, name: str) -> None:
    assert trace.hashes is not None
    back = _again(trace, name, format=name, block_tokens=trace.hashes.block_tokens)
    assert back.hashes is not None
    for column in ("at_ns", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(back, column), getattr(trace, column))
    assert np.array_equal(back.hashes.ids, trace.hashes.ids)
    assert np.array_equal(back.hashes.starts, trace.hashes.starts)


def test_writers_say_what_they_lose_and_how_to_read_on(tmp_path: Path) -> None:
    trace, _ = read_trace(SAMPLES / "chat.jsonl")
    report = write_trace(trace, tmp_path / "t.jsonl", "timed_trace")
    assert "--timed-trace-chunk-hash-size 512" in report.hint
    assert "sessions and parents" not in report.lost  # it has none
    plain, _ = read_trace(SAMPLES / "steps.csv")
    assert "outcomes" not in write_trace(plain, tmp_path / "t.csv", "csv").lost


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    plain, _ = read_trace(SAMPLES / "steps.csv")
    with pytest.raises(TraceError, match="no block ids"):
        write_trace(plain, tmp_path / "t", "timed_trace")
    with pytest.raises(TraceError, match="no writer for 'xlsx'; pass one of timed_trace"):
        write_trace(plain, tmp_path / "t", "xlsx")
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(plain, tmp_path / "none" / "t", "csv")
    assert list(tmp_path.iterdir()) == []
    assert set(WRITERS) == {"timed_trace", "mooncake", "csv", "parquet"}
