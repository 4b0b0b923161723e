"""What a value is worth depends on itself alone; units are proved or asked for; odd files cost what plain ones do."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traces.errors import TraceError
from traces.read import read_trace

S = 10**9
MAP = {"timestamp": "t", "input": "i", "output": "o"}


def _write(tmp_path: Path, text: str | bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def _moon(*stamps: Any, blocks: int = 0, length: int = 1024) -> str:
    ids = f', "hash_ids": {list(range(-(-length // blocks)))}' if blocks else ""
    return "".join(f'{{"timestamp": {at}, "input_length": {length}, "output_length": 5{ids}}}\n' for at in stamps)


@pytest.mark.parametrize(
    ("text", "form", "span_s"),
    [
        (_moon(0, 3052, 6104, blocks=16), "mooncake", 6.104),
        (_moon(0, 3052, 6104, blocks=512), "mooncake", 6.104),
        (_moon(0, 3052, 6104), "mooncake", 6.104),
        (_moon(0.5, 1.5, 2.25, blocks=512), "timed_trace", 1.75),
        (_moon(0.5, 1.5, 2.25), "timed_trace", 1.75),
        (_moon(0, 1, 2, blocks=512), None, 0),
        (_moon(0, 1, 2, blocks=16), None, 0),
        (_moon(0, 1, 2), None, 0),
        (_moon(0.5, 900.25, blocks=512), None, 0),
        (_moon(7, 7, blocks=16), "timed_trace", 0),
        (_moon(7, 7), None, 0),
    ],
)
def test_a_unit_is_proved_by_the_rate_or_asked_for(text: str, form: str | None, span_s: float, tmp_path: Path) -> None:
    path = _write(tmp_path, text)
    if form is None:
        with pytest.raises(TraceError, match=r"fits several formats.*--format mooncake.*--format timed_trace"):
            read_trace(path)
        return
    trace, report = read_trace(path)
    assert (report.format, report.span_s) == (form, span_s)
    assert any("seconds" in note or "one instant" in note for note in report.notes)
    if trace.hashes is not None:
        assert trace.hashes.counts[0] == -(-1024 // trace.hashes.block_tokens)


def test_what_we_wrote_is_not_read_as_another_unit(tmp_path: Path) -> None:
    line = '{"timestamp": 0.5, "input_length": 5, "output_length": 5, "loadgen": {"unit": "ms", "block_tokens": 16}}\n'
    path = _write(tmp_path, line + _moon(1.5))
    assert read_trace(path)[1].span_s == 0.001
    assert read_trace(path, format="mooncake")[1].span_s == 0.001
    with pytest.raises(TraceError, match="not in format timed_trace: unit ms, as the file's first record says"):
        read_trace(path, format="timed_trace")


NUMBERS: list[tuple[str, str, Decimal | str]] = [
    ("3.123456789012345e-07", "s", Decimal("0.000000312")),
    ("0.0003123456789012345", "s", Decimal("0.000312346")),
    ("1700000000.123456789012345678901234567890", "s", Decimal("1700000000.123456789")),
    (" 5 ", "s", Decimal(5)),
    ("+5", "s", Decimal(5)),
    ("5.", "s", Decimal(5)),
    ("0,250", "s", Decimal("0.25")),
    ("1740830400,123", "s", Decimal("1740830400.123")),
    ("1,5", "s", Decimal("1.5")),
    ("1,024", "s", "bad_time"),
    ("1e25", "s", "bad_time"),
    ("1" + "0" * 25, "s", "bad_time"),
    ("9223372037", "s", "bad_time"),
    ("4611686018427387001", "ns", Decimal("4611686018.427387001")),
    ("9223372036854775808", "ns", "bad_time"),
    ("1e-400", "s", Decimal(0)),
    ("1e999999", "s", "bad_time"),
    ("1e9999999999", "s", "bad_time"),
    ("0x1F", "s", "bad_time"),
    ("१", "s", "bad_time"),
    ("1_000", "s", "bad_time"),
    ("--5", "s", "bad_time"),
]


@pytest.mark.parametrize(("text", "unit", "want"), NUMBERS, ids=[repr(n[0]) for n in NUMBERS])
@pytest.mark.parametrize("neighbour", ["", "x", "1e0", "7.0000000000000000001"])
def test_a_number_is_worth_the_same_beside_any_other(
    text: str, unit: str, want: Decimal | str, neighbour: str, tmp_path: Path
) -> None:
    rows = f't;i;o\n"{text}";1;1\n' + (f"{neighbour};2;2\n" if neighbour else "")
    path = _write(tmp_path, rows)
    try:
        trace, report = read_trace(path, mapping=MAP, unit=unit, on_invalid="drop")
    except TraceError as caught:
        assert want == "bad_time", caught  # noqa: PT017
        assert "bad_time" in str(caught)  # noqa: PT017
        return
    at = report.origin_ns + trace.at_ns[trace.input_tokens == 1]
    assert at.tolist() == ([] if isinstance(want, str) else [int(want.scaleb(9))])
    assert report.rows == 1 + bool(neighbour)


COUNTS = [(" 10", 10), ("10 ", 10), ("374.0", 374), ("007", 7), ("+5", 5), ("0x1F", None), ("1e3", None), ("3.5", None)]


@pytest.mark.parametrize(("text", "want"), COUNTS)
@pytest.mark.parametrize("neighbour", ["5", "", "x", "5.0", '"9" '])
def test_a_count_is_worth_the_same_beside_any_other(
    text: str, want: int | None, neighbour: str, tmp_path: Path
) -> None:
    path = _write(tmp_path, f"t;i;o\n1;{text};5\n2;{neighbour};6\n3;7;7\n")
    trace, _ = read_trace(path, mapping=MAP, unit="s", on_invalid="drop")
    assert trace.input_tokens[trace.line == 2].tolist() == ([] if want is None else [want])


def test_a_row_that_has_only_other_columns_is_no_blank_line(tmp_path: Path) -> None:
    text = "t,i,o,note\n1,10,5,a\n,,,b\n,,,\n\n2,10,5,c\n"
    for tail in ("", '3,10,5,"quoted\nline"\n'):  # with and without what Arrow's parser leaves to ours
        _, report = read_trace(_write(tmp_path, text + tail), mapping=MAP, unit="s", on_invalid="drop")
        assert report.dropped == {"missing_time": 1}


PARQUET = [
    (pa.array([0, 1_500_000], pa.duration("us")), "us", [0, 1_500_000_000]),
    (pa.array([0, 1_500], pa.duration("ms")), "ns", [0, 1_500_000_000]),
    (pa.array([Decimal("0.5"), Decimal("1.75")], pa.decimal128(10, 2)), "s", [0, 1_250_000_000]),
    (pa.array([Decimal("0.5"), Decimal("1.75")], pa.decimal256(60, 30)), "s", [0, 1_250_000_000]),
    (pa.array([5, 2**63 + 1], pa.uint64()), "ns", None),
    (pa.array([Decimal(5), Decimal(10) ** 30], pa.decimal128(38, 0)), "s", None),
    (pa.array([0, 2**62], pa.timestamp("us")), "iso", None),
    (pa.array([True, False]), "s", None),
    (pa.array([[1], [2]]), "s", None),
]


@pytest.mark.parametrize(("at", "unit", "want"), PARQUET, ids=[f"{a.type} {u}" for a, u, _ in PARQUET])
def test_parquet_types_are_read_in_their_own_unit_or_refused(
    at: pa.Array, unit: str, want: list[int] | None, tmp_path: Path
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"t": at, "i": [5, 6], "o": [7, 8]}), path)
    if want is None:
        with pytest.raises(TraceError):
            read_trace(path, mapping=MAP, unit=unit)
    else:
        assert read_trace(path, mapping=MAP, unit=unit)[0].at_ns.tolist() == want


@pytest.mark.parametrize(
    ("counts", "reasons"),
    [
        (pa.array([2**63 + 5, 6], pa.uint64()), {"huge_input": 1}),
        (pa.array([Decimal("374.00"), Decimal("0.5")], pa.decimal128(10, 2)), {"bad_input": 1}),
        (pa.array([1e20, 6.0]), {"bad_input": 1}),
    ],
)
def test_parquet_counts_do_not_wrap_around(counts: pa.Array, reasons: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"t": [0, 1], "i": counts, "o": [7, 8]}), path)
    assert read_trace(path, mapping=MAP, unit="s", on_invalid="drop")[1].dropped == reasons


def _seconds(path: Path, **options: Any) -> float:
    began = time.process_time()
    read_trace(path, mapping=MAP, **options)
    return time.process_time() - began


def _csv(rows: int, line: str) -> str:
    return "t,i,o,note\n0,10,5,x\n" + "".join(line.format(n) for n in range(1, rows))


@pytest.mark.parametrize(
    ("line", "unit"),
    [
        ('"{0}","10","5","a 5"" screen"\n', "s"),
        ('{0},10,5,a 5" screen\n', "s"),
        ("x{0},10,5,x\n", "s"),
        ("{0},x,5,x\n", "s"),
        ("{0}.0000000000000000001,10,5,x\n", "s"),
        pytest.param("2025-02-30 00:00:00,10,5,{0}\n", "iso", marks=pytest.mark.slow),
        pytest.param("2025-02-20 00:00:00 UTC,10,5,{0}\n", "iso", marks=pytest.mark.slow),
    ],
    ids=["quotes", "stray quotes", "bad times", "bad counts", "many places", "no such day", "utc"],
)
def test_bad_rows_cost_microseconds_each(line: str, unit: str, tmp_path: Path) -> None:
    head = _csv(100_000, line).replace(
        "0,10,5,x\n", "2025-02-20 00:00:00 UTC,10,5,x\n" if unit == "iso" else "0,10,5,x\n", 1
    )
    path = _write(tmp_path, head)
    assert _seconds(path, unit=unit, on_invalid="drop") < 4  # it was 20 s and more


def test_a_stray_quote_costs_no_more_in_twice_the_rows(tmp_path: Path) -> None:
    took = []
    for rows in (20_000, 80_000):
        text = _csv(rows, '"{0}","10","5","x"\n').replace("0,10,5,x\n", '0,10,5,a 5" screen\n', 1)
        took.append(_seconds(_write(tmp_path, text), unit="s"))
    assert took[1] < 12 * took[0] + 0.2


def test_a_quote_that_closes_far_away_holds_its_lines_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from traces.source import Source

    whole = Source.blocks
    monkeypatch.setattr(Source, "blocks", lambda self, *, quoted=b"": whole(self, quoted=quoted, block_bytes=700))
    monkeypatch.setattr("traces.source.HEAD_BYTES", 64)
    text = "t,i,o,note\n"
    for n in range(200):
        text += f'{n},{n + 1},5,"' + f"line {n}, x\n" * (n % 7) + '"\n'
    trace, _ = read_trace(_write(tmp_path, text.replace('""x""', '""x""')), mapping=MAP, unit="s")
    assert trace.input_tokens.tolist() == list(range(1, 201))


def _one_line(path: Path, rows: int) -> None:
    record = {"traceId": "t", "type": "GENERATION", "usageDetails": {"input": 100, "output": 20}, "metadata": "b" * 300}
    with path.open("w") as file:
        for n in range(rows):
            stamp = f"2025-05-29T13:{n // 60000 % 60:02}:{n // 1000 % 60:02}.{n % 1000:03}Z"
            file.write(("[" if n == 0 else ",") + json.dumps(record | {"id": n, "startTime": stamp}))
        file.write("]")


MEASURE = """
import sys
from pathlib import Path
from traces.read import read_trace
def peak():  # not ru_maxrss: a child inherits that of the process that started it
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024
before = peak()
trace, _ = read_trace(sys.argv[1])
print(len(trace), peak() - before)
"""


@pytest.mark.slow
def test_an_export_on_one_line_takes_the_memory_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "one_line.json"
    _one_line(path, 40_000)  # 18 MB; all of it parsed at once took 150 MiB
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    rows, mib = map(int, done.stdout.split())
    assert rows == 40_000
    assert mib < 100


@pytest.mark.slow
def test_an_export_of_more_than_64_mib_on_one_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one_line.json"
    _one_line(path, 170_000)
    assert path.stat().st_size > 64 << 20
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    rows, mib = map(int, done.stdout.split())
    assert rows == 170_000
    assert mib < 200


@pytest.mark.parametrize("filler", [70_000, 3_000_000])
def test_a_first_line_of_any_length_is_looked_at_whole(filler: int, tmp_path: Path) -> None:
    rows = [{"t": 0, "prompt": "x" * filler, "i": 10, "o": 5}, {"t": 1, "i": 11, "o": 5}]
    path = _write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert read_trace(path, mapping=MAP, unit="s")[0].input_tokens.tolist() == [10, 11]


def test_a_broken_first_line_costs_one_row(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"t": 0, "i": 1\n' + '{"t": 1, "i": 10, "o": 5}\n' * 3)
    trace, report = read_trace(path, mapping=MAP, unit="s", on_invalid="drop")
    assert (len(trace), report.dropped) == (3, {"bad_row": 1})


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_is_read(pack: Any, tmp_path: Path) -> None:
    text = pack(b"t,i,o\n" + b"".join(b"%d,10,5\n" % n for n in range(50_000)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    trace, _ = read_trace(pipe, mapping=MAP, unit="s")
    writer.join()
    assert len(trace) == 50_000


def test_parquet_through_a_pipe_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": [0, 1], "i": [5, 6], "o": [7, 8]}), tmp_path / "t.parquet")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=((tmp_path / "t.parquet").read_bytes(),))
    writer.start()
    trace, _ = read_trace(pipe, mapping=MAP, unit="s")
    writer.join()
    assert trace.output_tokens.tolist() == [7, 8]
