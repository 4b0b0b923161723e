"""One set of vectors runs against every face of the indicator and the certain miss, and against the method."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.indicator import CERTAIN, NEVER_NS, Bounds, broken_terms, certain_misses, joint, miss_reasons
from analysis.records import derive, table
from analysis.slo import Slo
from loadgen.send.active import ActiveRequest
from loadgen.send.decide import LiveBounds
from loadgen.send.openai import ParsedResponse
from tests.fakes.streams import event, text

NS = 1_000_000_000
SCHEDULED = 1_000
BOUNDS_NS = {"client_queue_s": 500, "ttft_s": 40_000, "e2e_s": 200_000}
TPOT_NS = 10_000
AROUND = (-1, 0, 1)  # ns from the bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """One request that ended ok, and the SLO it is held against."""

    slo: Slo
    sent_ns: int
    first_ns: int
    last_ns: int
    tokens: int
    first_read_tokens: int
    events: int
    reads: int


def by_the_method(v: Vector) -> bool:
    """I as section 3 of the method says it, in fractions."""
    start = v.sent_ns if v.slo.clock == "sent" else SCHEDULED

    def within(ns: int, bound_s: float | None) -> bool:
        return bound_s is None or Fraction(ns, NS) <= Fraction(str(bound_s))

    if not within(v.sent_ns - SCHEDULED, v.slo.client_queue_s):
        return False
    if not within(v.first_ns - start, v.slo.ttft_s) or not within(v.last_ns - start, v.slo.e2e_s):
        return False
    if v.slo.tpot_s is None or v.tokens == 1:
        return True
    after = v.tokens - max(v.first_read_tokens, 1)
    span = v.last_ns - v.first_ns
    gathered = v.reads > 1 and 2 * v.events >= 3 * v.reads and 20 * span < v.first_ns - v.sent_ns
    if after < 1 or v.events == 1 or v.reads == 1 or gathered:
        return False
    return Fraction(span, after * NS) <= Fraction(str(v.slo.tpot_s))


def live(v: Vector) -> bool:
    active = ActiveRequest(0, SCHEDULED, cohort=True)
    active.sent_ns = v.sent_ns
    events = [(v.first_ns, -1)] + [(v.last_ns, -1)] * (v.events - 1)
    answer = ParsedResponse(
        events=events, output_tokens=v.tokens, first_read_tokens=v.first_read_tokens, token_reads=v.reads
    )  # fmt: skip
    return LiveBounds(v.slo).met(active, answer)


def columns_of(v: Vector) -> bool:
    made = broken_terms(
        Bounds(v.slo),
        **{
            name: np.array([value, value], dtype=np.int64)
            for name, value in {
                "scheduled_ns": SCHEDULED,
                "sent_ns": v.sent_ns,
                "first_ns": v.first_ns,
                "last_ns": v.last_ns,
                "output_tokens": v.tokens,
                "first_read_tokens": v.first_read_tokens,
                "token_events": v.events,
                "token_reads": v.reads,
            }.items()
        },
    )
    return not any(broken.any() for broken in made.values())


def of_a_table(v: Vector) -> bool:
    requests = derive(
        table([{
            "scheduled_ns": SCHEDULED, "released_ns": SCHEDULED, "sent_ns": v.sent_ns, "first_token_ns": v.first_ns,
            "last_token_ns": v.last_ns, "ended_ns": v.last_ns, "outcome": "ok", "output_tokens": v.tokens,
            "first_read_tokens": v.first_read_tokens, "token_events": v.events, "token_reads": v.reads,
        }])
    )  # fmt: skip
    good = bool(joint(requests, v.slo)[0])
    assert good == (miss_reasons(requests, v.slo)[0] == "")
    return good


@st.composite
def vectors(draw: st.DrawFn) -> Vector:
    """Stamps at a bound, one ns before or one behind it, and anywhere."""
    slo = Slo(
        **{name: ns / NS for name, ns in BOUNDS_NS.items() if draw(st.booleans())},
        tpot_s=draw(st.sampled_from([None, TPOT_NS / NS])),
        clock=draw(st.sampled_from(["scheduled", "sent"])),
    )
    sent = SCHEDULED + draw(st.sampled_from([0, *(500 + d for d in AROUND)]))
    start = sent if slo.clock == "sent" else SCHEDULED
    first = start + draw(st.sampled_from([600, *(40_000 + d for d in AROUND)]))
    tokens, first_read = draw(st.sampled_from([1, 2, 12, -1])), draw(st.sampled_from([-1, 1, 2, 11, 12]))
    after = max(tokens - max(first_read, 1), 1)
    lasts = [first, *(first + after * TPOT_NS + d for d in AROUND), *(start + 200_000 + d for d in AROUND)]
    lasts += [first + (first - sent) // 20 + d for d in AROUND]
    events = draw(st.sampled_from([1, 2, 3, 12]))
    last = first if events == 1 else max(first, draw(st.sampled_from(lasts)))
    return Vector(
        slo=slo, sent_ns=sent, first_ns=first, last_ns=last, tokens=tokens, first_read_tokens=first_read,
        events=events, reads=draw(st.integers(1, events)),
    )  # fmt: skip


@pytest.mark.parametrize("face", [live, columns_of, of_a_table])
def test_every_face_of_the_indicator_is_the_method(face: object) -> None:
    assert callable(face)
    seen: set[bool] = set()

    @settings(max_examples=300)
    @given(vectors())
    @example(Vector(slo=Slo(tpot_s=TPOT_NS / NS), sent_ns=SCHEDULED, first_ns=2_000, last_ns=112_000, tokens=12,
                    first_read_tokens=1, events=12, reads=12))  # TPOT of exactly the bound  # fmt: skip
    @example(Vector(slo=Slo(tpot_s=TPOT_NS / NS), sent_ns=SCHEDULED, first_ns=2_000, last_ns=112_001, tokens=12,
                    first_read_tokens=1, events=12, reads=12))  # fmt: skip
    def agree(vector: Vector) -> None:
        seen.add(by_the_method(vector))
        assert face(vector) == by_the_method(vector)

    agree()
    assert seen == {True, False}


def first_certain_ns(slo: Slo, start: int, first: int, planned: int) -> tuple[int, str]:
    """The first instant at which no end that is still possible meets the SLO, by trying; and the bound's name."""

    def out_of_reach(now: int) -> str:
        if slo.ttft_s is not None and Fraction((first if first >= 0 else now) - start, NS) > Fraction(str(slo.ttft_s)):
            return "ttft" if now > start + round(slo.ttft_s * NS) else ""
        if slo.e2e_s is not None and Fraction(now - start, NS) > Fraction(str(slo.e2e_s)):
            return "e2e"
        if slo.tpot_s is None or first < 0 or planned <= 1:
            return ""
        return "tpot" if Fraction(now - first, (planned - 1) * NS) > Fraction(str(slo.tpot_s)) else ""

    instants = [start + 40_001, start + 200_001, first + (planned - 1) * TPOT_NS + 1]
    for now in sorted(instants):
        if now >= start and out_of_reach(now):
            assert not out_of_reach(now - 1)
            return now, out_of_reach(now)
    return -1, ""


@settings(max_examples=300)
@given(
    bounds=st.fixed_dictionaries(
        {"clock": st.sampled_from(["scheduled", "sent"])},
        optional={"ttft_s": st.just(40e-6), "e2e_s": st.just(200e-6), "tpot_s": st.just(10e-6)},
    ),
    wait=st.sampled_from([-1, 600, 39_999, 40_000, 40_001]),
    planned=st.sampled_from([1, 2, 12, 21]),
)
def test_every_face_of_the_certain_miss_names_the_same_instant_and_bound(
    bounds: dict[str, float], wait: int, planned: int
) -> None:
    slo = Slo(**bounds)  # type: ignore[arg-type]
    sent = SCHEDULED + 300
    start = sent if slo.clock == "sent" else SCHEDULED
    first = start + wait if wait >= 0 else -1
    at_ns, name = first_certain_ns(slo, start, first, planned)

    (limit_ns,), (which,) = certain_misses(
        Bounds(slo), start_ns=np.array([start]), first_ns=np.array([first]), output_tokens=np.array([planned])
    )
    assert (limit_ns + 1 if which else -1, CERTAIN[which]) == (at_ns, name)
    assert (which == 0) == (limit_ns == NEVER_NS)

    active = ActiveRequest(0, SCHEDULED, cohort=True)
    active.output_tokens_planned, active.sent_ns = planned, sent
    decide = LiveBounds(slo)
    if first >= 0:
        active.opened(sent, 200, "text/event-stream")
        active.received(event(text("a")), first)
    if at_ns < 0 or (planned == 1 and first >= 0):  # its only token came: it may be finished
        assert decide.broken(active, NEVER_NS // 2) in ("", name)
        return
    assert decide.broken(active, at_ns) == name
    if wait <= 40_000 or "ttft_s" not in bounds:  # a first token that is late is known before the instant's limit
        assert decide.broken(active, at_ns - 1) == ""
        assert decide.next_ns(active, max(first, start)) <= at_ns - 1
