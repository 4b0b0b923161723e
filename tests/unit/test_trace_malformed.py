"""Every way a trace file is known to be broken, and the one line that answers it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.errors import TraceError, printable
from traces.read import read_trace

HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
A = b"2023-11-16 18:15:46.6805900,374,44\n"
B = b"2023-11-16 18:15:50.9951690,396,109\n"
C = b"2023-11-16 18:15:51.2224670,879,55\n"
BURST = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOON = b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
MAP = {"timestamp": "t", "input": "i", "output": "o"}


@dataclass(frozen=True)
class Bad:
    """A file, and parts of its answer in order; `line` is 0 where no line is to blame."""

    name: str
    data: bytes
    line: int
    says: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


def _azure(*rows: bytes) -> bytes:
    return HEAD + b"".join(rows)


REFUSED = [
    Bad("empty", b"", 0, ("the file is empty", "0 rows")),
    Bad("only_blank_lines", b"\n \r\n\n", 0, ("the file is empty",)),
    Bad("only_a_bom", b"\xef\xbb\xbf", 0, ("the file is empty",)),
    Bad("header_only", HEAD, 0, ("a header and no rows", "0 rows", "pass a file with requests")),
    Bad("git_lfs_pointer", LFS, 0, ("a Git-LFS pointer", "git lfs pull")),
    Bad("utf16_with_bom", _azure(A).decode().encode("utf-16"), 0, ("UTF-16 text", "iconv -f UTF-16 -t UTF-8")),
    Bad("utf16_without_bom", _azure(A).decode().encode("utf-16-le"), 0, ("UTF-16 text", "iconv")),
    Bad("nul_byte", _azure(A, b"2023-11-16 18:15:50.9951690,39\x006,109\n", C), 3, ("a NUL byte", "binary or damaged")),
    Bad("zeros_at_the_end", _azure(A, B) + b"\0" * 9, 4, ("a NUL byte",)),
    Bad("bare_carriage_returns", _azure(A, B).replace(b"\n", b"\r"), 0, ("bare carriage return",)),
    Bad("truncated_gzip", gzip.compress(_azure(A, B) * 50)[:60], 1, ("damaged or ends early", "fetch the file again")),
    Bad("damaged_gzip", b"\x1f\x8b\x08\x00garbage, not deflate", 1, ("damaged or ends early",)),
    Bad("damaged_zstd", b"\x28\xb5\x2f\xfdgarbage", 1, ("damaged or ends early",)),
    Bad("damaged_parquet", b"PAR1garbagegarbage", 0, ("damaged Parquet",)),
    Bad("gzip_of_parquet", gzip.compress(b"PAR1garbage"), 0, ("Parquet inside gzip", "unpack it")),
    Bad(
        "row_cut_short",
        _azure(A, B, b"2023-11-16 18:15:51.2224670,87"),
        4,
        ("the row cannot be parsed", "1 of 3 rows cannot be used (1 bad_row)", "--on-invalid drop"),
    ),
    Bad(
        "time_cut_short", _azure(A, b"2023-11-16 18:15,396,109\n"), 3, ("timestamp cannot be read", "2023-11-16 18:15")
    ),
    Bad("one_column_too_many", _azure(A, B.replace(b"\n", b",7\n")), 3, ("the row cannot be parsed", "1 of 2 rows")),
    Bad("other_columns", b"a,b,c\n1,2,3\n", 1, ("no known format has the columns a, b, c", "--map timestamp=")),
    Bad("no_header", A + B, 1, ("no known format has the columns 2023-11-16", "--map")),
    Bad("column_twice", b"TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", 1, ("'ContextTokens' twice",)),
    Bad(
        "wrong_format_asked",
        _azure(A),
        1,
        ("not in format burstgpt: the columns are TIMESTAMP",),
        {"format": "burstgpt"},
    ),
    Bad("no_such_format", _azure(A), 0, ("no format is called 'azur'", "azure"), {"format": "azur"}),
    Bad("unit_for_a_known_format", _azure(A), 0, ("a known format defines its unit",), {"unit": "ms"}),
    Bad(
        "nan_tokens",
        _azure(A, b"2023-11-16 18:15:50.9951690,NaN,109\n"),
        3,
        ("input tokens that are not a whole number ('NaN')", "1 of 2 rows", "drop"),
    ),
    Bad("fractional_tokens", _azure(b"2023-11-16 18:15:50.9951690,3.5,109\n", A), 2, ("not a whole number ('3.5')",)),
    Bad(
        "hexadecimal_tokens", _azure(b"2023-11-16 18:15:50.9951690,0x1F,109\n", A), 2, ("not a whole number ('0x1F')",)
    ),
    Bad(
        "tokens_with_commas",
        _azure(b'2023-11-16 18:15:50.9951690,"1,024",109\n', A),
        2,
        ("not a whole number ('1,024')",),
    ),
    Bad(
        "text_for_tokens",
        _azure(A, b"2023-11-16 18:15:50.9951690,396,many\n"),
        3,
        ("tokens that are not a whole",),
    ),
    Bad(
        "negative_tokens",
        _azure(A, b"2023-11-16 18:15:50.9951690,-396,109\n"),
        3,
        ("negative input tokens ('-396')", "(1 negative_input)", "or clip"),
    ),
    Bad("zero_tokens", _azure(A, b"2023-11-16 18:15:50.9951690,396,0\n"), 3, ("zero output tokens ('0')", "or clip")),
    Bad(
        "missing_tokens", _azure(A, b"2023-11-16 18:15:50.9951690,,109\n"), 3, ("no input tokens", "(1 missing_input)")
    ),
    Bad("huge_tokens", _azure(A, b"2023-11-16 18:15:50.9951690,99999999999,1\n"), 3, ("input tokens beyond 2^31",)),
    Bad(
        "tokens_beyond_64_bits",
        _azure(A, b"2023-11-16 18:15:50.9951690,1,9" + b"9" * 30 + b"\n"),
        3,
        ("output tokens beyond 2^31",),
    ),
    Bad("missing_time", _azure(A, b",396,109\n"), 3, ("no timestamp", "1 of 2 rows")),
    Bad("impossible_day", _azure(A, b"2023-02-30 18:15:50.9951690,396,109\n"), 3, ("timestamp cannot be read",)),
    Bad("year_9999", _azure(A, b"9999-12-31 23:59:59,396,109\n"), 3, ("timestamp cannot be read ('9999-12-31",)),
    Bad("ten_decimals", _azure(A, b"2023-11-16 18:15:50.9951690123,396,109\n"), 3, ("timestamp cannot be read",)),
    Bad(
        "centuries_apart",
        _azure(b"1700-01-01 00:00:00,1,1\n", b"2200-01-01 00:00:00,1,1\n"),
        0,
        ("instants 500 years apart", "wrong unit"),
    ),
    Bad("leap_second", _azure(b"2016-12-31 23:59:60.5,396,109\n", A), 2, ("leap second", "(1 leap_second)")),
    Bad(
        "mixed_zones",
        _azure(A, b"2023-11-16 18:15:50.9951690+00:00,396,109\n"),
        3,
        ("with and without a time zone", "give every time its zone"),
        {"on_invalid": "drop"},
    ),
    Bad("epoch_among_dates", _azure(A, b"1700158550.995169,396,109\n"), 3, ("timestamp cannot be read ('1700158550",)),
    Bad("terminal_escapes", _azure(A, b"\x1b[31mred,396,109\n"), 3, (r"('\\x1b[31mred')",)),
    Bad("not_utf8", _azure(A, b"\xff\xfe2023,396,109\n"), 3, ("timestamp cannot be read",)),
    Bad("negative_time", BURST + b"-5,ChatGPT,472,18,490,x\n7,ChatGPT,1,2,3,x\n", 2, ("a negative timestamp ('-5')",)),
    Bad("infinite_time", BURST + b"inf,ChatGPT,472,18,490,x\n", 2, ("timestamp cannot be read ('inf')", "--format")),
    Bad("time_beyond_64_bits", BURST + b"1e30,GPT-4,472,18,490,x\n7,GPT-4,1,2,3,x\n", 2, ("cannot be read ('1e30')",)),
    Bad("only_failures", BURST + b"5,ChatGPT,472,0,472,x\n", 0, ("no request that could be sent", "1 failed", "clip")),
    Bad(
        "a_json_line_cut_short",
        MOON + b'{"timestamp": 3000, "input_len',
        2,
        ("the row cannot be parsed", "1 of 2 rows"),
    ),
    Bad("a_list_among_objects", MOON + b"[1, 2]\n", 2, ("the row cannot be parsed",)),
    Bad("json_nan", MOON + MOON.replace(b'timestamp": 0', b'timestamp": NaN'), 2, ("cannot be read ('NaN')",)),
    Bad("json_true", MOON + MOON.replace(b'output_length": 5', b'output_length": true'), 2, ("not a whole number",)),
    Bad("json_exponent", MOON + MOON.replace(b'timestamp": 0', b'timestamp": 1e30'), 2, ("cannot be read",)),
    Bad("json_too_deep", MOON + b"[" * 200_000 + b"\n", 2, ("the row cannot be parsed",)),
    Bad("json_endless_exponent", MOON + MOON.replace(b'": 0,', b'": 0e9999999999999999999,'), 2, ("cannot be read",)),
    Bad(
        "fractional_hashes", MOON + MOON.replace(b"[0, 1]", b"[0.5]"), 2, ("block ids that are not a list of integers",)
    ),
    Bad(
        "no_hashes_no_unit",
        b'{"timestamp": 1, "input_length": 600, "output_length": 5}\n',
        1,
        ("fits several formats", "--format mooncake (", "--format timed_trace ("),
    ),
    Bad(
        "wrong_block_size",
        MOON.replace(b"600", b"1000") * 3,
        1,
        ("about 500 tokens each, not 16", "--block-tokens 512"),
        {"format": "timed_trace"},
    ),
    Bad(
        "a_json_document_cut_short",
        b'[{"startTime": "2025-12-17T16:09:00.875Z", "traceId": "t1",\n "usageDetails"',
        2,
        ("not JSON", "cut short"),
    ),
    Bad("servegen_rates", b"0,0,0,,0,0\n600,0.085,6.69,Gamma,0.02,73.0\n", 1, ("a ServeGen rate table", "generator")),
    Bad(
        "map_without_unit",
        b"t,i,o\n1,2,3\n",
        0,
        ("the unit of the timestamps is not known", "--unit"),
        {"mapping": MAP},
    ),
    Bad("map_of_other_columns", b"x,i,o\n1,2,3\n", 1, ("no column t", "x, i, o"), {"mapping": MAP, "unit": "s"}),
    Bad(
        "map_without_output",
        b"t,i,o\n1,2,3\n",
        0,
        ("--map lacks output",),
        {"mapping": {"timestamp": "t", "input": "i"}},
    ),
    Bad("over_long", _azure(A, B), 3, ("more tokens than --max-model-len", "(1 over_long)"), {"max_tokens": 450}),
]


@pytest.mark.parametrize("bad", REFUSED, ids=lambda bad: bad.name)
def test_refused_in_one_line(bad: Bad, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(bad.data)
    with pytest.raises(TraceError) as caught:
        read_trace(path, **bad.options)
    answer = str(caught.value)
    assert answer.isprintable()
    assert answer.startswith(f"{path}:{bad.line}: " if bad.line else f"{path}: ")
    for part in bad.says:
        assert part in answer
    assert caught.value.remedy


def test_there_are_enough_of_them() -> None:
    assert len({bad.name for bad in REFUSED}) == len(REFUSED) >= 40


def test_no_such_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="is a directory"):
        read_trace(tmp_path)


def _read(tmp_path: Path, data: bytes, **options: Any) -> Any:
    path = tmp_path / "trace"
    path.write_bytes(data)
    return read_trace(path, **options)


def _tar(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def _zip(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        _azure(A, B, C),
        _azure(A, B, C).replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + _azure(A, B, C),
        _azure(A, B, C).rstrip(),
        _azure(A, B, C) + b"\n\r\n",
        _azure(A, b"\n", B, b"  \n", C),
        gzip.compress(_azure(A)) + gzip.compress(B + C),
        pa.compress(_azure(A, B, C), codec="zstd", asbytes=True),
        _azure(A, B, C).replace(b"374", b"374.0").replace(b",396,", b',"396",'),
        _azure(A, B, C).replace(b"TIMESTAMP,", b" TIMESTAMP ,"),
        _azure(A, B, C).replace(b",", b";"),
        _azure(A, B, C).replace(b",", b"\t"),
        _azure(A, B, C).replace(b",", b", "),
        bz2.compress(_azure(A, B, C)),
        lzma.compress(_azure(A, B, C)),
        gzip.compress(_tar({"t.csv": _azure(A, B, C), "._t.csv": b"x"})),
        _zip({"a/t.csv": _azure(A, B, C), "__MACOSX/._t.csv": b"x"}),
        _zip({"t.csv.gz": gzip.compress(_azure(A, B, C))}),
    ],
    ids=["plain", "crlf", "bom", "no_final_newline", "trailing_blanks", "inner_blanks", "gzip_members", "zstd",
         "quotes_and_point_zero", "spaces_in_header", "semicolons", "tabs", "blanks", "bz2", "xz",
         "tar_gz", "zip", "gzip_in_zip"],
)  # fmt: skip
def test_harmless_variants_read_the_same(data: bytes, tmp_path: Path) -> None:
    trace, report = _read(tmp_path, data)
    assert trace.at_ns.tolist() == [0, 4_314_579_000, 4_541_877_000]
    assert trace.input_tokens.tolist() == [374, 396, 879]
    assert (report.rows, report.kept, report.dropped) == (3, 3, {})


@pytest.mark.parametrize("pack", [_tar, _zip])
def test_an_archive_of_several_files_is_named_with_them(pack: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"archive of 2 files \(a.csv, b.csv\)"):
        _read(tmp_path, pack({"a.csv": _azure(A), "b.csv": _azure(B)}))


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, lambda data: _zip({"a": data})])
def test_a_damaged_archive_is_one_line(pack: Any, tmp_path: Path) -> None:
    whole = pack(_azure(A, *[B] * 20_000))
    with pytest.raises(TraceError):
        _read(tmp_path, whole[: len(whole) // 2])
    broken = whole[: len(whole) // 2] + bytes(20) + whole[len(whole) // 2 + 20 :]
    with pytest.raises(TraceError):
        _read(tmp_path, broken)


def test_lines_are_exact_behind_blanks_and_quoted_line_ends(tmp_path: Path) -> None:
    trace, _ = _read(tmp_path, _azure(A, b"\n", B, b"\n\n", C))
    assert trace.line.tolist() == [2, 4, 7]
    rows = b"request_created_at,prompt_tokens,completion_tokens,request_body\n"
    rows += b'2024-01-01T00:00:00Z,5,6,"a ""b"",\n\nc"\n2024-01-01T00:00:01Z,7,8,x\n'
    trace, _ = _read(tmp_path, rows)
    assert trace.line.tolist() == [2, 5]
    assert trace.input_tokens.tolist() == [5, 7]


def test_one_row_is_a_trace_without_a_rate(tmp_path: Path) -> None:
    trace, report = _read(tmp_path, _azure(A))
    assert len(trace) == 1
    assert report.span_s == 0
    assert report.rate != report.rate


def test_rows_out_of_order_are_sorted_stably_and_counted(tmp_path: Path) -> None:
    rows = [b"%d,m,%d,1,2,x\n" % (at, n) for n, at in enumerate([7, 5, 7, 5, 9], start=1)]
    trace, report = _read(tmp_path, BURST + b"".join(rows))
    assert trace.at_ns.tolist() == [0, 0, 2 * 10**9, 2 * 10**9, 4 * 10**9]
    assert trace.input_tokens.tolist() == [2, 4, 1, 3, 5]
    assert trace.line.tolist() == [3, 5, 2, 4, 6]
    assert (report.inversions, report.ties, report.resolution_ns, report.origin_ns) == (2, 2, 2 * 10**9, 5 * 10**9)
    assert any(note.startswith("line 3: the clock steps back by 2 s") for note in report.notes)


def test_a_clock_set_back_from_summer_time_is_pointed_out(tmp_path: Path) -> None:
    rows = [b"2023-11-05 01:59:59.0,1,1\n", b"2023-11-05 01:00:01.0,1,1\n"]
    _, report = _read(tmp_path, _azure(*rows))
    assert report.inversions == 1
    assert any("summer time" in note for note in report.notes)
    with_zone = [rows[0].replace(b".0", b"-05:00"), rows[1].replace(b".0", b"-06:00")]
    trace, report = _read(tmp_path, _azure(*with_zone))
    assert report.inversions == 0
    assert trace.at_ns.tolist() == [0, 2 * 10**9]


def test_drop_and_clip_account_for_every_row(tmp_path: Path) -> None:
    faulty = _azure(
        A,
        b"2023-11-16 18:15:47,-1,0\n",
        b"x,1,1\n",
        b"2023-11-16 18:15:48,,5\n",
        b"1\n",
        b"2023-11-16 18:15:49,5,3000000000\n",
    )
    trace, report = _read(tmp_path, faulty, on_invalid="drop")
    assert len(trace) == report.kept == 1
    assert report.rows == 6 == report.kept + sum(report.dropped.values())
    assert report.dropped == {"bad_row": 1, "bad_time": 1, "missing_input": 1, "negative_input": 1, "huge_output": 1}
    trace, report = _read(tmp_path, faulty, on_invalid="clip")
    assert trace.input_tokens.tolist() == [374, 1, 1, 5]
    assert trace.output_tokens.tolist() == [44, 1, 5, 2**31 - 1]
    assert report.rows == 6 == report.kept + sum(report.dropped.values())
    assert report.clipped == {"missing_input": 1, "negative_input": 1, "huge_output": 1}


def test_over_long_rows_are_cut_to_the_bound(tmp_path: Path) -> None:
    trace, report = _read(tmp_path, _azure(A, B, C), max_tokens=450, on_invalid="clip")
    assert (trace.input_tokens + trace.output_tokens).tolist() == [418, 450, 450]
    assert trace.input_tokens.tolist() == [374, 396, 449]
    assert report.clipped == {"over_long": 2}


def test_recorded_failures_are_left_out_under_error_and_kept_by_clip(tmp_path: Path) -> None:
    rows = BURST + b"5,m,10,0,10,x\n6,m,11,2,13,x\n"
    trace, report = _read(tmp_path, rows)
    assert trace.input_tokens.tolist() == [11]
    assert report.dropped == {"failed": 1}
    trace, _ = _read(tmp_path, rows, on_invalid="clip")
    assert trace.output_tokens.tolist() == [1, 2]
    assert trace.outcome.tolist() == [2, 0]


def test_float_noise_is_rounded_to_the_nanosecond_and_said(tmp_path: Path) -> None:
    rows = b"t,i,o\n1700000000.1234567891,1,1\n1700000000.5,1,1\n1.7000000006e9,1,1\n"
    trace, report = _read(tmp_path, rows, mapping=MAP, unit="s")
    assert report.origin_ns == 1_700_000_000_123_456_789
    assert trace.at_ns.tolist() == [0, 376_543_211, 476_543_211]
    assert "1 timestamps finer than a nanosecond" in " ".join(report.notes)


@pytest.mark.parametrize(("unit", "at"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])
def test_the_unit_is_the_one_passed(unit: str, at: int, tmp_path: Path) -> None:
    trace, _ = _read(tmp_path, b"t,i,o\n1,1,1\n2,1,1\n", mapping=MAP, unit=unit)
    assert trace.at_ns.tolist() == [0, at]


def test_a_fault_in_a_late_block_keeps_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.source.HEAD_BYTES", 64)
    rows = BURST + b"".join(b"%d,m,%d,1,2,x\n" % (i, i + 1) for i in range(5000)) + b"x,m,1,1,2,x\n"
    path = tmp_path / "t.csv"
    path.write_bytes(rows)
    from traces.source import Source

    whole = Source.blocks
    monkeypatch.setattr(Source, "blocks", lambda self, *, quoted=b"": whole(self, quoted=quoted, block_bytes=1000))
    with pytest.raises(TraceError, match=r"t\.csv:5002: .*1 of 5001 rows"):
        read_trace(path)
    trace, _ = read_trace(path, on_invalid="drop")
    assert trace.line.tolist() == list(range(2, 5002))


VALID = [
    _azure(A, B, C),
    BURST + b"5,m,472,18,490,x\n7.5,m,1,2,3,x\n",
    MOON + MOON.replace(b'": 0,', b'": 3000.5,'),
    b'request_created_at,prompt_tokens,completion_tokens,request_body\n2024-01-01T00:00:00Z,5,6,"a,\nb"\n',
    b'{"data": [{"startTime": "2025-12-17T16:09:00.875Z", "usageDetails": {"input": 9, "output": 8}}]}',
    b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "5", "attributes": []}]}]}]}\n',
    b'[{"type": "GENERATION", "startTime": "2025-12-17T16:09:00.875Z", "usageDetails": {"input": 9, "output": 8}}]',
    b'{"started_at": 5, "ai": {"proxy": {"usage": {"prompt_tokens": 9, "completion_tokens": 8}}}}\n' * 2,
    b'{"timestamp": "2025-05-29T13:46:20+00:00", "event": "request.finished", "rid": "r", "out": {"meta_info": '
    b'{"prompt_tokens": 9, "completion_tokens": 8, "e2e_latency": 1.0}}}\n',
    b"TimeGenerated;PromptTokens;CompletionTokens\n3/1/2025 1:00:00 PM;9;8\n3/13/2025 1:00:00,5 PM;9;8\n",
    b'{"logging_time": "2025-03-01 12:00:00.5 UTC", "full_response": "{\\"usage\\": {\\"input_tokens\\": 9}}"}\n',
    b"row,at_ns,input_tokens,output_tokens,outcome,session,parent,hash_ids_16\n0,0,5,6,ok,0,-1,1 2\n1,9,5,6,,0,0,\n",
]
EDITS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 6), st.one_of(st.binary(max_size=5), st.sampled_from(
        [b"\n", b'"', b",", b"-", b"1e9", b"NaN", b"null", b"[", b"{}", b"0x", b"\xff", b"\r\n", b"9" * 25, b"true"]
    ))),
    max_size=4,
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.sampled_from(VALID), edits=EDITS, on_invalid=st.sampled_from(["error", "drop", "clip"]))
def test_no_damage_gives_a_traceback(data: bytes, edits: Any, on_invalid: Any, tmp_path: Path) -> None:
    for at, length, new in edits:
        data = data[:at] + new + data[at + length :]
    path = tmp_path / "trace"
    path.write_bytes(data)
    try:
        trace, report = read_trace(path, on_invalid=on_invalid)
    except TraceError as caught:
        answer = str(caught)
    else:
        answer = ""
        assert report.rows == report.kept + sum(report.dropped.values())
        assert len(trace) == report.kept
    assert answer.isprintable()


def test_text_is_made_printable_and_short() -> None:
    assert printable("a\x1b[2Jb\u202e") == r"a\x1b[2Jb\u202e"
    assert len(printable("x" * 1000)) == 60
