"""Steps, collectives and GEMMs of one rank, from what its trace recorded.

Definitions. The *plain sum* of collectives adds up their durations. Their *exposed* part is what neither compute (on
any other stream or thread of the rank) nor an earlier collective covers: it is on the critical path. Both hold the wait
for the slowest rank. A kernel belongs to the operator whose `External id` it carries, and to the step on whose device
annotation it begins, or within whose host annotation it was launched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from analysis.records import Bools, Floats, Ints
from analysis.tp.kineto import GEMM, ON_THREAD, Columns, Recorded
from analysis.tp.names import ELEMENT_BYTES, gemm_shape, step_tokens

__all__ = ["CollectiveTotal", "GemmTotal", "Profile", "Step", "summarise"]

_PAUSE: Final = 10  # times the median pause, from which on a pause may end a step
_US: Final = 1e-6
_PADDING: Final = 64  # rows of the output matrix that a rank may have beyond its share of the vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTotal:
    """Calls alike in kind, maker, element type, group and payload; `None` and "" where the trace does not say."""

    kind: str
    by: str
    element: str
    ranks: int | None
    payload_bytes: int | None
    calls: int
    total_s: float
    median_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTotal:
    """Calls of one shape: (rows × K) · (K × N)."""

    rows: int
    columns: int  # N
    depth: int  # K
    element: str
    calls: int
    total_s: float

    @property
    def flops_per_s(self) -> float:
        """2·rows·N·K FLOPs a call, by the time it took."""
        return 2 * self.rows * self.columns * self.depth * self.calls / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. `payload_bytes`: the most frequent of its all-reduces; `odd_payloads`: how many have another one."""

    tokens: int | None  # T: rows of most of its GEMMs, else as annotated
    took_s: float
    all_reduces: int
    others: tuple[tuple[str, int], ...]  # other collectives by kind
    payload_bytes: int | None
    odd_payloads: int
    collective_s: float
    exposed_s: float
    projection_s: float  # GEMMs of T rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One rank's trace. `steps_by` says how steps were recognised, "" if they were not."""

    rank: int | None
    ranks: int | None
    on_device: bool
    events: int
    steps: tuple[Step, ...]
    steps_by: str
    collectives: tuple[CollectiveTotal, ...]
    gemms: tuple[GemmTotal, ...]
    unshaped_gemms: int  # kernels that seem to be GEMMs, of unknown shape (inside CUDA graphs)
    unshaped_gemm_s: float


def summarise(recorded: Recorded, *, vocab: int = 0) -> Profile:
    """Put the columns together. GEMMs onto a vocabulary of this size are no projections. O(n log n) in kernels."""
    on_device = bool((_array(recorded.compute.what) != ON_THREAD).any()) or any(
        call.named.by != "gloo" for call in recorded.calls
    )
    compute = _times(recorded.compute, _array(recorded.compute.what) == ON_THREAD, flip=on_device)
    calls = _times(recorded.collectives)
    exposed = _exposed(calls, compute)
    payloads = _payloads(recorded)
    gemms, unshaped = _gemms(recorded, on_device)
    begin, end, names, steps_by, on_clock = _steps(recorded, calls, compute, on_device)
    place = _Places(recorded, begin, end, on_clock or not on_device)
    steps = _by_step(
        recorded, begin, end, names, place.of(recorded.collectives), calls, exposed, payloads, gemms, place, vocab
    )
    return Profile(
        rank=recorded.rank, ranks=_ranks(recorded), on_device=on_device, events=recorded.events, steps=steps,
        steps_by=steps_by, collectives=_collective_totals(recorded, calls, exposed, payloads),
        gemms=_gemm_totals(gemms), unshaped_gemms=unshaped[0], unshaped_gemm_s=unshaped[1],
    )  # fmt: skip


def _array(values: Sequence[int]) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _times(columns: Columns, marked: Bools | None = None, *, flip: bool = False) -> Floats:
    """(n, 2) begins and ends, µs; of the marked ones, or with `flip` of the others."""
    at = np.asarray(columns.at_us, dtype=np.float64)
    both: Floats = np.column_stack((at, at + np.asarray(columns.took_us, dtype=np.float64)))
    return both if marked is None else both[marked != flip]


def _union(times: Floats) -> Floats:
    """Disjoint intervals that cover the same, in order."""
    ordered = times[np.argsort(times[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    reach = np.maximum.accumulate(ordered[:, 1])
    fresh = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(ordered) - 1]))
    return np.column_stack((ordered[fresh, 0], reach[last]))


def _covered(union: Floats, at: Floats) -> Floats:
    """How much of the union lies before each instant."""
    if not len(union):
        return np.zeros_like(at)
    before = np.concatenate(([0.0], np.cumsum(union[:, 1] - union[:, 0])))
    index = np.searchsorted(union[:, 0], at, side="right")
    over: Floats = np.where(index > 0, np.maximum(union[np.maximum(index - 1, 0), 1] - at, 0.0), 0.0)
    covered: Floats = before[index] - over
    return covered


def _exposed(calls: Floats, compute: Floats) -> Floats:
    """Seconds of each call that neither compute nor an earlier call covers."""
    if not len(calls):
        return np.empty(0)
    order = np.argsort(calls[:, 0], kind="stable")
    reach = np.concatenate(([-np.inf], np.maximum.accumulate(calls[order, 1])[:-1]))
    begin = np.minimum(np.maximum(calls[order, 0], reach), calls[order, 1])
    union = _union(compute)
    own = calls[order, 1] - begin - (_covered(union, calls[order, 1]) - _covered(union, begin))
    exposed = np.empty(len(calls))
    exposed[order] = np.maximum(own, 0.0) * _US
    return exposed


def _payloads(recorded: Recorded) -> list[int | None]:
    """Bytes of each collective: as Kineto wrote, else from the operator around it."""
    wrapped = dict(zip(recorded.wrappers.external, recorded.wrappers.what, strict=True))
    found: list[int | None] = []
    for what, external in zip(recorded.collectives.what, recorded.collectives.external, strict=True):
        call = recorded.calls[what]
        if call.elements >= 0:
            size = ELEMENT_BYTES.get(call.element or call.named.element)
            found.append(None if size is None else call.elements * size)
            continue
        number = wrapped.get(external) if external >= 0 else None
        operator = None if number is None else recorded.operators[number]
        size = ELEMENT_BYTES.get((operator.element if operator else "") or call.named.element)
        known = operator is not None and operator.dims and size is not None and call.named.kind == "all_reduce"
        found.append(prod(operator.dims[0]) * size if known and operator is not None and size is not None else None)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Gemms:
    """GEMMs of known shape, or parts of such: shape and element of each, the columns' rows, seconds."""

    shape: list[tuple[int, int, int, str]]
    row: Ints  # in `source`
    operator: Ints  # rows of the operators; kernels of one call share it
    took_s: Floats
    source: Columns


def _gemms(recorded: Recorded, on_device: bool) -> tuple[_Gemms, tuple[int, float]]:
    shapes = [  # one object a shape, however many calls have it
        None if (shape := gemm_shape(one.name, one.dims)) is None else (*shape, one.element)
        for one in recorded.operators
    ]
    operators = recorded.gemms
    if on_device:
        source = recorded.compute
        external = _array(operators.external)
        order = np.argsort(external, kind="stable")
        wanted = _array(source.external)
        at = np.minimum(np.searchsorted(external[order], wanted), max(0, len(order) - 1))
        linked = (wanted >= 0) & (external[order][at] == wanted) if len(order) else np.zeros(len(wanted), dtype=bool)
        row, operator = np.flatnonzero(linked), order[at[linked]] if len(order) else np.empty(0, dtype=np.int64)
        lost = ~linked & (_array(source.what) == GEMM)
    else:
        source, times, lane = operators, _times(operators), _array(operators.lane)
        order = np.lexsort((-times[:, 1], times[:, 0], lane)) if len(times) else np.empty(0, dtype=np.int64)
        outer, until, on = [], -np.inf, -1
        for index in order.tolist():  # an operator calls others: the outermost stands for them
            if lane[index] != on or times[index, 1] > until:
                outer.append(index)
                on, until = int(lane[index]), float(times[index, 1])
        row = operator = np.asarray(outer, dtype=np.int64)
        lost = np.zeros(len(operators), dtype=bool)
    took_s = np.asarray(source.took_us, dtype=np.float64) * _US
    what = _array(operators.what)[operator]
    known = np.array([shapes[one] is not None for one in what.tolist()], dtype=bool)
    full = [shape for one in what[known].tolist() if (shape := shapes[one]) is not None]
    gemms = _Gemms(
        shape=full, row=row[known], operator=operator[known], took_s=took_s[row[known]], source=source
    )  # fmt: skip
    return gemms, (int(lost.sum()), float(took_s[lost].sum()))


class _Places:
    """Which step an interval belongs to; -1 for none."""

    def __init__(self, recorded: Recorded, begin: Floats, end: Floats, by_time: bool) -> None:
        self._begin, self._end, self._by_time = begin, end, by_time
        launched = _array(recorded.launched)
        order = np.argsort(launched, kind="stable")
        self._launched, self._launched_at = launched[order], np.asarray(recorded.launched_at_us, np.float64)[order]

    def of(self, columns: Columns) -> Ints:
        """The step of each interval."""
        at = np.asarray(columns.at_us, dtype=np.float64)
        if not len(self._begin) or not len(at):
            return np.full(len(at), -1, dtype=np.int64)
        if not self._by_time and len(self._launched):
            correlation = _array(columns.correlation)
            index = np.minimum(np.searchsorted(self._launched, correlation), len(self._launched) - 1)
            met = (self._launched[index] == correlation) & (correlation >= 0)
            at = np.where(met, self._launched_at[index], -np.inf)
        step = np.searchsorted(self._begin, at, side="right") - 1
        inside = (step >= 0) & (at <= self._end[np.maximum(step, 0)])
        return np.where(inside, step, -1).astype(np.int64)


def _steps(
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
    busy = _union(np.concatenate((calls, compute)))
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


def _by_step(
    recorded: Recorded, begin: Floats, end: Floats, names: list[str], step: Ints, calls: Floats, exposed: Floats,
    payloads: list[int | None], gemms: _Gemms, place: _Places, vocab: int,
) -> tuple[Step, ...]:  # fmt: skip
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
        took_s[at] += (calls[index, 1] - calls[index, 0]) * _US
        open_s[at] += exposed[index]
    rows: list[Counter[int]] = [Counter() for _ in names]
    spent: list[Counter[int]] = [Counter() for _ in names]  # ns, by rows
    ranks = _ranks(recorded) or 1
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
                tokens=tokens, took_s=float(end[at] - begin[at]) * _US, all_reduces=kinds[at].pop("all_reduce", 0),
                others=tuple(sorted(kinds[at].items())), payload_bytes=usual,
                odd_payloads=sum(n for size, n in sizes[at].items() if size is not None and size != usual),
                collective_s=float(took_s[at]), exposed_s=float(open_s[at]),
                projection_s=spent[at][tokens] / 1e9 if tokens is not None else 0.0,
            )
        )  # fmt: skip
    return tuple(steps)


def _collective_totals(
    recorded: Recorded, calls: Floats, exposed: Floats, payloads: list[int | None]
) -> tuple[CollectiveTotal, ...]:
    groups: dict[tuple[str, str, str, int | None, int | None], list[int]] = {}
    for index, what in enumerate(recorded.collectives.what):
        call = recorded.calls[what]
        ranks = call.ranks or call.named.ranks or recorded.ranks
        element = call.element or call.named.element
        groups.setdefault((call.named.kind, call.named.by, element, ranks, payloads[index]), []).append(index)
    totals = []
    for (kind, by, element, ranks, payload), members in groups.items():
        took_s = (calls[members, 1] - calls[members, 0]) * _US
        totals.append(
            CollectiveTotal(
                kind=kind, by=by, element=element, ranks=ranks, payload_bytes=payload, calls=len(members),
                total_s=float(took_s.sum()), median_s=float(np.median(took_s)),
                exposed_s=float(exposed[members].sum()),
            )
        )  # fmt: skip
    return tuple(sorted(totals, key=lambda one: -one.total_s))


def _gemm_totals(gemms: _Gemms) -> tuple[GemmTotal, ...]:
    seconds: Counter[tuple[int, int, int, str]] = Counter()
    seen: dict[tuple[int, int, int, str], set[int]] = {}
    for shape, took_s, operator in zip(gemms.shape, gemms.took_s.tolist(), gemms.operator.tolist(), strict=True):
        seconds[shape] += took_s
        seen.setdefault(shape, set()).add(operator)
    return tuple(
        GemmTotal(rows=m, columns=n, depth=k, element=element, calls=len(seen[m, n, k, element]), total_s=took_s)
        for (m, n, k, element), took_s in sorted(seconds.items(), key=lambda one: -one[1])
    )


def _ranks(recorded: Recorded) -> int | None:
    """The group of most collectives, else the world of the header."""
    sizes = Counter(
        call.ranks or call.named.ranks
        for call in (recorded.calls[what] for what in recorded.collectives.what)
        if call.ranks or call.named.ranks
    )
    return max(sizes, key=lambda one: sizes[one]) if sizes else recorded.ranks
