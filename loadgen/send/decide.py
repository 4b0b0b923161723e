"""When is a request decided? The rule of the indicator as the dispatcher needs it while requests are in flight.

A request in flight is a *certain miss* once it is older than B_f without a token, older than B_e, or its TPOT cannot
hold any more: with O tokens at most, TPOT ≥ (now − first token)/(O − 1) while tokens are still to come (method, section
6; `analysis.indicator.rule`). What came is read by the same rule as in the end (`reader`), and where it cannot be known
yet (a token half come, a stream that may only lack its end) nothing is certain.
"""

from __future__ import annotations

from analysis.indicator.rule import Bounds
from analysis.slo import Slo
from loadgen.send.active import ActiveRequest
from loadgen.send.openai import Answer

__all__ = ["LiveBounds"]


class LiveBounds:
    """The bounds of one SLO, asked of one request at a time."""

    def __init__(self, slo: Slo) -> None:
        self._bounds = Bounds(slo)
        self._from_sent = self._bounds.from_sent
        self._first, self._whole, self._paced = (bound is not None for bound in (slo.ttft_s, slo.e2e_s, slo.tpot_s))
        self.any = bool({"ttft", "tpot", "e2e"} & slo.bounds().keys())

    def next_ns(self, active: ActiveRequest, now_ns: int) -> int:
        """No earlier than when the request can become a certain miss, whatever happens to it from now on."""
        start = active.sent_ns if self._from_sent else active.scheduled_ns
        if start < 0:  # not sent yet, and the SLO's clock starts there: not before it was released
            start = now_ns
        bounds, first = self._bounds, active.first_token_ns
        limit = bounds.end_limit_ns(start)
        if first < 0:
            limit = min(limit, bounds.first_limit_ns(start))
            first = now_ns
        if self._paced and active.output_tokens_planned > 1:
            return min(limit, bounds.pace_limit_ns(first, active.output_tokens_planned))
        return limit

    def broken(self, active: ActiveRequest, now_ns: int) -> str:
        """The bound that the request can no longer meet, as a `certain_miss`; "" if it still may."""
        start = active.sent_ns if self._from_sent else active.scheduled_ns
        if start < 0:
            return ""
        bounds, first, reader, late = self._bounds, active.first_token_ns, active.reader, ""
        if self._first and (first if first >= 0 else now_ns) > bounds.first_limit_ns(start):
            if first >= 0:
                return "ttft"
            late = "ttft"
        elif self._whole and now_ns > bounds.end_limit_ns(start):
            late = "e2e"
        if reader is None:  # no answer that could hold a token
            return late
        if not late and (first < 0 or not self._too_slow(active, first, now_ns)):
            return ""
        active.read()
        if active.first_token_ns < 0:
            return "" if reader.unsure(active.parts) else late
        if reader.may_be_finished(active.output_tokens_planned):
            return ""
        sure = reader.first_text_ns  # an empty chunk before it may turn out to be no token
        return late or ("tpot" if sure >= 0 and self._too_slow(active, sure, now_ns) else "")

    def met(self, active: ActiveRequest, answer: Answer) -> bool:
        """The indicator I of a request that ended ok (method, section 3)."""
        events = answer.events
        return self._bounds.met(
            active.scheduled_ns,
            active.sent_ns,
            events[0][0],
            events[-1][0],
            answer.output_tokens,
            answer.first_read_tokens,
            len(events),
            answer.token_reads,
        )

    def _too_slow(self, active: ActiveRequest, first_ns: int, now_ns: int) -> bool:
        tokens = active.output_tokens_planned
        return self._paced and tokens > 1 and now_ns > self._bounds.pace_limit_ns(first_ns, tokens)
