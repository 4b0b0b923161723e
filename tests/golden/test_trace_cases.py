"""Trace files that once gave a wrong figure, a crash or a misleading refusal; they lie beside the repository."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from traces.describe import describe
from traces.errors import TraceError
from traces.read import read_trace
from traces.transform import window
from traces.write import write_trace

ROOT = Path(__file__).resolve().parents[2]
PLACES = (up / "shared" / "cases" / "traces" for up in ROOT.parents)
CASES = next((place for place in PLACES if place.is_dir()), ROOT / "none")
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="no such files beside the repository")

S = 10**9
MAPPED: dict[str, Any] = {"mapping": {"timestamp": "t", "input": "i", "output": "o"}, "unit": "s"}
PACKED = ("azure", [0, 1_163_000, S, 1_500_000_000], [1487, 100, 7999, 10], [20, 30, 5000, 1], {})

# file -> options, format, offsets ns, input, output, dropped
READ: dict[str, tuple[dict[str, Any], tuple[str, list[int], list[int], list[int], dict[str, int]]]] = {
    "bailian_first_prompt_200k_tokens_not_recognised.jsonl": ({}, ("bailian", [0, S], [200_000, 600], [5, 5], {})),
    "bedrock_invocation_nested_not_mappable.json.gz": ({}, ("bedrock", [0, S], [100, 10], [20, 2], {})),
    "bz2_called_bare_carriage_returns.csv.bz2": ({}, PACKED),
    "xz_called_neither_csv_nor_json.csv.xz": ({}, PACKED),
    "zip_called_neither_csv_nor_json.zip": ({}, PACKED),
    "tar_gz_called_utf16.tar.gz": ({}, PACKED),
    "duration_column_read_a_million_times_too_long.parquet": (
        MAPPED | {"unit": "us"},
        ("generic", [0, S, 2 * S], [10, 20, 30], [1, 2, 3], {}),
    ),
    "first_line_over_64KiB_map_finds_no_columns.jsonl": (MAPPED, ("generic", [0, S], [10, 10], [5, 5], {})),
    "float_seconds_with_more_than_18_places_refused.csv": (
        MAPPED,
        ("generic", [0, 312, 312_346, 1_500_000_000], [10, 10, 11, 12], [5, 5, 6, 7], {}),
    ),
    "kong_ai_nested_not_mappable.jsonl": ({}, ("kong", [0, S], [100, 100], [20, 20], {})),
    "langfuse_blob_export_not_mappable.jsonl": (
        {},
        ("langfuse", [0, 1_537_000_000], [100, 100], [20, 20], {"not_a_request": 1}),
    ),
    "langfuse_cached_and_reasoning_tokens_left_out.json": ({}, ("langfuse", [0, S], [3164, 4010], [406, 20], {})),
    "langfuse_csv_counts_spans_and_errors.csv": (
        {},
        ("langfuse", [0, S // 10], [100, 10], [20, 2], {"not_a_request": 1}),
    ),
    "langfuse_same_rows_as_json_do_not.json": (
        {},
        ("langfuse", [0, S // 10], [100, 10], [20, 2], {"not_a_request": 1}),
    ),
    "langsmith_parent_and_children_counted_as_access_log.jsonl": (
        {},
        ("langsmith", [0, S], [100, 10], [20, 2], {"not_a_request": 1}),
    ),
    "litellm_spendlogs_with_cache_hit_and_embedding.csv": (
        {},
        ("litellm", [0, 877_000_000], [100, 50], [20, 5], {"failed": 1, "cache_hit": 1, "no_generation": 1}),
    ),
    "mooncake_keys_as_csv_refused_by_format_mooncake.csv": (
        {"format": "mooncake"},
        ("mooncake", [0, 500_000], [256, 512], [128, 64], {}),
    ),
    "mooncake_ms_blocks_of_16_read_as_seconds.jsonl": (
        {},
        ("mooncake", [0, 3_052_000_000, 6_104_000_000], [1024, 32, 48], [50, 50, 50], {}),
    ),
    "one_row.csv": ({}, ("azure", [0], [10], [5], {})),
    "only_not_a_request_told_to_pass_clip_which_does_nothing.jsonl": ({}, ("otlp", [0], [100], [20], {})),
    "openai_usage_object_nested_not_mappable.jsonl": ({}, ("openai", [0, S], [100, 100], [20, 20], {})),
    "otlp_client_gateway_server_spans_of_one_call_counted_three_times.jsonl": (
        {},
        ("otlp", [0, 3 * S], [100, 100], [20, 20], {"nested_span": 2}),
    ),
    "padded_counts_ok_alone.csv": (MAPPED, ("generic", [0, S], [10, 20], [5, 6], {})),
    "padded_counts_one_missing_neighbour_spoils_all.csv": (
        MAPPED | {"on_invalid": "drop"},
        ("generic", [0, S], [10, 20], [5, 6], {"missing_input": 1}),
    ),
    "sglang_request_log_nested_not_mappable.jsonl": ({}, ("sglang", [0], [100], [20], {"not_a_request": 1})),
    "time_1e25_wraps_to_zero_silently.jsonl": (
        MAPPED | {"on_invalid": "drop"},
        ("generic", [0], [10], [5], {"bad_time": 1}),
    ),
}
REFUSED = {
    "openai_daily_totals_taken_for_requests.jsonl": ({}, "totals of many requests in a row"),
    "otlp_attribute_key_list_crashes.json": ({}, "no request that could be sent"),
    "otlp_resourceSpans_number_crashes.json": ({}, "no rows"),
    "padded_counts_one_missing_neighbour_spoils_all.csv": (MAPPED, r":4: no input tokens; 1 of 3 rows"),
    "time_1e25_wraps_to_zero_silently.jsonl": (MAPPED, r":1: the timestamp cannot be read \('1000000"),
}
# looked at one by one below
ALONE = {
    "bailian_to_mooncake_and_back_is_1000_times_slower.jsonl",
    "convert_replaces_symlink_and_fifo_targets.sh",
    "make_one_line_json_export_over_64MiB.py",
    "optional_column_first_seen_after_200_rows_refused.jsonl",
    "rate_of_a_window_ignores_its_silence.csv",
    "stray_quote_then_quoted_rows_takes_quadratic_time.csv",
}


@pytest.mark.parametrize("name", READ)
def test_a_file_gives_its_right_values(name: str) -> None:
    options, (form, at_ns, inputs, outputs, dropped) = READ[name]
    trace, report = read_trace(CASES / name, **options)
    assert (report.format, trace.at_ns.tolist()) == (form, at_ns)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == (inputs, outputs)
    assert (report.dropped, report.rows) == (dropped, len(at_ns) + sum(dropped.values()))


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_in_one_clear_line(name: str) -> None:
    options, says = REFUSED[name]
    with pytest.raises(TraceError, match=says) as caught:
        read_trace(CASES / name, **options)
    assert caught.value.remedy
    assert str(caught.value).isprintable()


def test_every_file_is_looked_at() -> None:
    assert {path.name for path in CASES.iterdir()} == READ.keys() | REFUSED.keys() | ALONE


@pytest.mark.parametrize("to", ["mooncake", "timed_trace", "csv", "parquet"])
def test_bailian_comes_back_at_its_own_speed(to: str, tmp_path: Path) -> None:
    trace, _ = read_trace(CASES / "bailian_to_mooncake_and_back_is_1000_times_slower.jsonl")
    write_trace(trace, tmp_path / "t", to)
    back, _ = read_trace(tmp_path / "t")
    assert back.at_ns.tolist() == trace.at_ns.tolist() == [0, 1_000_000, 61_114_000_000, 62_114_000_000]
    assert back.hashes is not None
    assert back.hashes.block_tokens == 16


def test_a_column_first_seen_after_200_rows_is_read() -> None:
    options = MAPPED | {"mapping": MAPPED["mapping"] | {"session": "s"}}
    trace, _ = read_trace(CASES / "optional_column_first_seen_after_200_rows_refused.jsonl", **options)
    assert trace.session is not None
    assert (len(trace), int((trace.session == 0).sum()), trace.session[0]) == (250, 30, -1)


def test_a_windows_silence_counts() -> None:
    trace, _ = read_trace(CASES / "rate_of_a_window_ignores_its_silence.csv", **MAPPED)
    part = window(trace, 30, 130)
    assert len(part.trace) == 30
    found = describe(part.trace, lead_ns=part.lead_ns, window_ns=part.window_ns)
    assert found.arrivals.rate == part.arrivals.rate == pytest.approx(0.3)
    assert found.arrivals.span_s == 100


def test_a_stray_quote_takes_no_time() -> None:
    began = time.process_time()
    trace, _ = read_trace(CASES / "stray_quote_then_quoted_rows_takes_quadratic_time.csv", **MAPPED)
    assert trace.at_ns.tolist() == [n * S for n in range(20_000)]
    assert time.process_time() - began < 2


@pytest.mark.slow
def test_a_long_export_on_one_line_is_read(tmp_path: Path) -> None:
    script = CASES / "make_one_line_json_export_over_64MiB.py"
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True)
    trace, report = read_trace(tmp_path / "one_line.json")
    assert (len(trace), report.format) == (170_000, "langfuse")
