"""Steps of a rank: how they are recognised, and what belongs to each.

A kernel belongs to the step on whose device annotation it begins, or within whose host annotation it was launched.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from analysis.records import Floats, Ints
from analysis.tp.gemms import Gemms
from analysis.tp.intervals import US, array, united
from analysis.tp.kineto import Columns, Recorded
from analysis.tp.names import step_tokens
from analysis.tp.types import Step

__all__ = ["Places", "by_step", "group_ranks", "recognise"]

_PAUSE: Final = 10  # times the median pause, from which on a pause may end a step
_PADDING: Final = 64  # rows of the output matrix that a rank may have beyond its share of the vocabulary


class Places:
    """Which step an interval belongs to; -1 for none."""

    def __init__(self, recorded: Recorded, begin: Floats, end: Floats, by_time: bool) -> None:
        self._begin, self._end, self._by_time = begin, end, by_time
        launched = array(recorded.launched)
        order = np.argsort(launched, kind="stable")
        self._launched, self._launched_at = launched[order], np.asarray(recorded.launched_at_us, np.float64)[order]

    def of(self, columns: Columns) -> Ints:
        """The step of each interval."""
        at = np.asarray(columns.at_us, dtype=np.float64)
        if not len(self._begin) or not len(at):
            return np.full(len(at), -1, dtype=np.int64)
        if not self._by_time and len(self._launched):
            correlation = array(columns.correlation)
            index = np.minimum(np.searchsorted(self._launched, correlation), len(self._launched) - 1)
            met = (self._launched[index] == correlation) & (correlation >= 0)
            at = np.where(met, self._launched_at[index], -np.inf)
        step = np.searchsorted(self._begin, at, side="right") - 1
        inside = (step >= 0) & (at <= self._end[np.maximum(step, 0)])
        return np.where(inside, step, -1).astype(np.int64)


def recognise(
    recorded: Recorded, calls: Floats, compute: Floats, on_device: bool
) -> tuple[Floats, Floats, list[str], str, bool]:
    """(begins, ends, names, how recognised, whether on the clock of the device)."""
    for stem in ("execute_", "ProfilerStep#"):
        for on_clock in (True, False):
            chosen = sorted(
                (b, e, n) for n, b, e, device in recorded.steps if n.startswith(stem) and device == on_clock
            )
            if chosen:
                where = "device" if on_clock else "host"
                return (
                    np.array([one[0] for one in chosen]), np.array([one[1] for one in chosen]),
                    [one[2] for one in chosen], f"{where} annotations {stem}…", on_clock,
                )  # fmt: skip
    busy = united(np.concatenate((calls, compute)))
    pauses = busy[1:, 0] - busy[:-1, 1]
    if on_device and len(pauses) > 1:
        long = np.sort(pauses[pauses > max(_PAUSE * float(np.median(pauses)), 1.0)])
        if len(long):
            jumps = np.diff(np.log(np.concatenate(([max(float(np.median(pauses)), 0.1)], long))))
            limit = float(long[int(np.argmax(jumps))])
            cut = np.flatnonzero(pauses >= limit)
            begin = busy[np.concatenate(([0], cut + 1)), 0]
            end = busy[np.concatenate((cut, [len(busy) - 1])), 1]
            return begin, end, [""] * len(begin), f"pauses of the device of {limit:.0f} µs and more", True
    return np.empty(0), np.empty(0), [], "", True


def by_step(
    recorded: Recorded, begin: Floats, end: Floats, names: list[str], step: Ints, calls: Floats, exposed: Floats,
    payloads: list[int | None], gemms: Gemms, place: Places, vocab: int,
) -> tuple[Step, ...]:  # fmt: skip
    """Each step with its collectives and projections; steps without either are left out."""
    kinds: list[Counter[str]] = [Counter() for _ in names]
    sizes: list[Counter[int | None]] = [Counter() for _ in names]
    took_s, open_s = np.zeros(len(names)), np.zeros(len(names))
    for index, (at, what) in enumerate(zip(step.tolist(), recorded.collectives.what, strict=True)):
        if at < 0:
            continue
        kind = recorded.calls[what].named.kind
        kinds[at][kind] += 1
        if kind == "all_reduce":
            sizes[at][payloads[index]] += 1
        took_s[at] += (calls[index, 1] - calls[index, 0]) * US
        open_s[at] += exposed[index]
    rows: list[Counter[int]] = [Counter() for _ in names]
    spent: list[Counter[int]] = [Counter() for _ in names]  # ns, by rows
    ranks = group_ranks(recorded) or 1
    of_gemm = place.of(gemms.source)[gemms.row].tolist()
    for at, shape, seconds in zip(of_gemm, gemms.shape, gemms.took_s.tolist(), strict=True):
        if at >= 0 and not (vocab and abs(shape[1] * ranks - vocab) <= _PADDING * ranks):
            rows[at][shape[0]] += 1
            spent[at][shape[0]] += round(seconds * 1e9)
    steps = []
    for at, name in enumerate(names):
        if not kinds[at] and not rows[at]:
            continue
        tokens = max(rows[at], key=lambda one: (rows[at][one], one)) if rows[at] else step_tokens(name)
        usual = max(sizes[at], key=lambda one: sizes[at][one]) if sizes[at] else None
        steps.append(
            Step(
                tokens=tokens, took_s=float(end[at] - begin[at]) * US, all_reduces=kinds[at].pop("all_reduce", 0),
                others=tuple(sorted(kinds[at].items())), payload_bytes=usual,
                odd_payloads=sum(n for size, n in sizes[at].items() if size is not None and size != usual),
                collective_s=float(took_s[at]), exposed_s=float(open_s[at]),
                projection_s=spent[at][tokens] / 1e9 if tokens is not None else 0.0,
            )
        )  # fmt: skip
    return tuple(steps)


def group_ranks(recorded: Recorded) -> int | None:
    """The group of most collectives, else the world of the header."""
    sizes = Counter(
        call.ranks or call.named.ranks
        for call in (recorded.calls[what] for what in recorded.collectives.what)
        if call.ranks or call.named.ranks
    )
    return max(sizes, key=lambda one: sizes[one]) if sizes else recorded.ranks
