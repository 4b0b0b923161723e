"""The single-server queue in virtual time: Lindley's recursion over all arrivals at once, int64 exact."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from analysis.queueing import fcfs
from loadgen.emulator.engine.trace import Int64s, Trace

__all__ = ["fcfs_trace"]


def fcfs_trace(
    at_ns: Int64s, service_ns: Int64s, output_tokens: Int64s, *, timeout_ns: int, cap: int | None = None
) -> Trace:
    """The trace of requests that arrive at `at_ns`, sorted. All columns of shape (n,).

    A client that gives up takes no work out of the queue (`emulator.fcfs`), so nothing but the gateway's `cap` feeds
    back on the arrivals. Token j of O is due at start + service·j // O.
    """
    if cap is None:
        sent_ns, reached = at_ns, np.ones(len(at_ns), dtype=np.bool_)
        start_ns = fcfs(at_ns, service_ns)[0]
    else:
        sent_ns, start_ns = _gated(at_ns, service_ns, timeout_ns, cap)
        reached = sent_ns >= 0

    def token_ns(requests: Int64s, numbers: Int64s) -> Int64s:
        due: Int64s = start_ns[requests] + service_ns[requests] * numbers // output_tokens[requests]
        return due

    return Trace(
        admitted_ns=np.full(len(at_ns), -1) if cap is None else sent_ns,
        sent_ns=sent_ns,
        tokens=np.where(reached, output_tokens, 0),
        complete=reached,
        refused=np.zeros(len(at_ns), dtype=np.bool_),
        cached_tokens=np.zeros(len(at_ns), dtype=np.int64),
        token_ns=token_ns,
    )


def _gated(at_ns: Int64s, service_ns: Int64s, timeout_ns: int, cap: int) -> tuple[Int64s, Int64s]:
    """(sent, start) where at most `cap` requests are in flight and the others wait at the client; sent -1: never."""
    sent_ns, start_ns = np.full(len(at_ns), -1), np.zeros(len(at_ns), dtype=np.int64)
    ends: list[int] = []  # of those in flight, a heap
    free_ns = 0
    for request, (arrival_ns, work_ns) in enumerate(zip(at_ns.tolist(), service_ns.tolist(), strict=True)):
        slot_ns = heappop(ends) if len(ends) == cap else 0
        leaves_ns = max(arrival_ns, slot_ns)
        if leaves_ns >= arrival_ns + timeout_ns:
            heappush(ends, slot_ns)
            continue
        sent_ns[request], start_ns[request] = leaves_ns, max(leaves_ns, free_ns)
        free_ns = max(leaves_ns, free_ns) + work_ns
        heappush(ends, min(free_ns, arrival_ns + timeout_ns))
    return sent_ns, start_ns
