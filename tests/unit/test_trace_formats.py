# ruff: noqa: E501 - a case is a whole file, and is easier to read unbroken
"""Each format is told by its content and read in its own unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traces.errors import TraceError
from traces.read import FORMATS, read_trace
from traces.trace import Trace

S = 10**9
SAMPLES = Path(__file__).resolve().parents[2] / "traces" / "samples"


def _jsonl(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _span(at: str, tokens: list[Any], *more: dict[str, Any], **extra: Any) -> dict[str, Any]:
    attributes = [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": tokens[0]}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": tokens[1]}},
        *more,
    ]
    return {"startTimeUnixNano": at, "attributes": attributes, **extra}


CONVERSATION = {"key": "gen_ai.conversation.id", "value": {"stringValue": "c1"}}
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        _span("1700000000123456789", ["10", "3"], CONVERSATION),
                        _span("1700000001123456789", ["20", "4"], CONVERSATION),
                        {
                            "startTimeUnixNano": "1",
                            "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}}],
                        },
                        {"startTimeUnixNano": "2", "attributes": []},
                        _span("1700000002123456789", ["30", None], status={"code": 2}),
                    ]
                }
            ]
        }
    ]
}
LANGFUSE = [
    {
        "type": "GENERATION",
        "startTime": "2025-12-17T16:09:02.875Z",
        "usageDetails": {"input": 20, "output": 4},
        "sessionId": "s",
    },
    {"type": "SPAN", "startTime": "2025-12-17T16:09:01.875Z"},
    {
        "type": "GENERATION",
        "startTime": "2025-12-17T16:09:00.875Z",
        "promptTokens": 10,
        "completionTokens": 3,
        "sessionId": "s",
    },
]
LITELLM = [
    {
        "request_id": "a",
        "startTime": "2025-01-01T00:00:00.000Z",
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "status": "success",
        "session_id": "x",
    },
    {
        "request_id": "b",
        "startTime": "2025-01-01T00:00:02.000Z",
        "prompt_tokens": 20,
        "completion_tokens": 4,
        "status": "success",
        "session_id": "x",
    },
    {
        "request_id": "c",
        "startTime": "2025-01-01T00:00:03.000Z",
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "status": "failure",
    },
]
HELICONE = "response_id,response_created_at,response_status,request_created_at,model,prompt_tokens,completion_tokens\n"
ENVOY = {"start_time": "2025-01-01T00:00:00.000Z", "response_code": 200}

# name, text, format, offsets s, input, output, dropped
CASES: list[tuple[str, str, str, list[float], list[int], list[int], dict[str, int]]] = [
    ("azure_2023", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000001,10,3\n2023-11-16 18:15:48.0000001,20,4\n",
     "azure", [0, 2], [10, 20], [3, 4], {}),
    ("azure_2024_whole_seconds", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.500000+00:00,10,3\n2024-05-10 00:00:01+00:00,20,4\n",
     "azure", [0, 0.5], [10, 20], [3, 4], {}),
    ("azure_2025", "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00.1,7,10,3\n2024-10-15 00:00:02.1,9,20,4\n",
     "azure_multimodal", [0, 2], [10, 20], [3, 4], {}),
    ("burstgpt_1", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,10,3,13,x\n5,m,9,0,9,x\n7,m,20,4,24,x\n",
     "burstgpt", [0, 2], [10, 20], [3, 4], {"failed": 1}),
    ("burstgpt_3", "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5.0,s,43,m,10,3,13,x\n7.25,s,2,m,20,4,24,x\n",
     "burstgpt", [0, 2.25], [10, 20], [3, 4], {}),
    ("mooncake", _jsonl({"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]},
                        {"timestamp": 2000, "input_length": 513, "output_length": 4, "hash_ids": [0, 2]}),
     "mooncake", [0, 2], [600, 513], [3, 4], {}),
    ("timed_trace", _jsonl({"timestamp": 0.5, "input_length": 520, "output_length": 3, "hash_ids": list(range(33))},
                           {"timestamp": 2.5, "input_length": 16, "output_length": 4, "hash_ids": [0]}),
     "timed_trace", [0, 2], [520, 16], [3, 4], {}),
    ("aiperf", _jsonl({"session_id": "a", "timestamp": 0.5, "input_length": 10, "output_length": 3},
                      {"session_id": "a", "timestamp": 2000.5, "input_length": 20, "output_length": 4}),
     "aiperf", [0, 2], [10, 20], [3, 4], {}),
    ("bailian", _jsonl({"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 10, "output_length": 3, "type": "text", "turn": 1},
                       {"chat_id": 2, "parent_chat_id": 1, "timestamp": 2.0, "input_length": 20, "output_length": 4, "type": "text", "turn": 2}),
     "bailian", [0, 2], [10, 20], [3, 4], {}),
    ("ragpulse", _jsonl({"timestamp": "27", "input_length": 10, "output_length": 3, "hash_ids": {"sys_prompt": [1]}, "session_id": "s"},
                        {"timestamp": "29", "input_length": 20, "output_length": 4, "hash_ids": {"sys_prompt": [1]}, "session_id": "s"}),
     "ragpulse", [0, 2], [10, 20], [3, 4], {}),
    ("otlp", json.dumps(OTLP) + "\n", "otlp", [0, 1], [10, 20], [3, 4], {"not_a_request": 2, "failed": 1}),
    ("otlp_pretty", json.dumps(OTLP, indent=1), "otlp", [0, 1], [10, 20], [3, 4], {"not_a_request": 2, "failed": 1}),
    ("langfuse", json.dumps(LANGFUSE), "langfuse", [0, 2], [10, 20], [3, 4], {"not_a_request": 1}),
    ("langfuse_api", json.dumps({"data": LANGFUSE, "meta": {}}), "langfuse", [0, 2], [10, 20], [3, 4], {"not_a_request": 1}),
    ("litellm", json.dumps(LITELLM, indent=2), "litellm", [0, 2], [10, 20], [3, 4], {"failed": 1}),
    ("litellm_lines", _jsonl(*LITELLM), "litellm", [0, 2], [10, 20], [3, 4], {"failed": 1}),
    ("litellm_csv", "request_id,startTime,endTime,prompt_tokens,completion_tokens,session_id,status\na,2025-01-01 00:00:00.5,x,10,3,s,success\nb,2025-01-01 00:00:02.5,x,20,4,s,success\n",
     "litellm", [0, 2], [10, 20], [3, 4], {}),
    ("helicone_csv", HELICONE + "r,x,200,2025-01-01T00:00:00Z,m,10,3\nr,x,200,2025-01-01T00:00:02Z,m,20,4\nr,x,500,2025-01-01T00:00:02Z,m,9,\n",
     "helicone", [0, 2], [10, 20], [3, 4], {"failed": 1}),
    ("helicone_lines", _jsonl({"request_created_at": "2025-01-01T00:00:00Z", "prompt_tokens": 10, "completion_tokens": 3, "response_status": 200},
                              {"request_created_at": "2025-01-01T00:00:02Z", "prompt_tokens": 20, "completion_tokens": 4, "response_status": 200}),
     "helicone", [0, 2], [10, 20], [3, 4], {}),
    ("envoy", _jsonl(ENVOY | {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 3},
                     ENVOY | {"gen_ai.usage.input_tokens": "20", "gen_ai.usage.output_tokens": "4", "start_time": "2025-01-01T00:00:02.000Z"},
                     ENVOY | {"response_code": 503}),
     "access_log", [0, 2], [10, 20], [3, 4], {"failed": 1}),
    # nginx stamps the end of a request: the arrival is that less the request's time
    ("nginx", _jsonl({"msec": 1700000010.5, "request_time": 10.5, "status": 200, "input_tokens": 10, "output_tokens": 3},
                     {"msec": 1700000003.0, "request_time": 1.0, "status": 200, "input_tokens": 20, "output_tokens": 4}),
     "access_log", [0, 2], [10, 20], [3, 4], {}),
]  # fmt: skip


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_recognised_and_read(case: Any, tmp_path: Path) -> None:
    _, text, form, offsets, inputs, outputs, dropped = case
    trace, report = read_trace(_write(tmp_path, text))
    assert report.format == form
    assert trace.at_ns.tolist() == [round(at * S) for at in offsets]
    assert trace.input_tokens.tolist() == inputs
    assert trace.output_tokens.tolist() == outputs
    assert report.dropped == dropped
    assert report.rows == report.kept + sum(dropped.values())
    assert report.lines()


@pytest.mark.parametrize(
    "name", ["burstgpt_3", "aiperf", "bailian", "ragpulse", "otlp", "langfuse", "litellm", "litellm_csv"]
)
def test_sessions_are_found(name: str, tmp_path: Path) -> None:
    text = next(case[1] for case in CASES if case[0] == name)
    trace, _ = read_trace(_write(tmp_path, text))
    assert trace.session is not None
    assert trace.parent is not None
    assert (trace.session.tolist(), trace.parent.tolist()) == ([0, 0], [-1, 0])


def test_every_format_is_read_somewhere() -> None:
    explicit = {"guidellm", "generic", "loadgen"}
    explicit |= {"kong", "bedrock", "sglang", "openai", "vertex", "openinference", "langsmith", "apim"}  # of gateways
    assert {case[2] for case in CASES} | explicit == set(FORMATS)


def test_one_content_two_units(tmp_path: Path) -> None:
    path = _write(tmp_path, _jsonl(*({"timestamp": at, "input_length": 5, "output_length": 1} for at in (0, 3))))
    spans = {}
    for form in ("mooncake", "timed_trace", "guidellm"):
        spans[form] = read_trace(path, format=form)[1].span_s
    assert spans == {"mooncake": 0.003, "timed_trace": 3.0, "guidellm": 3.0}
    with pytest.raises(TraceError, match="several formats"):
        read_trace(path)


def test_one_odd_row_does_not_hide_a_format(tmp_path: Path) -> None:
    good = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}
    path = _write(tmp_path, _jsonl(good, good | {"hash_ids": [0]}, good | {"timestamp": 60_000}))
    assert read_trace(path)[1].format == "mooncake"


def test_generic_json_lines_with_everything_mapped(tmp_path: Path) -> None:
    rows = [{"when": "1.5", "a": 100, "b": 2, "h": [1, 2**63], "c": "u", "k": 7, "up": None, "st": "ok"},
            {"when": 2.5, "a": 100, "b": 2, "h": [1], "c": "u", "k": 8, "up": 7, "st": "timeout"}]  # fmt: skip
    mapping = {
        "timestamp": "when",
        "input": "a",
        "output": "b",
        "hashes": "h",
        "session": "c",
        "id": "k",
        "parent": "up",
        "status": "st",
    }
    trace, report = read_trace(_write(tmp_path, _jsonl(*rows)), mapping=mapping, unit="s", block_tokens=64)
    assert report.format == "generic"
    assert trace.at_ns.tolist() == [0, S]
    assert trace.hashes is not None
    assert trace.hashes.of(0).tolist() == [1, -(2**63)]
    assert trace.parent is not None
    assert trace.parent.tolist() == [-1, 0]
    assert trace.outcome.tolist() == [1, 2]


def test_a_mapped_column_called_skip_leaves_no_row_out(tmp_path: Path) -> None:
    rows = [{"t": 0, "i": 5, "o": 2, "skip": "no_generation"}, {"t": 1, "i": 7, "o": 3, "skip": ""}]
    path = _write(tmp_path, json.dumps(rows))
    trace, _ = read_trace(path, mapping={"timestamp": "t", "input": "i", "output": "o", "session": "skip"}, unit="s")
    assert trace.input_tokens.tolist() == [5, 7]


@pytest.mark.parametrize(
    ("at", "unit", "want"),
    [
        (pa.array([10**18 + 1, 10**18 + 4]), "ns", 3),
        (pa.array([0.1, 0.4]), "s", 300_000_000),
        (pa.array([1, 2], pa.timestamp("us", "UTC")), "iso", 1000),
        (pa.array(["2024-01-01T00:00:00", "2024-01-01T00:00:01"]).dictionary_encode(), "iso", S),
    ],
    ids=["int64", "double", "timestamp", "dictionary"],
)
def test_parquet_of_any_type(at: pa.Array, unit: str, want: int, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"t": at, "i": pa.array([5, 6], pa.int32()), "o": pa.array(["7", "8"])}), path)
    trace, _ = read_trace(path, mapping={"timestamp": "t", "input": "i", "output": "o"}, unit=unit)
    assert trace.at_ns.tolist() == [0, want]
    assert trace.output_tokens.tolist() == [7, 8]


def test_azure_columns_are_known_in_parquet_too(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    at = pa.array(["2024-05-10 00:00:00.1+00:00"])
    pq.write_table(pa.table({"TIMESTAMP": at, "NumImages": [3], "ContextTokens": [4], "GeneratedTokens": [5]}), path)
    trace, report = read_trace(path)
    assert (report.format, trace.input_tokens.tolist()) == ("azure_multimodal", [4])


def test_orphans_and_impossible_parents_start_anew_and_are_counted(tmp_path: Path) -> None:
    rows = [{"chat_id": i, "parent_chat_id": p, "timestamp": t, "input_length": 1, "output_length": 1}
            for i, p, t in [(1, 99, 0.0), (2, 3, 1.0), (3, 2, 2.0), (4, 4, 3.0)]]  # fmt: skip
    trace, report = read_trace(_write(tmp_path, _jsonl(*rows)))
    assert trace.parent is not None
    assert trace.session is not None
    assert trace.parent.tolist() == [-1, -1, 1, -1]
    assert trace.session.tolist() == [0, 1, 1, 2]
    assert any(note.startswith("3 turns whose previous turn is missing or not earlier") for note in report.notes)


@pytest.mark.parametrize(
    ("name", "form", "rows"), [("steps.csv", "azure", 12), ("chat.jsonl", "mooncake", 8), ("turns.csv", "loadgen", 9)]
)
def test_samples_are_what_the_docs_say(name: str, form: str, rows: int) -> None:
    trace, report = read_trace(SAMPLES / name)
    assert (report.format, len(trace)) == (form, rows)
    assert isinstance(trace, Trace)
