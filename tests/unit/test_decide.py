"""The dispatcher counts misses live by the indicator that the judge computes from the table."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.indicator import joint
from analysis.records import derive
from analysis.slo import Slo
from loadgen.send.active import ActiveRequest
from loadgen.send.decide import LiveBounds
from loadgen.send.openai import outcome_of
from loadgen.send.table import Tables
from tests.fakes.streams import DONE, event, text, usage

MS = 1_000_000


@settings(max_examples=200)
@given(
    reads=st.lists(st.tuples(st.integers(0, 40), st.lists(st.sampled_from(["", "a", "é"]), max_size=4)), max_size=8),
    told=st.integers(-1, 12),
    wait_ms=st.sampled_from([1, 100, 900]),
    slo=st.fixed_dictionaries(
        {"clock": st.sampled_from(["scheduled", "sent"])},
        optional={
            "ttft_s": st.sampled_from([0.05, 0.5]),
            "tpot_s": st.sampled_from([0.001, 0.01, 0.05]),
            "e2e_s": st.sampled_from([0.1, 1.0]),
        },
    ),
)
def test_live_and_recorded_indicators_agree(
    reads: list[tuple[int, list[str]]], told: int, wait_ms: int, slo: dict[str, Any]
) -> None:
    active = ActiveRequest(0, 5 * MS, cohort=True)
    active.output_tokens_planned = 12
    active.sent_ns = 7 * MS
    active.opened(8 * MS, 200, "text/event-stream")
    at_ns = list(accumulate((gap * MS for gap, _ in reads), initial=(8 + wait_ms) * MS))
    for stamp, (_, texts) in zip(at_ns[1:], reads, strict=True):
        if texts:
            active.received(b"".join(event(text(piece)) for piece in texts), stamp)
    active.received(event(text("z", "stop")) + (event(usage(told)) if told >= 0 else b"") + DONE, at_ns[-1] + MS)
    active.ended_ns = at_ns[-1] + MS
    answer = active.finish("complete")
    outcome, error = outcome_of(answer, end="complete", status=200, error="", forced_tokens=None)
    assert (outcome, error) == ("ok", "")
    assert answer is not None
    tables = Tables(None)
    tables.add(active, outcome, error, answer)
    bounds = Slo(**slo)
    assert LiveBounds(bounds).met(active, answer) == joint(derive(tables.requests()), bounds)[0]
