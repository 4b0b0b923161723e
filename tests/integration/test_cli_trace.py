"""`loadgen trace` from end to end: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cli import LOADGEN, Forks
from traces.read import read_trace

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"


def test_describe_gives_people_what_it_gives_programs(loadgen: Any) -> None:
    shown = loadgen("trace", "describe", str(SAMPLES / "chat.jsonl"), "--max-model-len", "1200").stdout
    told = json.loads(
        loadgen("trace", "describe", str(SAMPLES / "chat.jsonl"), "--max-model-len", "1200", "--json").stdout
    )
    assert told["read"]["format"] == "mooncake"
    assert told["arrivals"]["dispersion"]["60"] is None  # too short to say
    assert f"rate {told['arrivals']['rate']:.4f}/s" in shown
    assert f"{told['prefix']['tokens']:.2%} of input tokens" in shown
    assert f"{told['over_long']:.2%} of requests have more than 1200 tokens" in shown
    assert sum(told["series"]) == told["rows"] == 8
    assert "█" in shown


@pytest.mark.parametrize(("encoding", "columns"), [pytest.param("utf-8", 20, marks=pytest.mark.slow), ("ascii", 40)])
def test_the_plot_survives_a_pipe_a_narrow_terminal_and_a_poor_encoding(encoding: str, columns: int) -> None:
    done = subprocess.run(
        [*LOADGEN, "trace", "describe", str(SAMPLES / "steps.csv"), "--bins", "4"],
        capture_output=True,
        check=True,
        env={**os.environ, "COLUMNS": str(columns), "PYTHONIOENCODING": encoding},
    )
    bars = done.stdout.decode(encoding).splitlines()[-4:]
    assert all(len(bar) <= columns for bar in bars)
    assert ("#" if encoding == "ascii" else "█") in bars[0]


@pytest.mark.parametrize("to", ["mooncake", "timed_trace", "csv", "parquet"])
def test_convert_writes_what_reads_back_the_same_and_says_what_is_lost(loadgen: Any, tmp_path: Path, to: str) -> None:
    done = loadgen("trace", "convert", str(SAMPLES / "chat.jsonl"), f"out.{to}", "--to", to)
    assert f"not held by {to}: source lines" in done.stdout
    back, _ = read_trace(tmp_path / f"out.{to}")
    assert back.sha256 == read_trace(SAMPLES / "chat.jsonl")[0].sha256


def test_convert_names_sessions_that_the_format_has_no_place_for(loadgen: Any) -> None:
    done = loadgen("trace", "convert", str(SAMPLES / "turns.csv"), "t.jsonl", "--to", "mooncake", "--json")
    assert json.loads(done.stdout)["written"]["lost"] == ["source lines", "outcomes", "sessions and parents"]


def test_a_table_of_any_layout_is_read_by_a_map_and_a_unit(loadgen: Any, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("ts,p,c\n5,10,3\n7,11,4\n9,-2,4\n")
    options = ["--map", "timestamp=ts,input=p,output=c", "--unit", "ms", "--on-invalid", "drop", "--json"]
    told = json.loads(loadgen("trace", "describe", "r.csv", *options).stdout)
    assert told["read"]["dropped"] == {"negative_input": 1}
    assert told["arrivals"]["span_s"] == 0.002


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["describe", "none.csv"], "none.csv: no such file"),
        (["describe", "a.csv", "--format", "nope"], "no format is called 'nope'"),
        (["describe", "a.csv", "--map", "timestamp"], "'timestamp' is not NAME=COLUMN"),
        (["describe", "a.csv", "--map", "input=a,input=b"], "input is given twice"),
        (["describe", "a.csv", "--on-invalid", "ignore"], "--on-invalid: Input should be 'error', 'drop' or 'clip'"),
        (["describe", "a.csv"], "a.csv:3:"),
        (["convert", "a.csv", "b", "--to", "xml", "--on-invalid", "drop"], "no writer for 'xml'"),
        (["convert", "a.csv", "b", "--to", "timed_trace", "--on-invalid", "drop"], "no block ids"),
        (["convert", "a.csv", "no/b", "--to", "csv", "--on-invalid", "drop"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    loadgen: Any, tmp_path: Path, arguments: list[str], says: str
) -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,0,109\n"
    (tmp_path / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    done = loadgen("trace", *arguments, code=2)
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "b").exists()


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50,396,109\n"


def test_convert_replaces_nothing_unasked_and_no_link_pipe_or_device_ever(loadgen: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "old.csv").write_text("old")
    (tmp_path / "old.csv").chmod(0o640)
    (tmp_path / "link.csv").symlink_to("old.csv")
    (tmp_path / "own.csv").symlink_to("a.csv")
    (tmp_path / "nowhere.csv").symlink_to("none.csv")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for target, says in {
        "old.csv": "exists; pass another name, or --force",
        "link.csv": "exists; pass another name, or --force",
        "a.csv": "is what is read",
        "own.csv": "is what is read",
        "nowhere.csv": "a link to nothing",
        "pipe": "is a pipe, not a file",
        "folder": "is a directory",
    }.items():
        force = [] if "exists" in says else ["--force"]
        done = loadgen("trace", "convert", "a.csv", target, "--to", "csv", *force, code=2)
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "old.csv").read_text() == "old"
    assert (tmp_path / "a.csv").read_text() == AZURE
    loadgen("trace", "convert", "a.csv", "link.csv", "--to", "csv", "--force")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "old.csv").stat().st_mode & 0o777 == 0o640
    assert read_trace(tmp_path / "old.csv")[1].kept == 2
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_a_device_is_not_replaced(loadgen: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "null").symlink_to(os.devnull)  # through a link: a mistake here must not cost the machine its /dev/null
    done = loadgen("trace", "convert", "a.csv", "null", "--to", "csv", "--force", code=2)
    assert "is a device, not a file; pass a file, or - for standard output" in done.stderr


@pytest.mark.parametrize("to", ["mooncake", "csv", "parquet"])
def test_convert_works_between_pipes(forked: Forks, to: str, tmp_path: Path) -> None:
    done = forked("trace", "convert", "-", "-", "--to", to, cwd=tmp_path, given=AZURE.encode())
    assert done.returncode == 0, done.stderr
    assert b"wrote -: 2 rows" in done.stderr
    (tmp_path / "t").write_bytes(done.stdout)
    assert read_trace(tmp_path / "t")[0].input_tokens.tolist() == [374, 396]


def test_describe_counts_the_silence_of_a_window(loadgen: Any, tmp_path: Path) -> None:
    rows = [0, *(60 + i / 10 for i in range(30)), 200]
    (tmp_path / "t.csv").write_text("t,i,o\n" + "".join(f"{at},10,5\n" for at in rows))
    options = ["--map", "timestamp=t,input=i,output=o", "--unit", "s", "--window", "30s..130s"]
    told = json.loads(loadgen("trace", "describe", "t.csv", *options, "--json").stdout)
    assert (told["rows"], told["window"]) == (30, "window 30..130 s")
    assert told["arrivals"]["rate"] == pytest.approx(0.3)
    assert "30 requests; rate 0.3000/s over 100.000 s" in loadgen("trace", "describe", "t.csv", *options).stdout
    done = loadgen("trace", "describe", "t.csv", *options[:-1], "5", code=2)
    assert "write START..END" in done.stderr


def test_describe_takes_several_files_and_patterns(loadgen: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "b.csv").write_text(AZURE.replace("18:", "19:"))
    for files in (["a.csv", "b.csv"], ["?.csv"]):
        told = json.loads(loadgen("trace", "describe", *files, "--json").stdout)
        assert (told["rows"], told["arrivals"]["span_s"]) == (4, 3604)
