"""Steps, collectives and GEMMs of one rank, from what its trace recorded.

Definitions. The *plain sum* of collectives adds up their durations. Their *exposed* part is what neither compute (on
any other stream or thread of the rank) nor an earlier collective covers: it is on the critical path. Both hold the wait
for the slowest rank. A kernel belongs to the operator whose `External id` it carries, and to the step on whose device
annotation it begins, or within whose host annotation it was launched.
"""

from __future__ import annotations

from math import prod

import numpy as np

from analysis.records import Floats
from analysis.tp.gemms import gemm_totals, gemms_of
from analysis.tp.intervals import US, array, exposed_s, intervals_us
from analysis.tp.kineto import ON_THREAD, Recorded
from analysis.tp.names import ELEMENT_BYTES
from analysis.tp.steps import Places, by_step, group_ranks, recognise
from analysis.tp.types import CollectiveTotal, GemmTotal, Profile, Step

__all__ = ["CollectiveTotal", "GemmTotal", "Profile", "Step", "summarise"]


def summarise(recorded: Recorded, *, vocab: int = 0) -> Profile:
    """Put the columns together. GEMMs onto a vocabulary of this size are no projections. O(n log n) in kernels."""
    on_device = bool((array(recorded.compute.what) != ON_THREAD).any()) or any(
        call.named.by != "gloo" for call in recorded.calls
    )
    compute = intervals_us(recorded.compute, array(recorded.compute.what) == ON_THREAD, flip=on_device)
    calls = intervals_us(recorded.collectives)
    exposed = exposed_s(calls, compute)
    payloads = _payloads(recorded)
    gemms, unshaped = gemms_of(recorded, on_device)
    begin, end, names, steps_by, on_clock = recognise(recorded, calls, compute, on_device)
    place = Places(recorded, begin, end, on_clock or not on_device)
    steps = by_step(
        recorded, begin, end, names, place.of(recorded.collectives), calls, exposed, payloads, gemms, place, vocab
    )
    return Profile(
        rank=recorded.rank, ranks=group_ranks(recorded), on_device=on_device, events=recorded.events, steps=steps,
        steps_by=steps_by, collectives=_collective_totals(recorded, calls, exposed, payloads),
        gemms=gemm_totals(gemms), unshaped_gemms=unshaped[0], unshaped_gemm_s=unshaped[1],
    )  # fmt: skip


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
        took_s = (calls[members, 1] - calls[members, 0]) * US
        totals.append(
            CollectiveTotal(
                kind=kind, by=by, element=element, ranks=ranks, payload_bytes=payload, calls=len(members),
                total_s=float(took_s.sum()), median_s=float(np.median(took_s)),
                exposed_s=float(exposed[members].sum()),
            )
        )  # fmt: skip
    return tuple(sorted(totals, key=lambda one: -one.total_s))
