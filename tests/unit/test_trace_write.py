"""Where a trace may be written, and what is refused before anything is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from traces.errors import TraceError
from traces.trace import Trace
from traces.write import refuse_target, write_trace

TRACE = Trace(
    at_ns=np.array([0, 5_000_000]),
    input_tokens=np.array([10, 20]),
    output_tokens=np.array([1, 2]),
    line=np.array([1, 2]),
    outcome=np.zeros(2, dtype=np.int8),
)


def test_standard_output_is_written_to_and_always_may_be(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    refuse_target("-", force=False)
    report = write_trace(TRACE, "-", "csv")
    assert (report.path, report.rows) == ("-", 2)
    assert len(capfdbinary.readouterr().out.splitlines()) == 3  # a header and two rows


@pytest.mark.parametrize(
    ("kind", "says", "remedy"),
    [
        ("directory", "is a directory, not a file", "pass a file in it"),
        ("pipe", "is a pipe, not a file", "- for standard output"),
        ("device", "is a device, not a file", "- for standard output"),
        ("dangling", "a link to nothing", "the path that it should lead to"),
        ("below a file", "cannot be written (Not a directory)", "pass a path that can"),
        ("source", "is what is read", "another name"),
    ],
)
def test_what_must_not_be_replaced_is_not_even_by_force(tmp_path: Path, kind: str, says: str, remedy: str) -> None:
    path = tmp_path / "target"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.write_text("kept")
    target = path / "t.csv" if kind == "below a file" else path
    with pytest.raises(TraceError) as refused:
        refuse_target(target, force=True, sources=[str(path), "-"] if kind == "source" else [])
    assert says in str(refused.value)
    assert remedy in str(refused.value)
    with pytest.raises(TraceError):
        write_trace(TRACE, target, "csv", force=kind != "source")
    assert path.is_symlink() or path.exists()
    assert not path.is_file() or path.read_text() == "kept"


def test_a_file_is_replaced_by_force_alone_and_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "t.csv", tmp_path / "link.csv"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(TraceError, match=r"exists.*--force"):
        write_trace(TRACE, link, "csv")
    assert path.read_text() == "old"
    write_trace(TRACE, link, "csv", force=True)
    assert link.is_symlink()
    assert len(path.read_text().splitlines()) == 3
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, path]
