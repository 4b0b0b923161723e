"""The rule of the indicator I and of the certain miss, of one request and of columns (method, sections 2, 3, 6).

Every term is written once, with operators that mean the same for Python integers and for int64 columns. Instants are ns
since t0, -1 where something did not happen. The sender calls the terms with one request's integers (`Bounds.met`;
`loadgen.send.decide`), tables and the virtual server call them with columns (`analysis.indicator.columns`).

A request that has not ended is a certain miss once the terms are broken with the present instant in place of the token
that has not come, and with the most output tokens that it can have.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final, TypeAlias, TypeVar

from analysis.records import Ints, after_first, unseen
from analysis.slo import Slo
from analysis.units import NS_PER_S

__all__ = ["NEVER_NS", "Bounds", "attains", "misses_allowed"]

NEVER_NS: Final = 1 << 62  # later than every instant of a run
_EXACT_NS: Final = 1 << 53  # up to here floats tell one ns from the next
Count = TypeVar("Count", int, Ints)
Truth: TypeAlias = Any  # a bool, or a column of them


class Bounds:
    """The bounds of one SLO, in ns and exact: x ns meet a bound of b s if x / 10^9 ≤ b. An unset one is `NEVER_NS`."""

    __slots__ = ("client_queue_ns", "e2e_ns", "from_sent", "tpot_ns", "tpot_s", "ttft_ns")

    def __init__(self, slo: Slo) -> None:
        self.client_queue_ns = _longest_ns(slo.client_queue_s)
        self.ttft_ns = _longest_ns(slo.ttft_s)
        self.e2e_ns = _longest_ns(slo.e2e_s)
        self.tpot_s = slo.tpot_s
        # rounded up, so that a TPOT above it is above the bound, however many tokens it is multiplied with
        self.tpot_ns = NEVER_NS if slo.tpot_s is None else math.ceil(round(slo.tpot_s * NS_PER_S, 6))
        self.from_sent = slo.clock == "sent"

    # Terms: whether a bound is broken. A value that is undefined breaks its bound.

    def queue_late(self, scheduled_ns: Count, sent_ns: Count) -> Truth:
        """The client queue is above its bound."""
        return (sent_ns < 0) | (sent_ns - scheduled_ns > self.client_queue_ns)

    def first_late(self, start_ns: Count, first_ns: Count) -> Truth:
        """TTFT is above its bound."""
        return (start_ns < 0) | (first_ns < 0) | (first_ns - start_ns > self.ttft_ns)

    def end_late(self, start_ns: Count, last_ns: Count) -> Truth:
        """E2E is above its bound."""
        return (start_ns < 0) | (last_ns < 0) | (last_ns - start_ns > self.e2e_ns)

    def slow(
        self,
        sent_ns: Count,
        first_ns: Count,
        last_ns: Count,
        output_tokens: Count,
        first_read_tokens: Count,
        token_events: Count,
        token_reads: Count,
    ) -> Truth:
        """TPOT = (last − first)/(O − k) is above its bound, or undefined; the term does not apply to O = 1."""
        after, span_ns = after_first(output_tokens, first_read_tokens), last_ns - first_ns
        return (output_tokens != 1) & (
            (first_ns < 0)
            | (last_ns < 0)
            | (after < 1)
            | unseen(token_events, token_reads, span_ns, first_ns - sent_ns)
            # one division, so that exactly the bound is not above it; of one token where the quotient is undefined
            | (span_ns / ((after + (after < 1) * (1 - after)) * NS_PER_S) > self.tpot_s)
        )

    # When a request that has not ended becomes a certain miss: after these instants.

    def first_limit_ns(self, start_ns: Count) -> Count:
        """The last instant at which a first token still meets TTFT."""
        return start_ns + self.ttft_ns

    def end_limit_ns(self, start_ns: Count) -> Count:
        """The last instant at which a last token still meets E2E."""
        return start_ns + self.e2e_ns

    def pace_limit_ns(self, first_ns: Count, output_tokens: Count) -> Count:
        """The last instant at which the last of `output_tokens` > 1, the most there can be, still meets a set TPOT."""
        return first_ns + self.tpot_ns * (output_tokens - 1)

    # One request.

    def met(
        self,
        scheduled_ns: int,
        sent_ns: int,
        first_ns: int,
        last_ns: int,
        output_tokens: int,
        first_read_tokens: int,
        token_events: int,
        token_reads: int,
    ) -> bool:
        """The indicator I of one request that ended ok."""
        start_ns = sent_ns if self.from_sent else scheduled_ns
        if self.ttft_ns != NEVER_NS and self.first_late(start_ns, first_ns):
            return False
        if self.e2e_ns != NEVER_NS and self.end_late(start_ns, last_ns):
            return False
        if self.client_queue_ns != NEVER_NS and self.queue_late(scheduled_ns, sent_ns):
            return False
        return self.tpot_s is None or not self.slow(
            sent_ns, first_ns, last_ns, output_tokens, first_read_tokens, token_events, token_reads
        )


def attains(total: int, misses: int, share: Fraction) -> bool:
    """Whether total − misses ≥ share·total, in integers (method, section 6): no rounding decides a verdict."""
    return (total - misses) * share.denominator >= share.numerator * total


def misses_allowed(total: int, share: Fraction) -> int:
    """The largest number of misses among `total` that still attains `share`."""
    return math.floor(total * (1 - share))


def _longest_ns(bound_s: float | None) -> int:
    """The largest number of ns that meets a bound."""
    if bound_s is None:
        return NEVER_NS
    longest = round(bound_s * NS_PER_S)
    if longest >= _EXACT_NS:
        return min(longest, NEVER_NS - 1)
    while longest / NS_PER_S > bound_s:
        longest -= 1
    while (longest + 1) / NS_PER_S <= bound_s:
        longest += 1
    return longest
