"""Forward passes of a continuous-batching server, reconstructed from the records of its clients.

Theory of operation. In a pass every decoding request emits one token, so a run's token events come in bunches, one a
pass. A bunch ends where the next event is farther than a quarter of the shortest usual gap between two tokens of a
request. The time from one bunch to the next (first events of each, so that what a client adds to all cancels) is what
the pass took, as long as some request was decoding through it.

What a pass carried is known exactly only where nothing was hidden, so every other pass is left out:

- every request between its first and its last token emitted exactly once in it and in the pass before;
- requests whose first token it brought arrived during the pass before: none was computed in part earlier;
- no other request had arrived when it began: no prompt was partly computed in it, or waited for a slot.

Hence a run below capacity is needed. Preempted requests miss passes, and those passes fall out by the first rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.records import Bools, Floats, Ints, numbers, outcome_is

__all__ = ["NotIdentified", "Passes", "find_passes", "joined"]

_NEVER = np.iinfo(np.int64).max


class NotIdentified(ValueError):
    """The run does not show what was asked; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """Passes whose load is known, in order of time; arrays of shape (n,). `seen` counts the others too."""

    duration_s: Floats
    tokens: Floats  # computed: one a decoding request, and the uncached tokens of new prompts
    context: Floats  # tokens attended to, summed over the requests in the pass
    products: Floats  # query-key products of new prompts, per head and layer (method, section 10)
    prompts: Ints  # first tokens
    seen: int
    crowded: int  # of those left out, how many because somebody waited


def joined(parts: Sequence[Passes]) -> Passes:
    """The passes of several runs, one after the other."""
    columns = ("duration_s", "tokens", "context", "products", "prompts")
    return Passes(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns},
        seen=sum(part.seen for part in parts),
        crowded=sum(part.crowded for part in parts),
    )


def find_passes(requests: pd.DataFrame, events: pd.DataFrame) -> Passes:
    """The passes of one run of one server, from its tables (`analysis.schema`). Raises `NotIdentified`."""
    _check_events(requests, events)
    row: Ints = pd.Index(requests["index"]).get_indexer(pd.Index(events["index"])).astype(np.int64)
    order = np.lexsort((row, numbers(events, "at_ns")))
    row, at_ns = row[order], numbers(events, "at_ns")[order]
    number: Ints = pd.Series(row).groupby(row).cumcount().to_numpy(dtype=np.int64) + np.int64(
        1
    )  # of each token in its request
    bunch: Ints = np.cumsum(np.diff(at_ns, prepend=at_ns[0]) > _limit_ns(row, at_ns), dtype=np.int64)
    count = int(bunch[-1]) + 1
    begin_ns = at_ns[np.flatnonzero(np.diff(bunch, prepend=-1))]
    first, last = np.full(len(requests), _NEVER), np.full(len(requests), -1)
    np.minimum.at(first, row, bunch)
    np.maximum.at(last, row, bunch)
    whole, active = _whole(row, bunch, number, first, last, count)

    known = numbers(requests, "input_tokens")
    length = np.where(known >= 0, known, numbers(requests, "input_tokens_planned"))
    cached = np.maximum(numbers(requests, "cached_tokens"), 0)
    fresh = length - cached
    new = number == 1

    def total(bunches: Ints, weights: npt.ArrayLike) -> Floats:
        sums = np.bincount(bunches, weights=np.asarray(weights, dtype=np.float64), minlength=count)
        return np.asarray(sums, dtype=np.float64)

    products = fresh * cached + fresh * (fresh + 1) // 2
    crowded = _crowded(requests, first, begin_ns)
    usable = whole & (active > 0)
    usable[1:] &= whole[:-1]
    usable[:2] = False
    unclear = total(bunch[new], _unclear(requests)[row[new]]) > 0
    kept = np.flatnonzero(usable & ~crowded & ~unclear)
    return Passes(
        duration_s=(begin_ns[kept] - begin_ns[kept - 1]) / 1e9,
        tokens=(active + total(bunch[new], fresh[row[new]]))[kept],
        context=total(bunch, length[row] + number - 1)[kept],
        products=total(bunch[new], products[row[new]])[kept],
        prompts=total(bunch[new], np.ones(int(new.sum()))).astype(np.int64)[kept],
        seen=count,
        crowded=int((usable & crowded).sum()),
    )


def _check_events(requests: pd.DataFrame, events: pd.DataFrame) -> None:
    if events.empty:
        raise NotIdentified("the run holds no token events")
    if len(events) < (seen := int(np.maximum(numbers(requests, "token_events"), 0).sum())):
        raise NotIdentified(
            f"only {len(events)} of {seen} token events were kept (--events sample): measure again with --events all"
        )
    ok = outcome_is(requests, "ok") & (numbers(requests, "output_tokens") > 0)
    uneven = (numbers(requests, "token_events") != numbers(requests, "output_tokens"))[ok]
    if not uneven.size:
        raise NotIdentified("the run has no good answers whose tokens were counted")
    if uneven.mean() > 0.01:
        raise NotIdentified(
            f"events are not tokens in {100 * uneven.mean():.0f} % of answers: one pass cannot be distinguished from "
            "several; measure again with one token an event"
        )


def _limit_ns(row: Ints, at_ns: Ints) -> float:
    """A gap that only the end of a bunch has."""
    order = np.lexsort((at_ns, row))
    gaps_ns = np.diff(at_ns[order])[np.diff(row[order]) == 0]
    usual_ns = float(np.quantile(gaps_ns, 0.05)) if gaps_ns.size else 0.0
    if usual_ns <= 0:
        raise NotIdentified("tokens arrive several at once (or never two in a request): passes cannot be distinguished")
    return usual_ns / 4


def _whole(row: Ints, bunch: Ints, number: Ints, first: Ints, last: Ints, count: int) -> tuple[Bools, Ints]:
    """In which bunches everybody who was decoding emitted once, and how many were."""
    met = first < _NEVER
    active: Ints = np.cumsum(
        np.bincount(first[met] + 1, minlength=count + 2) - np.bincount(last[met] + 1, minlength=count + 2)
    )[:count]
    decoded = np.bincount(bunch[number > 1], minlength=count)
    order = np.lexsort((bunch, row))
    twice = (np.diff(row[order]) == 0) & (np.diff(bunch[order]) == 0)
    double = np.bincount(bunch[order][1:][twice], minlength=count) > 0
    return (decoded == active) & ~double, active


def _crowded(requests: pd.DataFrame, first: Ints, begin_ns: Ints) -> Bools:
    """Passes in which somebody may have been computed in part, or waited."""
    sent_ns, ended_ns = numbers(requests, "sent_ns"), numbers(requests, "ended_ns")
    inside = (sent_ns >= 0) & ~outcome_is(requests, "rejected", "workload_error", "connect_error")
    count = len(begin_ns)
    # pass s begins at begin_ns[s - 1]: the first that can compute a request is the one that begins after it was sent
    earliest = np.searchsorted(begin_ns, sent_ns, side="left") + 1
    until = np.minimum(first, np.searchsorted(begin_ns, np.where(ended_ns < 0, _NEVER, ended_ns), side="left"))
    waited = inside & (until > earliest)
    edges = np.zeros(count + 2, dtype=np.int64)
    np.add.at(edges, np.minimum(earliest[waited], count), 1)
    np.add.at(edges, np.minimum(until[waited] + 1, count + 1), -1)
    crowded: Bools = np.cumsum(edges)[:count] > 0
    early = inside & (first < earliest)  # answered by a pass that had begun: clocks or bunches are not what they seem
    crowded[first[early]] = True
    return crowded


def _unclear(requests: pd.DataFrame) -> Bools:
    """Requests whose prompt may have been cached in part, which the records do not show."""
    said = numbers(requests, "cached_tokens") >= 0
    unclear: Bools = ~said & (numbers(requests, "prefix_tokens_planned") > 0)
    return unclear
