"""When is a request decided? The SLO's bounds as the dispatcher needs them while requests are still in flight.

A request in flight is a *certain miss* once it is older than B_f without a token, older than B_e, or its TPOT cannot
hold any more: with O tokens at most, TPOT ≥ (now − first token)/(O − 1) while tokens are still to come (method, section
6). What came is read by the same rule as in the end (`reader`), and where it cannot be known yet (a token half come, a
stream that may only lack its end) nothing is certain.
"""

from __future__ import annotations

from typing import Final

from analysis.records import gathered
from analysis.slo import Slo
from analysis.units import NS_PER_S
from loadgen.send.active import ActiveRequest
from loadgen.send.openai import Answer

__all__ = ["Bounds"]

_NEVER: Final = 1 << 62


def _ns(bound_s: float | None) -> int:
    return _NEVER if bound_s is None else round(bound_s * NS_PER_S)


class Bounds:
    """The bounds of one SLO in ns."""

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self._ttft_ns = _ns(slo.ttft_s)
        self._tpot_ns = _ns(slo.tpot_s)
        self._e2e_ns = _ns(slo.e2e_s)
        self._from_sent = slo.clock == "sent"
        self.any = bool({"ttft", "tpot", "e2e"} & slo.bounds().keys())

    def next_ns(self, active: ActiveRequest, now_ns: int) -> int:
        """No earlier than when the request can become a certain miss, whatever happens to it from now on."""
        start = self._start_ns(active)
        if start < 0:  # not sent yet, and the SLO's clock starts there: not before it was released
            start = now_ns
        first = active.first_token_ns
        if first < 0:
            return min(start + min(self._ttft_ns, self._e2e_ns), self._tpot_limit_ns(active, now_ns))
        return min(start + self._e2e_ns, self._tpot_limit_ns(active, first))

    def broken(self, active: ActiveRequest, now_ns: int) -> str:
        """The bound that the request can no longer meet, as a `certain_miss`; "" if it still may."""
        start = self._start_ns(active)
        if start < 0:
            return ""
        first, reader = active.first_token_ns, active.reader
        if first >= 0:
            if first - start > self._ttft_ns:
                return "ttft"
            late = "e2e" if now_ns - start > self._e2e_ns else ""
        else:
            late = "ttft" if now_ns - start > self._ttft_ns else "e2e" if now_ns - start > self._e2e_ns else ""
        if reader is None:  # no answer that could hold a token
            return late
        if not late and (first < 0 or now_ns <= self._tpot_limit_ns(active, first)):
            return ""
        active.read()
        if active.first_token_ns < 0:
            return "" if reader.unsure(active.parts) else late
        if reader.may_be_finished(active.output_tokens_planned):
            return ""
        sure = reader.first_text_ns  # an empty chunk before it may turn out to be no token
        return late or ("tpot" if sure >= 0 and now_ns > self._tpot_limit_ns(active, sure) else "")

    def met(self, active: ActiveRequest, answer: Answer) -> bool:
        """The indicator I of a request that ended ok (method, section 3), in integers of ns."""
        slo, start = self._slo, self._start_ns(active)
        if slo.client_queue_s is not None and (active.sent_ns - active.scheduled_ns) / NS_PER_S > slo.client_queue_s:
            return False
        if slo.ttft_s is not None and (answer.first_token_ns - start) / NS_PER_S > slo.ttft_s:
            return False
        if slo.e2e_s is not None and (answer.last_token_ns - start) / NS_PER_S > slo.e2e_s:
            return False
        if slo.tpot_s is None or answer.output_tokens == 1:
            return True
        after_first = answer.output_tokens - max(answer.first_read_tokens, 1)
        if after_first <= 0 or len(answer.events) == 1 or answer.token_reads == 1:
            return False  # a buffered stream: its TPOT is undefined, and so a miss
        span_ns = answer.last_token_ns - answer.first_token_ns
        if gathered(len(answer.events), answer.token_reads, span_ns, answer.first_token_ns - active.sent_ns):
            return False
        return span_ns / (after_first * NS_PER_S) <= slo.tpot_s

    def _start_ns(self, active: ActiveRequest) -> int:
        return active.sent_ns if self._from_sent else active.scheduled_ns

    def _tpot_limit_ns(self, active: ActiveRequest, first_ns: int) -> int:
        tokens = active.output_tokens_planned
        if self._tpot_ns >= _NEVER or tokens <= 1:
            return _NEVER
        return first_ns + self._tpot_ns * (tokens - 1)
