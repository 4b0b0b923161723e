# ruff: noqa: E501 - a case is a whole file, and is easier to read unbroken
"""Exports of gateways and observability tools: each call counted once, with all of its tokens."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traces.errors import TraceError
from traces.read import read_trace

S = 10**9


def _jsonl(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _file(tmp_path: Path, text: str, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_text(text, newline="")
    return path


def _kong(at: int, tokens: tuple[int, int], **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return {"started_at": at, "response": {"status": 200}, "ai": {"proxy": {"usage": usage, **more}}}


def _bedrock(at: str, told: dict[str, Any], out: int | None, **more: Any) -> dict[str, Any]:
    return {
        "schemaType": "ModelInvocationLog",
        "timestamp": at,
        "modelId": "m",
        "input": told,
        "output": {"outputTokenCount": out},
        **more,
    }


def _sglang(at: str, tokens: tuple[int, int], took: float, reason: str = "stop") -> dict[str, Any]:
    told = {
        "prompt_tokens": tokens[0],
        "completion_tokens": tokens[1],
        "e2e_latency": took,
        "finish_reason": {"type": reason},
    }
    return {"timestamp": at, "event": "request.finished", "rid": "r", "out": {"meta_info": told}}


GEMINI = {
    "usageMetadata": {
        "promptTokenCount": 90,
        "toolUsePromptTokenCount": 10,
        "candidatesTokenCount": 15,
        "thoughtsTokenCount": 5,
    }
}
PHOENIX = "context.span_id,span_kind,start_time,status_code,attributes.llm.token_count.prompt,attributes.llm.token_count.completion\n"
LANGSMITH = "id,run_type,start_time,status,prompt_tokens,completion_tokens\n"
LITELLM = "request_id,call_type,startTime,prompt_tokens,completion_tokens,cache_hit,status\n"
APIM = "TimeGenerated [UTC],SequenceNumber,PromptTokens,CompletionTokens\n"

# name, text, format, offsets s, input, output, dropped
CASES: list[tuple[str, str, str, list[float], list[int], list[int], dict[str, int]]] = [
    ("kong", _jsonl(_kong(1740830400123, (100, 20)), {"started_at": 1, "ai": {}}, _kong(1740830402123, (50, 5)), _kong(1740830403123, (9, 9), cache={"cache_status": "Hit"})),
     "kong", [0, 2], [100, 50], [20, 5], {"not_a_request": 1, "cache_hit": 1}),
    ("bedrock", _jsonl(_bedrock("2025-05-29T13:46:19Z", {"inputTokenCount": 100, "cacheReadInputTokenCount": 400, "cacheWriteInputTokenCount": 12}, 20),
                       _bedrock("2025-05-29T13:46:20Z", {"inputTokenCount": 10}, None, errorCode="Throttling"),
                       _bedrock("2025-05-29T13:46:21Z", {"inputTokenCount": 10}, 2)),
     "bedrock", [0, 2], [512, 10], [20, 2], {"failed": 1}),
    # the log's clock is the end: the second request came first
    ("sglang", _jsonl({"timestamp": "2025-05-29T13:46:19+00:00", "event": "request.received", "rid": "r"},
                      _sglang("2025-05-29T13:46:20.500000+00:00", (100, 20), 0.5), _sglang("2025-05-29T13:46:21+00:00", (10, 2), 3.0)),
     "sglang", [0, 2], [10, 100], [2, 20], {"not_a_request": 1}),
    ("openai", _jsonl({"object": "chat.completion", "created": 1740830400, "usage": {"prompt_tokens": 100, "completion_tokens": 20}},
                      {"object": "response", "created_at": 1740830401, "usage": {"input_tokens": 10, "output_tokens": 2}}),
     "openai", [0, 1], [100, 10], [20, 2], {}),
    ("vertex", _jsonl({"logging_time": "2025-03-01 12:00:00.5 UTC", "full_response": GEMINI},
                      {"logging_time": "2025-03-01 12:00:01.5 UTC", "full_response": json.dumps({"usage": {"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 3}})}),
     "vertex", [0, 1], [100, 12], [20, 3], {}),
    ("openinference", PHOENIX + "a,CHAIN,2025-03-01T12:00:00+00:00,OK,110,22\nb,LLM,2025-03-01T12:00:00.25+00:00,OK,100,20\nc,LLM,2025-03-01T12:00:01+00:00,OK,10,2\n",
     "openinference", [0, 0.75], [100, 10], [20, 2], {"not_a_request": 1}),
    ("langsmith", LANGSMITH + "1,chain,2025-05-29T13:46:19.9,success,110,22\n2,llm,2025-05-29T13:46:20,success,100,20\n3,llm,2025-05-29T13:46:21,error,,\n",
     "langsmith", [0], [100], [20], {"not_a_request": 1, "failed": 1}),
    ("apim", APIM + '"3/1/2025, 12:00:00.250 PM",0,100,20\n"3/1/2025, 12:00:00.250 PM",1,100,20\n"3/1/2025, 1:00:00.250 PM",0,10,2\n',
     "apim", [0, 3600], [100, 10], [20, 2], {"not_a_request": 1}),
    ("litellm_csv", LITELLM + "a,acompletion,2025-03-01 12:00:00,100,20,False,success\nb,acompletion,2025-03-01 12:00:01,100,20,True,success\nc,aembedding,2025-03-01 12:00:02,33,0,,success\nd,anthropic_messages,2025-03-01 12:00:03,10,2,None,success\n",
     "litellm", [0, 3], [100, 10], [20, 2], {"cache_hit": 1, "no_generation": 1}),
    ("litellm_json", json.dumps([{"startTime": f"2025-03-01T12:00:0{i}Z", "prompt_tokens": 10, "completion_tokens": 2, "call_type": kind, "cache_hit": hit} for i, (kind, hit) in enumerate([("acompletion", "False"), ("aembedding", ""), ("acompletion", "True"), ("acompletion", None)])]),
     "litellm", [0, 3], [10, 10], [2, 2], {"cache_hit": 1, "no_generation": 1}),
    ("langfuse_csv", "id,traceId,type,startTime,level,inputUsage,outputUsage\na,t,SPAN,2025-05-29T13:46:19Z,DEFAULT,110,22\nb,t,GENERATION,2025-05-29T13:46:20Z,DEFAULT,100,20\nc,t,GENERATION,2025-05-29T13:46:21Z,ERROR,0,0\n",
     "langfuse", [0], [100], [20], {"not_a_request": 1, "failed": 1}),
    ("langfuse_blob", _jsonl({"type": "GENERATION", "start_time": "2025-05-29 13:46:19.963000", "usage_details": {"input": 100, "output": 20}, "level": "DEFAULT"},
                             {"type": "EVENT", "start_time": "2025-05-29 13:46:20", "usage_details": {}}),
     "langfuse", [0], [100], [20], {"not_a_request": 1}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_an_export_is_recognised_and_counted_right(case: Any, tmp_path: Path) -> None:
    _, text, form, offsets, inputs, outputs, dropped = case
    trace, report = read_trace(_file(tmp_path, text))
    assert report.format == form
    assert trace.at_ns.tolist() == [round(at * S) for at in offsets]
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == (inputs, outputs)
    assert report.dropped == dropped
    assert report.rows == report.kept + sum(dropped.values())


@pytest.mark.parametrize(
    ("details", "counts"),
    [
        (
            {"input": 2140, "input_cached_tokens": 1024, "output": 96, "output_reasoning_tokens": 310, "total": 3570},
            (3164, 406),
        ),
        ({"input": 10, "cache_read_input_tokens": 4000, "output": 20}, (4010, 20)),
        # a total of the two alone says that the parts are within them
        (
            {"input": 100, "input_cached_tokens": 60, "output": 20, "output_reasoning_tokens": 15, "total": 120},
            (100, 20),
        ),
    ],
    ids=["beside", "no total", "within"],
)
def test_langfuse_parts_belong_to_their_side(details: dict[str, int], counts: tuple[int, int], tmp_path: Path) -> None:
    row = {"type": "GENERATION", "startTime": "2025-05-29T13:46:19.963Z", "usageDetails": details}
    trace, _ = read_trace(_file(tmp_path, json.dumps([row])))
    assert (int(trace.input_tokens[0]), int(trace.output_tokens[0])) == counts


def _span(
    own: str, parent: str, kind: int, tokens: tuple[int, int] | None, *, service: str = "app", trace: str = "t1"
) -> dict[str, Any]:
    attributes = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    if tokens is not None:
        attributes += [
            {"key": f"gen_ai.usage.{side}_tokens", "value": {"intValue": str(n)}}
            for side, n in zip(("input", "output"), tokens, strict=True)
        ]
    span = {
        "traceId": trace,
        "spanId": own,
        "parentSpanId": parent,
        "kind": kind,
        "startTimeUnixNano": str(1740830400 * S + len(own)),
        "attributes": attributes,
    }
    name = {"key": "service.name", "value": {"stringValue": service}}
    return {"resourceSpans": [{"resource": {"attributes": [name]}, "scopeSpans": [{"spans": [span]}]}]}


CLIENT, SERVER = 3, 2


@pytest.mark.parametrize(
    ("spans", "inputs"),
    [
        (
            [_span("srv", "gw", SERVER, (30, 3)), _span("gw", "c", SERVER, (20, 2)), _span("c", "", CLIENT, (10, 1))],
            [10],
        ),
        ([_span("gw", "", SERVER, (20, 2)), _span("c", "gw", CLIENT, (10, 1))], [10]),
        (
            [_span("gw", "", SERVER, (20, 2)), _span("a", "gw", CLIENT, (10, 1)), _span("b", "gw", CLIENT, (11, 1))],
            [10, 11],
        ),
        ([_span("c", "", CLIENT, None), _span("srv", "c", SERVER, (30, 3))], [30]),
        ([_span("c", "", CLIENT, (10, 1)), _span("c", "", CLIENT, (10, 1), trace="t2")], [10, 10]),
        ([_span("a", "b", CLIENT, (10, 1)), _span("b", "a", CLIENT, (10, 1))], []),
    ],
    ids=["inner first", "client under server", "two attempts", "counts inside", "two traces", "a circle"],
)
def test_spans_of_one_call_are_one_request(spans: list[Any], inputs: list[int], tmp_path: Path) -> None:
    path = _file(tmp_path, _jsonl(*spans))
    if not inputs:
        with pytest.raises(TraceError, match="no request that could be sent"):
            read_trace(path)
        return
    trace, report = read_trace(path)
    assert sorted(trace.input_tokens.tolist()) == inputs
    assert report.dropped == ({"nested_span": len(spans) - len(inputs)} if len(spans) > len(inputs) else {})


def test_the_spans_left_out_are_named_by_their_service(tmp_path: Path) -> None:
    spans = [_span("c", "", CLIENT, (10, 1)), _span("s", "c", SERVER, (10, 1), service="vllm\x1b[2J")]
    _, report = read_trace(_file(tmp_path, _jsonl(*spans)))
    assert any(r"left out: 1 of vllm\x1b[2J" in note for note in report.notes)


def test_openinference_spans_in_otlp_are_requests(tmp_path: Path) -> None:
    attributes = [{"key": "openinference.span.kind", "value": {"stringValue": "LLM"}}]
    attributes += [{"key": f"llm.token_count.{side}", "value": {"intValue": "7"}} for side in ("prompt", "completion")]
    spans = [{"spanId": "a", "startTimeUnixNano": "5", "attributes": attributes}]
    trace, report = read_trace(_file(tmp_path, _jsonl({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})))
    assert (report.format, trace.input_tokens.tolist()) == ("otlp", [7])


ODD: list[Any] = [5, None, "x", [], {}, [5], {"a": 1}, True, 1e400]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_types_anywhere_in_otlp_are_one_line(odd: Any, tmp_path: Path) -> None:
    good = _span("c", "", CLIENT, (10, 1))
    places: list[Any] = [{"resourceSpans": odd}, {"resourceSpans": [odd]}]
    places += [{"resourceSpans": [{"resource": odd, "scopeSpans": odd}]}, {"resourceSpans": [{"scopeSpans": [odd]}]}]
    places += [{"resourceSpans": [{"scopeSpans": [{"spans": inner}]}]} for inner in (odd, [odd])]
    span = good["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    for key in span:
        places.append({"resourceSpans": [{"scopeSpans": [{"spans": [span | {key: odd}]}]}]})
    for attribute in (odd, {"key": odd, "value": odd}, {"key": "gen_ai.usage.input_tokens", "value": odd}):
        places.append({"resourceSpans": [{"scopeSpans": [{"spans": [span | {"attributes": [attribute]}]}]}]})
    for place in places:
        for text in (json.dumps(place), _jsonl(good, place)):
            try:
                read_trace(_file(tmp_path, text), on_invalid="drop")
            except TraceError as caught:
                assert str(caught).isprintable()  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_jsonl({"start_time": "2025-03-01T00:00:00Z", "input_tokens": 1000, "output_tokens": 500, "num_model_requests": 5}), "totals of many requests"),
        (_jsonl({"object": "bucket", "start_time": 1740787200, "results": []}), "totals of many requests"),
        (_jsonl({"start_time": "2025-03-01T00:00:00Z", "prompt_tokens": 1000, "completion_tokens": 500, "status": "success"}), "no known format"),
        (_jsonl({"time": "2025-03-01T00:00:00Z", "category": "RequestResponse", "resourceId": "/x", "properties": {}}), "counts bytes and no tokens"),
    ],
    ids=["daily", "buckets", "no access log", "azure diagnostics"],
)  # fmt: skip
def test_what_holds_no_requests_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=says):
        read_trace(_file(tmp_path, text))


def test_only_calls_that_are_no_requests_are_not_told_to_be_clipped(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no row is a model request") as caught:
        read_trace(_file(tmp_path, LITELLM + "c,aembedding,2025-03-01 12:00:02,33,0,,success\n"))
    assert "clip" not in str(caught.value)


NESTED = {"timestamp": "when.at", "input": "usage.prompt_tokens", "output": "usage.completion_tokens"}


@pytest.mark.parametrize("shape", ["lines", "array", "pretty", "csv_names", "parquet", "text"])
def test_a_map_takes_paths(shape: str, tmp_path: Path) -> None:
    rows = [{"when": {"at": i + 0.5}, "usage": {"prompt_tokens": 10 + i, "completion_tokens": 2}} for i in range(3)]
    path = tmp_path / "t"
    if shape == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif shape == "csv_names":
        path.write_text("when.at,usage.prompt_tokens,usage.completion_tokens\n0.5,10,2\n1.5,11,2\n2.5,12,2\n")
    else:
        if shape == "text":
            rows = [row | {"usage": json.dumps(row["usage"])} for row in rows]
        path.write_text(
            _jsonl(*rows) if shape in ("lines", "text") else json.dumps(rows, indent=2 if shape == "pretty" else None)
        )
    trace, _ = read_trace(path, mapping=NESTED, unit="s")
    assert (trace.at_ns.tolist(), trace.input_tokens.tolist()) == ([0, S, 2 * S], [10, 11, 12])


def test_a_key_with_dots_is_a_key_first(tmp_path: Path) -> None:
    rows = [{"t": 1, "a": {"b.c": {"d": 5}}, "x.y": 6, "x": {"y": 7}}]
    trace, _ = read_trace(
        _file(tmp_path, _jsonl(*rows)), mapping={"timestamp": "t", "input": "a.b.c.d", "output": "x.y"}, unit="s"
    )
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([5], [6])


MAP = {"timestamp": "t", "input": "i", "output": "o"}


def test_a_column_that_no_row_has_is_named(tmp_path: Path) -> None:
    path = _file(tmp_path, _jsonl(*[{"t": i, "i": 5, "o": 5} for i in range(300)]))
    with pytest.raises(TraceError, match=r"no column s; .*the columns are t, i, o"):
        read_trace(path, mapping=MAP | {"session": "s"}, unit="s")


def test_a_column_may_be_first_seen_far_down(tmp_path: Path) -> None:
    rows = [{"t": i, "i": 5, "o": 5} for i in range(300)] + [{"t": 300, "i": 5, "o": 5, "s": "a"}]
    trace, _ = read_trace(_file(tmp_path, _jsonl(*rows)), mapping=MAP | {"session": "s"}, unit="s")
    assert trace.session is not None
    assert (len(trace), trace.session[-1], trace.session[0]) == (301, 0, -1)


def test_requests_behind_many_lines_of_another_kind_are_found(tmp_path: Path) -> None:
    checks = [{"start_time": "2025-01-01T00:00:00Z", "response_code": 200, "path": "/health" + "x" * 100}] * 2000
    call = {"start_time": "2025-01-01T00:00:00Z", "response_code": 200, "input_tokens": 10, "output_tokens": 3}
    trace, report = read_trace(_file(tmp_path, _jsonl(*checks, call)), on_invalid="drop")
    assert (report.format, len(trace)) == ("access_log", 1)


def test_several_files_are_one_trace_on_one_clock(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    _file(tmp_path, head + "2025-01-01 00:00:02,3,1\n", "b.csv")
    _file(tmp_path, head + "2025-01-01 00:00:01,1,1\n2025-01-01 00:00:03,2,1\n", "a.csv")
    trace, report = read_trace(tmp_path / "*.csv")
    assert (trace.at_ns.tolist(), trace.input_tokens.tolist()) == ([0, S, 2 * S], [1, 3, 2])
    assert (report.rows, report.path) == (3, f"2 files, the last {tmp_path / 'b.csv'}")
    again, _ = read_trace([tmp_path / "a.csv", tmp_path / "*.csv"])
    assert again.sha256 == trace.sha256  # no file is read twice
    with pytest.raises(TraceError, match="no file has such a name"):
        read_trace(tmp_path / "*.json")
    _file(tmp_path, head + "2025-01-01 00:00:02,x,1\n", "b.csv")
    with pytest.raises(TraceError, match=r"b\.csv:2: "):
        read_trace(tmp_path / "*.csv")


def test_files_that_count_from_their_own_start_are_not_laid_over_each_other(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 0), ("c", 100)):
        _file(tmp_path, f"t,i,o\n{start},1,1\n{start + 9},1,1\n", name)
    with pytest.raises(TraceError, match="which follows which is not known"):
        read_trace([tmp_path / "a", tmp_path / "b"], mapping=MAP, unit="s")
    assert len(read_trace([tmp_path / "c", tmp_path / "a"], mapping=MAP, unit="s")[0]) == 4
    burst = _file(tmp_path, "Timestamp,Request tokens,Response tokens\n5,1,1\n", "d")
    azure = _file(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2025-01-01 00:00:02,3,1\n", "e")
    with pytest.raises(TraceError, match="pass files of one kind"):
        read_trace([azure, burst])


CLOCKS = [
    ("2025-03-01 12:00:00.123456 UTC", 123_456_000),
    ("2025-03-01 12:00:00.123456789 +0000 UTC", 123_456_789),
    ("2025-03-01 14:00:00.5 +0200 CEST m=+0.000012", 500_000_000),
    ("01/Mar/2025:13:00:00 +0100", 0),
    ("2025-03-01 12:00:00,250", 250_000_000),
    ("2025-03-01 12:00:00.250 PM", 250_000_000),
    ("3/1/2025 12:00:00 PM", 0),
    ("3/1/2025, 12:00:00.007 PM", 7_000_000),
]


@pytest.mark.parametrize(("text", "ns"), CLOCKS)
def test_clocks_as_logs_write_them(text: str, ns: int, tmp_path: Path) -> None:
    _, report = read_trace(_file(tmp_path, f't;i;o\n"{text}";1;1\n'), mapping=MAP, unit="iso")
    assert report.origin_ns == round(datetime(2025, 3, 1, 12, tzinfo=UTC).timestamp()) * S + ns


@pytest.mark.parametrize(
    ("dates", "says"),
    [
        (["3/1/2025 12:00:00", "4/1/2025 12:00:00"], "may have the day or the month first"),
        (["13/1/2025 12:00:00", "14/1/2025 12:00:00"], "with the day first"),
        (["2025-03-01 13:00:00 PM"], "cannot be read"),
        (["2025-03-01 12:00:00 PST"], "cannot be read"),
        (["2025-02-30 12:00:00 UTC"], "cannot be read"),
    ],
)
def test_a_date_that_can_be_two_is_refused(dates: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=says):
        read_trace(_file(tmp_path, "t;i;o\n" + "".join(f"{d};1;1\n" for d in dates)), mapping=MAP, unit="iso")


def test_month_first_is_proved_by_a_day_above_12(tmp_path: Path) -> None:
    trace, _ = read_trace(
        _file(tmp_path, "t;i;o\n3/1/2025 12:00:00;1;1\n3/13/2025 12:00:00;1;1\n"), mapping=MAP, unit="iso"
    )
    assert trace.span_ns == 12 * 86400 * S
