"""The joint indicator I of each request, why it is 0, and the exact attainment criterion (method, sections 3 and 6)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.records import Bools, Floats, buffered, numbers, outcome_is
from analysis.slo import Slo

__all__ = ["attains", "joint", "miss_reasons", "misses_allowed", "misses_by_bound", "tpot_undefined"]


def joint(requests: pd.DataFrame, slo: Slo) -> Bools:
    """I = 1[ok ∧ TTFT ≤ B_f ∧ TPOT ≤ B_d ∧ E2E ≤ B_e ∧ client queue ≤ B_q], unset bounds dropped, shape (n,).

    `requests` carries the derived columns. `slo.clock` says where TTFT and E2E start. The TPOT term does not apply to
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


def attains(total: int, misses: int, share: Fraction) -> bool:
    """Whether total − misses ≥ share·total, in integers (method, section 6): no rounding decides a verdict."""
    return (total - misses) * share.denominator >= share.numerator * total


def misses_allowed(total: int, share: Fraction) -> int:
    """The largest number of misses among `total` that still attains `share`."""
    return math.floor(total * (1 - share))


def _broken(requests: pd.DataFrame, slo: Slo) -> dict[str, Bools]:
    """Which requests break which bound; an undefined value breaks it (for TPOT unless O = 1)."""
    from_sent = "_from_sent_s" if slo.clock == "sent" else "_s"
    broken: dict[str, Bools] = {}
    if slo.client_queue_s is not None:
        broken["client_queue"] = ~(_values(requests, "client_queue_s") <= slo.client_queue_s)
    if slo.ttft_s is not None:
        broken["ttft"] = ~(_values(requests, f"ttft{from_sent}") <= slo.ttft_s)
    if slo.tpot_s is not None:
        broken["buffered_stream"] = buffered(requests)
        applies = numbers(requests, "output_tokens") != 1
        broken["tpot"] = applies & ~(_values(requests, "tpot_s") <= slo.tpot_s)
    if slo.e2e_s is not None:
        broken["e2e"] = ~(_values(requests, f"e2e{from_sent}") <= slo.e2e_s)
    return broken


def _values(requests: pd.DataFrame, name: str) -> Floats:
    return requests[name].to_numpy(dtype=np.float64)
