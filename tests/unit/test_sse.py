from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.send.sse import split_events

BODY = (
    b': hi\n\ndata: {"a":1}\n\nevent: error\ndata:x\ndata:  y\nid: 3\n\n\n\ndata: \xc3\xa9\n\ndata\n\ndata: [DONE]\n\n'
)
DATA = [b'{"a":1}', b"x\n y", b"\xc3\xa9", b"[DONE]"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_fields_lines_comments_and_line_ends(line_end: bytes, bom: bytes) -> None:
    events = split_events(bom + BODY.replace(b"\n", line_end), flush=False)
    assert [data for _, _, data in events] == DATA
    assert [name for _, name, _ in events] == [b"", b"error", b"", b""]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_complete_at_its_end_and_not_a_byte_earlier(line_end: bytes) -> None:
    body = BODY.replace(b"\n", line_end)
    for number, (end, _, data) in enumerate(split_events(body, flush=False)):
        assert len(split_events(body[:end], flush=False)) == number + 1
        assert split_events(body[:end], flush=False)[-1][2] == data
        assert len(split_events(body[: end - 1], flush=False)) == number


def test_what_a_body_cuts_off_counts_only_when_the_body_is_whole() -> None:
    assert split_events(b"data: [DONE]", flush=False) == []
    assert split_events(b"data: [DONE]", flush=True) == [(12, b"", b"[DONE]")]
    assert split_events(b"data: a\r\n\r\ndata: [DONE]\r\n", flush=True)[-1][2] == b"[DONE]"


@given(
    st.lists(st.sampled_from([b"data: a", b"data:b", b"", b"\n", b"\r\n", b"\r", b": c", b"event: e", b"data: "])),
    st.booleans(),
)
def test_the_fast_path_agrees_with_the_line_by_line_one(pieces: list[bytes], flush: bool) -> None:
    body = b"".join(pieces).replace(b"\r", b"\n")
    same_with_a_carriage_return = body + b"\r"  # sends it down the other path, ending one more line
    fast = [(name, data) for _, name, data in split_events(body, flush=False)]
    slow = [(name, data) for _, name, data in split_events(same_with_a_carriage_return, flush=False)]
    assert slow[: len(fast)] == fast
    assert len(slow) <= len(fast) + 1
