"""Seconds or milliseconds: what a file with Mooncake's keys proves about its unit.

Mooncake writes milliseconds and vLLM's timed_trace seconds under the same keys. The size of hash blocks does not decide
of the unit. A rate is: a service whose trace is worth replaying has not one request in twenty seconds, and hardly more
than a hundred each second. Where a reading as one unit is beyond that and the other is not, the file decides; else it
is asked for. What we write says its unit and block size in its first record.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from traces.formats.documents import Head

__all__ = ["MARK", "Unit", "unit_of"]

MARK: Final = "loadgen"  # the key of our own note in the first record
_LEAST_RATE: Final = Decimal("0.05")  # requests/s
_MOST_RATE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit, the block size that the counts of ids fit (0: none does), and why, for a person."""

    clock: Literal["s", "ms"]
    block_tokens: int
    reason: str


def unit_of(head: Head, *, whole: bool) -> Unit | None:
    """The unit that a file's first records prove, None where they do not; `whole`: they are all there is."""
    mark = head.objects[0].get(MARK) if head.objects else None
    if isinstance(mark, dict) and mark.get("unit") in ("s", "ms"):
        size = mark.get("block_tokens")
        return Unit(
            clock=mark["unit"],
            block_tokens=size if isinstance(size, int) and 0 < size < 1_000_000 else 0,
            reason=f"unit {mark['unit']}, as the file's first record says",
        )
    size = _block_tokens(head)
    at = [t for record in head.objects if (t := _number(record.get("timestamp"))) is not None]
    if not at:
        return None
    span = max(at) - min(at)
    if not span:
        # one instant: the unit does not matter
        return Unit(clock="s" if size == 16 else "ms", block_tokens=size, reason="all at one instant") \
            if whole and size else None  # fmt: skip
    fractions = any(t % 1 for t in at)
    as_seconds = (len(at) - 1) / span
    if not fractions and as_seconds < _LEAST_RATE:
        reason = f"milliseconds: in seconds this would be one request in {1 / as_seconds:,.0f} s"
        return Unit(clock="ms", block_tokens=size, reason=reason + "; --format timed_trace if it is")
    if fractions and as_seconds * 1000 > _MOST_RATE and as_seconds >= _LEAST_RATE:
        reason = f"seconds: in milliseconds this would be {as_seconds * 1000:,.0f} requests/s, at fractions of one"
        return Unit(clock="s", block_tokens=size, reason=reason + "; --format mooncake if it is")
    return None


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = Decimal(value) if isinstance(value, Decimal) or abs(value) < 10**20 else Decimal("NaN")
    return number if number.is_finite() and number.adjusted() < 20 else None


def _block_tokens(head: Head) -> int:
    """512 or 16, where at least half of the prompts above 512 tokens have as many ids as blocks of it; else 0."""
    fits = {512: 0, 16: 0}
    seen = 0
    for record in head.objects:
        ids, length = record.get("hash_ids"), record.get("input_length")
        if isinstance(ids, list) and ids and isinstance(length, int) and length > 16:
            seen += 1
            for size in fits:
                fits[size] += len(ids) == -(-length // size)
    return next((size for size, n in fits.items() if 2 * n >= seen > 0), 0)
