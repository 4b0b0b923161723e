from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.text import bounded
from loadgen.send import reader
from loadgen.send.active import ActiveRequest
from loadgen.send.openai import HttpEnd, ParsedResponse, outcome_of
from loadgen.send.reader import read_answer, read_exchange
from tests.fakes.captures import captured_reads
from tests.fakes.replay import Replay
from tests.fakes.streams import DONE, completion_events, delta, event, text, usage

CAPTURES = Path(__file__).resolve().parents[2].parent / "shared" / "captures" / "vllm_0.32.0"


def read(
    *pieces: bytes, end: HttpEnd = "complete", content_type: str = "text/event-stream", limit_tokens: int = -1
) -> ParsedResponse:
    """Each piece in a read of its own, stamped 10, 20, 30, ..."""
    stamps = [10 * (i + 1) for i in range(len(pieces))]
    return read_answer(list(pieces), stamps, content_type=content_type, end=end, limit_tokens=limit_tokens)


def judge(
    answer: ParsedResponse | None, end: HttpEnd = "complete", status: int = 200, forced: int | None = None
) -> str:
    return outcome_of(answer, end=end, status=status, error="", forced_tokens=forced)[0]


def test_a_whole_completion() -> None:
    answer = read(*completion_events(4))
    assert answer.events == [(10, -1), (20, -1), (30, -1), (40, -1)]
    assert (answer.first_token_ns, answer.last_token_ns, answer.token_reads) == (10, 40, 4)
    assert (answer.output_tokens, answer.output_tokens_source, answer.input_tokens) == (4, "usage", 8)
    assert (answer.finish_reason, answer.done, answer.first_read_tokens) == ("length", True, 1)
    assert judge(answer, forced=4) == "ok"
    assert judge(answer, forced=5) == "short_output"


def test_a_role_only_opener_is_no_token_and_other_openers_are() -> None:
    answer = read(event(delta(role="assistant", content="")), event(delta(content="a")), event(delta("stop")), DONE)
    assert [at for at, _ in answer.events] == [20, 30]
    openers = ({"content": "a"}, {"reasoning": "r"}, {"reasoning_content": "r"}, {"tool_calls": [{"index": 0}]},
               {"function_call": {"name": "f"}})  # fmt: skip
    for fields in openers:
        assert read(event(delta(role="assistant", **fields))).first_token_ns == 10
    assert read(event(delta("stop", role="assistant", content=""))).first_token_ns == 10
    with_ids = {"choices": [{"delta": {"role": "assistant", "content": ""}, "token_ids": [5]}]}
    assert read(event(with_ids)).first_token_ns == 10


def test_a_role_in_every_event_hides_no_token_after_the_first() -> None:
    pieces = [event(delta(role="assistant", content=c)) for c in ("", "a", "", "b")]
    assert [at for at, _ in read(*pieces).events] == [20, 30, 40]


def test_an_empty_text_is_a_token() -> None:
    answer = read(event(text("a")), event(text("")), event(text("b", "stop")), event(usage(3)), DONE)
    assert len(answer.events) == 3
    answer = read(event(text("", "stop")), event(usage(1)), DONE)
    assert (len(answer.events), answer.output_tokens, judge(answer)) == (1, 1, "ok")


def test_reasoning_and_tool_deltas_are_tokens() -> None:
    pieces = [delta(role="assistant", content=""), delta(reasoning_content="h"), delta(reasoning="m"),
              delta(tool_calls=[{"index": 0}]), delta("tool_calls")]  # fmt: skip
    answer = read(*map(event, pieces), event(usage(4)), DONE)
    assert [at for at, _ in answer.events] == [20, 30, 40, 50]
    assert judge(answer) == "ok"


def test_continuous_usage_counts_the_tokens_of_each_event() -> None:
    pieces = [text("ab", usage={"completion_tokens": 3}), text("c", usage={"completion_tokens": 4}),
              text("de", "stop", usage={"completion_tokens": 6})]  # fmt: skip
    answer = read(*map(event, pieces), event(usage(6)), DONE)
    assert answer.events == [(10, 3), (20, 1), (30, 2)]
    assert (answer.first_read_tokens, answer.output_tokens, answer.output_tokens_source) == (3, 6, "usage")


def test_token_ids_count_where_no_usage_does() -> None:
    def with_ids(ids: list[int], finish: str | None = None) -> bytes:
        return event({"choices": [{"text": "x", "token_ids": ids, "finish_reason": finish}]})

    answer = read(with_ids([1, 2]), with_ids([3], "stop"), DONE)
    assert (answer.output_tokens, answer.output_tokens_source, answer.first_read_tokens) == (3, "token_ids", 2)
    assert read(with_ids([1, 2]), with_ids([3], "stop"), event(usage(4)), DONE).output_tokens_source == "usage"


def test_without_usage_the_limit_tells_the_length_where_it_was_reached_else_events_stand_in() -> None:
    cut = event(text("a")), event(text("b")), event(text("", "length")), DONE
    for limit in (2, 8):  # more events than tokens, or fewer
        answer = read(*cut, limit_tokens=limit)
        assert (answer.output_tokens, answer.output_tokens_source) == (limit, "limit")
        assert judge(answer, forced=limit) == "ok"
    answer = read(*cut)
    assert (answer.output_tokens, answer.output_tokens_source) == (3, "events")
    assert judge(read(event(text("a")), event(text("b", "stop")), DONE), forced=8) == "short_output"


def test_cached_tokens_and_noise_in_usage() -> None:
    answer = read(event(text("a", "stop")), event(usage(1, prompt_tokens_details={"cached_tokens": 5})), DONE)
    assert answer.cached_tokens == 5
    noise: list[Any] = [None, 3, {"completion_tokens": 2**60}, {"completion_tokens": True}, {"prompt_tokens": -4}]
    for value in noise:
        answer = read(event(text("a", "stop")), event({"choices": [], "usage": value}), DONE)
        assert (answer.input_tokens, answer.output_tokens, answer.output_tokens_source) == (-1, 1, "events")


@pytest.mark.parametrize(
    "broken",
    [
        event({"error": {"message": "engine died", "code": 500}}),
        event({"object": "error", "message": "engine died"}),
        b'event: error\ndata: {"message": "engine died"}\n\n',
        event({"error": "engine died"}),
    ],
)
def test_an_error_event_is_a_failure_even_with_done(broken: bytes) -> None:
    answer = read(event(text("a")), broken, DONE)
    assert outcome_of(answer, end="complete", status=200, error="", forced_tokens=None) == (
        "stream_error",
        "engine died",
    )
    assert judge(answer, end="lost") == "stream_error"


@pytest.mark.parametrize("reason", ["abort", "error", "unknown", "content_filter"])
def test_a_finish_reason_that_is_not_good_is_a_failure_even_with_done(reason: str) -> None:
    assert judge(read(event(text("a")), event(text("", reason)), event(usage(2)), DONE)) == "stream_error"


def test_the_proper_end() -> None:
    whole = read(event(text("a", "stop")), DONE)
    never_done = read(event(text("a", "stop")))
    assert judge(whole, end="complete") == "ok"
    assert judge(never_done, end="complete") == "ok"
    assert judge(whole, end="cut") == "truncated"
    assert judge(whole, end="eof") == "ok"
    assert judge(never_done, end="eof") == "truncated"
    assert judge(whole, end="lost") == "connection_lost"
    assert judge(read(event(text("a")), DONE), end="complete") == "truncated"
    assert judge(read(event(text("a")), b'data: {"cho', end="cut"), end="cut") == "truncated"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"data: {nonsense}\n\n", b'data: {"choices":[{"text":"\xff"}]}\n\n', b"data: 7\n\n", b"data: [DONE]\n\n",
        b'data: {"choices":{"a":1}}\n\n', b'data: {"choices":[3]}\n\n', b": only comments\n\n",
    ],
)  # fmt: skip
def test_what_is_no_answer(body: bytes) -> None:
    assert judge(read(body)) == "bad_response"


def test_html_is_no_answer_and_is_shown_escaped() -> None:
    answer = read(b"<html>\x1b[31m\r\n" + b"x" * 500, content_type="text/html")
    outcome, error = outcome_of(answer, end="complete", status=200, error="", forced_tokens=None)
    assert outcome == "bad_response"
    assert "<html>\\x1b[31m" in error
    assert error.isprintable()
    assert len(bounded(error)) <= 200


def test_a_plain_json_answer_is_one_token_event_at_its_last_read() -> None:
    body = b'{"choices":[{"text":"abc","finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":4}}'
    answer = read(body[:20], body[20:], content_type="application/json")
    assert answer.events == [(20, 4)]
    assert (answer.output_tokens, judge(answer, forced=4)) == (4, "ok")
    assert judge(read(body[:20], content_type="application/json", end="cut"), end="cut") == "truncated"
    assert judge(read(b'{"error":{"message":"no"}}', content_type="application/json")) == "stream_error"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (429, "rejected"), (503, "rejected"), (500, "http_error"), (502, "http_error"), (504, "http_error"),
        (400, "workload_error"), (401, "workload_error"), (403, "workload_error"), (404, "workload_error"),
        (413, "workload_error"), (422, "workload_error"), (204, "bad_response"), (301, "bad_response"),
        (405, "bad_response"), (-1, "connection_lost"),
    ],
)  # fmt: skip
def test_statuses(status: int, outcome: str) -> None:
    assert judge(None, status=status) == outcome


def test_ends_that_are_no_answer() -> None:
    assert judge(None, end="connect", status=-1) == "connect_error"
    assert judge(None, end="timeout", status=-1) == "timeout"
    assert judge(read(*completion_events(2)), end="timeout") == "timeout"
    assert judge(read(*completion_events(2)), end="cancelled") == "aborted"
    assert judge(None, end="lost", status=-1) == "connection_lost"


STREAM = b"".join(
    [b": hello\n\n", event(delta(role="assistant", content="")), event(delta(content="é")), event(delta(content="")),
     event({"choices": [], "usage": {"completion_tokens": 2}}), event(delta("stop")), DONE]
)  # fmt: skip


def live_first(parts: list[bytes], stamps: list[int], content_type: str) -> int:
    """The first token as the dispatcher sees it while the parts arrive."""
    active = ActiveRequest(0, 0)
    active.opened(0, 200, content_type)
    for part, stamp in zip(parts, stamps, strict=True):
        active.received(part, stamp)
        if active.first_token_ns >= 0:
            assert active.first_token_ns == stamp
            return stamp
    return -1


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, len(STREAM))), st.booleans(), st.sampled_from(["text/event-stream", "application/json", ""])
)
def test_any_cut_into_reads_gives_the_same_answer(cuts: list[int], crlf: bool, label: str) -> None:
    body = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    edges = sorted({0, len(body), *cuts})
    parts = [body[a:b] for a, b in pairwise(edges)]
    stamps = edges[1:]  # a read's stamp says how far the body had come
    cut = read_answer(parts, stamps, content_type=label)
    bytewise = read_answer(
        [bytes([b]) for b in body],
        list(range(1, len(body) + 1)),
        content_type="text/event-stream",
    )
    for name in ("finish_reason", "done", "output_tokens", "output_tokens_source", "error", "bad"):
        assert getattr(cut, name) == getattr(bytewise, name)
    assert [t for _, t in cut.events] == [t for _, t in bytewise.events]
    # the read that completes an event is the first one that reaches its end
    assert [at for at, _ in cut.events] == [min(s for s in stamps if s >= at) for at, _ in bytewise.events]
    assert live_first(parts, stamps, label) == cut.first_token_ns


DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "text": st.sampled_from(["", "a"]),
                    "delta": st.sampled_from([{}, {"role": "assistant", "content": ""}, {"content": "x"}, None]),
                    "finish_reason": st.sampled_from([None, "stop", "abort"]),
                    "token_ids": st.sampled_from([None, [], [1, 2]]),
                },
            )
            | st.none(),
            max_size=2,
        ),
        "usage": st.sampled_from([None, {}, {"completion_tokens": 4}]),
        "error": st.sampled_from([None, "e"]),
        "object": st.sampled_from(["error", "text_completion"]),
    },
)


@settings(max_examples=60)
@given(st.lists(DOCUMENTS, max_size=5))
def test_the_short_way_through_plain_events_comes_to_the_same(documents: list[Any]) -> None:
    pieces = [event(text("a")), event(text("b")), *(event(document) for document in documents)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "AROUND_TEXT", re.compile(b"never"))
        long_way = read(*pieces)
    assert read(*pieces) == long_way


@pytest.mark.parametrize(
    "tail",
    [
        b'z","finish_reason":"abort","index":0}]}', b'z","finish_reason":null}]}', b'\\","finish_reason":null}]}',
        b'\xff","finish_reason":null}]}', b'\n","finish_reason":null}]}', b'","finish_reason":null}]}',
        b'z","finish_reason":"stop","x":"","finish_reason":null}]}', '\u00e9","finish_reason":null}]}'.encode(),
        b'z","finish_reason":null}],"error":{"message":"e"}}', b'z","finish_reason":null}',
    ],
)  # fmt: skip
def test_an_event_that_only_looks_like_the_one_before_is_read_in_full(tail: bytes) -> None:
    head = b'data: {"choices":[{"text":"'
    pieces = [head + b'a","finish_reason":null}]}\n\n', head + b'b","finish_reason":null}]}\n\n', head + tail + b"\n\n"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "AROUND_TEXT", re.compile(b"never"))
        long_way = read(*pieces)
    assert read(*pieces) == long_way


TEXTS = st.lists(
    st.sampled_from(["a", "", " b", "\u00e9", '"', "\\", "data: ", "\n", "x" * 40]), min_size=1, max_size=30
)


@settings(max_examples=60)
@given(TEXTS, st.lists(st.integers(1, 9), max_size=12), st.booleans())
def test_reads_of_many_events_alike_come_to_the_same(texts: list[str], counts: list[int], cut: bool) -> None:
    """What a batched read brings is whole events that differ in their text alone; `cut`: not quite whole ones."""
    pieces = [event(text(each)) for each in ("a", "b", "c", *texts)]
    starts = [0, *(sum(counts[: place + 1]) for place in range(len(counts))), len(pieces)]
    parts = [b"".join(pieces[a:b]) for a, b in pairwise(sorted({min(start, len(pieces)) for start in starts}))]
    if cut:
        parts = [half for part in parts for half in (part[:-7], part[-7:])]
    stamps = list(range(len(parts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "AROUND_TEXT", re.compile(b"never"))
        long_way = read_answer(parts, stamps, content_type="text/event-stream")
    assert len(long_way.events) == len(pieces)
    assert read_answer(parts, stamps, content_type="text/event-stream") == long_way


def test_a_huge_first_event_is_seen_when_it_is_complete_and_not_before() -> None:
    head, tail = b'data: {"choices":[{"text":"', b'","finish_reason":null}]}\n\n'
    parts = [head + b"x" * 600_000, b"x" * 600_000, b"x" * 600_000 + tail, *completion_events(2)]
    assert live_first(parts, [10, 20, 30, 40, 50, 60, 70], "text/event-stream") == 30


def test_done_needs_no_blank_line_where_the_connection_ends_the_body() -> None:
    for end in ("complete", "eof"):
        answer = read(event(text("a", "stop")), b"data: [DONE]", end=end)
        assert judge(answer, end=end) == "ok"
        assert judge(read(event(text("a", "stop")), b"data: [DONE]\n", end=end), end=end) == "ok"
    assert judge(read(event(text("a", "stop")), b'data: {"cho', end="eof"), end="eof") == "truncated"


def test_an_event_without_its_blank_line_is_complete_with_the_body_and_not_earlier() -> None:
    active = ActiveRequest(0, 0)
    active.opened(0, 200, "text/event-stream")
    active.received(event(text("a", "stop")).rstrip(), 10)
    assert active.first_token_ns == -1
    active.ended_ns = 500
    answer = active.finish("complete")
    assert answer is not None
    assert answer.first_token_ns == 500


def test_an_error_event_need_not_be_json() -> None:
    for data in (b"engine died", b'"engine died"', b"[1"):
        answer = read(event(text("a")), b"event: error\ndata: " + data + b"\n\n", DONE)
        assert judge(answer) == "stream_error"
        assert answer.error == data.decode()


@pytest.mark.parametrize("blanks", [b"", b"\n", b" " * 100])
def test_one_document_is_complete_at_its_last_byte_not_at_the_blanks_behind_it(blanks: bytes) -> None:
    body = b'{"choices":[{"text":"abc","finish_reason":"length"}],"usage":{"completion_tokens":4}}'
    parts = [body[:30], body[30:], *([blanks] if blanks else [])]
    assert read(*parts, content_type="application/json").first_token_ns == 20


# ---- usage against what came ----------------------------------------------------------------------------------------


def test_empty_chunks_at_the_edges_are_no_tokens_where_usage_leaves_none_for_them() -> None:
    eight = [event(text(f"t{i}")) for i in range(8)]
    empty, last = event(text("")), event(text("", "length"))
    answer = read(empty, empty, *eight, last, event(usage(8)), DONE)  # stamps: 10, 20; 30 to 100; 110
    assert (answer.first_token_ns, answer.last_token_ns, len(answer.events)) == (30, 100, 8)
    assert (answer.output_tokens, answer.output_tokens_source) == (8, "usage")
    answer = read(empty, *eight, last, event(usage(9)), DONE)  # one of them is: not the last
    assert (answer.first_token_ns, answer.last_token_ns) == (10, 90)
    answer = read(empty, *eight, last, DONE)  # nothing says so
    assert (answer.first_token_ns, answer.last_token_ns, answer.output_tokens) == (10, 100, 10)
    answer = read(empty, empty, last, event(usage(1)), DONE)  # no text at all
    assert (answer.first_token_ns, answer.output_tokens, len(answer.events)) == (30, 1, 1)


def test_an_empty_chunk_that_says_it_brings_nothing_is_no_token_whatever_the_others_bring() -> None:
    def two(total: int) -> bytes:
        return event(text("ab", usage={"completion_tokens": total}))

    answer = read(two(2), two(4), event(text("", "stop", usage={"completion_tokens": 4})), DONE)
    assert (answer.last_token_ns, len(answer.events), answer.output_tokens) == (20, 2, 4)


def test_a_choice_without_text_delta_or_ids_is_never_a_token() -> None:
    bare = event({"choices": [{"index": 0, "finish_reason": "length"}]})
    answer = read(bare, event(text("a")), event(text("b")), event({"choices": [{"index": 0}]}), bare, DONE)
    assert [at for at, _ in answer.events] == [20, 30]
    assert (answer.finish_reason, answer.output_tokens, judge(answer)) == ("length", 2, "ok")


@pytest.mark.parametrize(
    ("told", "finish", "limit", "tokens", "source"),
    [
        (0, "length", 8, 8, "events"), (0, "stop", 20, 8, "events"),  # tokens were seen
        (7, "length", 8, 8, "events"), (7, "stop", 20, 8, "events"),  # one short
        (8, "length", 8, 8, "usage"), (12, "stop", 20, 12, "usage"),  # several tokens an event
        (4, "length", 4, 4, "usage"),  # a token in several events, and the limit says so too
        (3, "length", 4, 4, "limit"),  # the limit bounds what events can mean
    ],
)  # fmt: skip
def test_usage_that_what_came_contradicts_is_doubted(
    told: int, finish: str, limit: int, tokens: int, source: str
) -> None:
    pieces = [event(text("t", finish if i == 7 else None)) for i in range(8)]
    answer = read(*pieces, event(usage(told)), DONE, limit_tokens=limit)
    assert (answer.output_tokens, answer.output_tokens_source, answer.usage_tokens) == (tokens, source, told)
    assert answer.usage_doubted == (source != "usage")


def test_token_ids_are_believed_before_usage_that_says_less() -> None:
    ids = [event({"choices": [{"text": "x", "token_ids": [1, 2], "finish_reason": f}]}) for f in (None, "stop")]
    for told, source in ((3, "token_ids"), (4, "usage"), (5, "usage")):  # a stop token may have no text and no id
        answer = read(*ids, event(usage(told)), DONE)
        assert (answer.output_tokens, answer.output_tokens_source) == (max(told, 4), source)


def test_k_is_what_the_first_read_brought() -> None:
    answer = read(event(text("a")) * 3, event(text("b")), event(text("c", "stop")), event(usage(5)), DONE)
    assert (answer.first_read_events, answer.first_read_tokens, answer.token_reads) == (3, 3, 3)
    assert answer.events_per_read == 5 / 3
    ids = event({"choices": [{"text": "x", "token_ids": [1, 2]}]})
    answer = read(ids * 2, event({"choices": [{"text": "x", "token_ids": [3], "finish_reason": "stop"}]}), DONE)
    assert (answer.first_read_events, answer.first_read_tokens) == (2, 4)


def test_an_exchange_is_judged_as_the_load_s_are() -> None:
    stream = {"status": 200, "content_type": "text/event-stream"}
    done = read_exchange(list(completion_events(4)), [1, 2, 3, 4, 5, 6], forced_tokens=4, **stream)
    assert (done.outcome, done.answer and done.answer.events_per_read) == ("ok", 1.0)
    cut = [event(text("a", "content_filter")), DONE]
    assert read_exchange(cut, [1, 2], **stream).outcome == "stream_error"
    refused = read_exchange([b"no ", b"model"], [1, 2], status=404, content_type="")
    assert (refused.outcome, refused.error) == ("workload_error", "HTTP 404: no model")


# ---- raw captures of a real server ----------------------------------------------------------------------------------


def capture(name: str) -> tuple[int, ParsedResponse, HttpEnd]:
    """Status, answer and end of one captured exchange, each recv() one read."""
    replay = Replay()
    for at_ns, data in captured_reads(name):
        replay.feed(data, at_ns)
    replay.close()
    active = replay.active
    live_ns = active.first_token_ns
    answer = active.finish(replay.end) or ParsedResponse()
    assert live_ns in (answer.first_token_ns, -1)
    return active.status, answer, replay.end


def test_capture_engine_death_is_a_failure_although_done_came() -> None:
    status, answer, end = capture("engine_sigkill_mid_stream")
    assert (status, answer.done, end) == (200, True, "complete")
    outcome, error = outcome_of(answer, end=end, status=status, error="", forced_tokens=2000)
    assert outcome == "stream_error"
    assert error.startswith("EngineCore encountered an issue")


def test_capture_sigterm_aborts() -> None:
    status, answer, end = capture("server_sigterm_mid_stream")
    assert outcome_of(answer, end=end, status=status, error="", forced_tokens=2000)[0] == "stream_error"
    assert (answer.finish_reason, answer.output_tokens) == ("abort", 87)


def test_capture_sigkill_truncates() -> None:
    status, answer, end = capture("server_sigkill_mid_stream")
    assert (status, end, judge(answer, end=end)) == (200, "cut", "truncated")
    assert len(answer.events) > 80


def test_capture_503_is_rejected() -> None:
    status, _, end = capture("queue_limit_503_raw")
    assert (status, judge(None, end=end, status=status)) == (503, "rejected")


@pytest.mark.parametrize(
    ("name", "tokens", "source", "k"),
    [
        ("chat_stream_max1", 1, "usage", 1), ("comp_stream_max1", 1, "usage", 1), ("chat_stream_64", 64, "usage", 1),
        ("comp_stream_64", 64, "usage", 1), ("chat_stream_usage_continuous", 8, "usage", 1),
        ("comp_stream_ids_usage_cont", 8, "usage", 1), ("comp_stream_return_token_ids", 8, "usage", 1),
        ("chat_stream_plain", 7, "events", 1),  # 8 tokens in 7 events: a count of events is only a lower bound
        ("comp_stream_plain", 8, "events", 1),
        ("comp_stream_eos_first", 1, "usage", 1), ("chat_stream_eos_stop", 13, "usage", 1),
        ("comp_nonstream", 8, "usage", 8), ("comp_stream_usage_prompt_tokens_details_2nd", 4, "usage", 4),
    ],
)  # fmt: skip
def test_captures_of_good_answers(name: str, tokens: int, source: str, k: int) -> None:
    status, answer, end = capture(name)
    assert (status, end, judge(answer, end=end)) == (200, "complete", "ok")
    assert (answer.output_tokens, answer.output_tokens_source) == (tokens, source)
    assert answer.first_read_tokens == k
    if name in ("chat_stream_usage_continuous", "comp_stream_ids_usage_cont", "comp_stream_return_token_ids"):
        assert [t for _, t in answer.events] == [1] * 8
    if name == "chat_stream_max1":
        assert len(answer.events) == 1  # the role-only opener came in a read of its own and is none


def test_capture_of_a_wrong_model_is_a_workload_error() -> None:
    status, _, end = capture("dev0_err_bad_model_stream")
    assert judge(None, end=end, status=status) == "workload_error"


def test_a_server_s_own_times_of_a_request_are_kept() -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1},"metrics":%s}'
    for metrics, times in (
        (b'{"queue_time_ms":0.25,"time_to_first_token_ms":12.5,"generation_time_ms":40,"mean_itl_ms":2}',
         (250_000, 12_500_000, 40_000_000)),
        (b'{"queue_time_ms":null,"time_to_first_token_ms":-1,"generation_time_ms":"x"}', (-1, -1, -1)),
        (b'"fast"', (-1, -1, -1)),
    ):  # fmt: skip
        body = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\ndata: ' + usage % metrics + b"\n\n"
        answer = read_answer([body], [5], content_type="text/event-stream")
        assert (answer.server_queue_ns, answer.server_prefill_ns, answer.server_decode_ns) == times
