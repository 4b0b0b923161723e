"""The joint indicator I of each request of a table, why it is 0, and when open requests become certain misses."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.indicator.rule import NEVER_NS, Bounds
from analysis.records import Bools, Ints, buffered, numbers, outcome_is
from analysis.slo import Slo

__all__ = [
    "CERTAIN",
    "broken_terms",
    "certain_misses",
    "joint",
    "miss_reasons",
    "misses_by_bound",
    "tpot_undefined",
]

CERTAIN: Final = ("", "ttft", "e2e", "tpot")  # what `certain_miss` can say


def joint(requests: pd.DataFrame, slo: Slo) -> Bools:
    """I = 1[ok ∧ TTFT ≤ B_f ∧ TPOT ≤ B_d ∧ E2E ≤ B_e ∧ client queue ≤ B_q], unset bounds dropped, shape (n,).

    `slo.clock` says where TTFT and E2E start. The TPOT term does not apply to
    O = 1; where O > 1 (or O is unknown) and TPOT is undefined, a bounded TPOT is missed.
    """
    good = outcome_is(requests, "ok")
    for broken in _broken(requests, slo).values():
        good &= ~broken
    return good


def miss_reasons(requests: pd.DataFrame, slo: Slo) -> npt.NDArray[np.object_]:
    """Why I is 0, shape (n,) of str: "" where it is 1.

    A failure's reason is its outcome, except that a request cancelled after its bound was already broken names that
    bound. An ok request names the first broken term of `client_queue`, `ttft`, `buffered_stream`, `tpot`, `e2e`.
    """
    certain = requests["certain_miss"].to_numpy(dtype=object)
    outcome = requests["outcome"].to_numpy(dtype=object)
    reasons = np.where(outcome_is(requests, "ok"), "", np.where(certain != "", certain, outcome)).astype(object)
    for name, broken in _broken(requests, slo).items():
        reasons[broken & (reasons == "")] = name
    return reasons


def misses_by_bound(requests: pd.DataFrame, slo: Slo, *, undecided: bool) -> dict[str, int]:
    """How many requests break each bound, most first; one may break several.

    A request cancelled after its bound was broken counts for that bound, another failed one as `failed` alone, and with
    `undecided` one that was still in flight at the end as `unanswered`.
    """
    ok, open_ = outcome_is(requests, "ok"), outcome_is(requests, "censored", "aborted")
    certain = requests["certain_miss"].to_numpy(dtype=object)
    counts = {
        "failed": int(np.count_nonzero(~ok & ~open_ & (certain == ""))),
        "unanswered": int(np.count_nonzero(open_ & (certain == ""))) if undecided else 0,
    }
    for name, broken in _broken(requests, slo).items():
        bound = "tpot" if name == "buffered_stream" else name
        hit = (ok & broken) | (~ok & (certain == bound))
        # a buffered stream has no TPOT, so both terms name it
        counts[bound] = max(counts.get(bound, 0), int(np.count_nonzero(hit)))
    return dict(sorted(((name, n) for name, n in counts.items() if n), key=lambda item: -item[1]))


def tpot_undefined(requests: pd.DataFrame) -> int:
    """How many good requests have no TPOT because O = 1."""
    return int(np.count_nonzero(outcome_is(requests, "ok") & (numbers(requests, "output_tokens") == 1)))


def broken_terms(
    bounds: Bounds,
    *,
    scheduled_ns: Ints,
    sent_ns: Ints,
    first_ns: Ints,
    last_ns: Ints,
    output_tokens: Ints,
    first_read_tokens: Ints,
    token_events: Ints,
    token_reads: Ints,
) -> dict[str, Bools]:
    """Which of the requests that ended ok break which bound that is set; columns of one length, instants ns."""
    start_ns = sent_ns if bounds.from_sent else scheduled_ns
    broken: dict[str, Bools] = {}
    if bounds.client_queue_ns != NEVER_NS:
        broken["client_queue"] = bounds.queue_late(scheduled_ns, sent_ns)
    if bounds.ttft_ns != NEVER_NS:
        broken["ttft"] = bounds.first_late(start_ns, first_ns)
    if bounds.tpot_s is not None:
        broken["tpot"] = bounds.slow(
            sent_ns, first_ns, last_ns, output_tokens, first_read_tokens, token_events, token_reads
        )
    if bounds.e2e_ns != NEVER_NS:
        broken["e2e"] = bounds.end_late(start_ns, last_ns)
    return broken


def certain_misses(
    bounds: Bounds, *, start_ns: Ints, first_ns: Ints, output_tokens: Ints
) -> tuple[Ints, npt.NDArray[np.int8]]:
    """After which instant each request is a certain miss while it has not ended, ns, and by which bound.

    `output_tokens` is the most that each can have. The bound is a place in `CERTAIN`, 0 where the instant is
    `NEVER_NS`; of bounds that are broken at one instant it is the first in `CERTAIN`.
    """
    at_ns = np.full(len(start_ns), NEVER_NS, dtype=np.int64)
    which = np.zeros(len(start_ns), dtype=np.int8)

    def earlier(limit_ns: Ints, applies: Bools, name: str) -> None:
        sooner = applies & (limit_ns < at_ns)
        at_ns[sooner] = limit_ns[sooner]
        which[sooner] = CERTAIN.index(name)

    sent = start_ns >= 0
    if bounds.ttft_ns != NEVER_NS:
        limit_ns = bounds.first_limit_ns(start_ns)
        earlier(limit_ns, sent & bounds.first_late(start_ns, first_ns), "ttft")
    if bounds.e2e_ns != NEVER_NS:
        earlier(bounds.end_limit_ns(start_ns), sent, "e2e")
    if bounds.tpot_s is not None:
        limit_ns = bounds.pace_limit_ns(first_ns, output_tokens)
        earlier(limit_ns, sent & (first_ns >= 0) & (output_tokens > 1), "tpot")
    return at_ns, which


def _broken(requests: pd.DataFrame, slo: Slo) -> dict[str, Bools]:
    """Which good requests break which bound; a stream that came buffered is named before its undefined TPOT."""
    broken = broken_terms(
        Bounds(slo),
        scheduled_ns=numbers(requests, "scheduled_ns"),
        sent_ns=numbers(requests, "sent_ns"),
        first_ns=numbers(requests, "first_token_ns"),
        last_ns=numbers(requests, "last_token_ns"),
        output_tokens=numbers(requests, "output_tokens"),
        first_read_tokens=numbers(requests, "first_read_tokens"),
        token_events=numbers(requests, "token_events"),
        token_reads=numbers(requests, "token_reads"),
    )
    if "tpot" not in broken:
        return broken
    named: dict[str, Bools] = {name: broken[name] for name in ("client_queue", "ttft") if name in broken}
    return {**named, "buffered_stream": buffered(requests), **broken}
