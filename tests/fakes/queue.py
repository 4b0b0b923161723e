"""What an ideal client records of the queue with one server, from Lindley's recursion."""

from __future__ import annotations

import pandas as pd

from analysis.queueing import fcfs
from analysis.records import Ints, columns


def fcfs_requests(arrivals_ns: Ints, services_ns: Ints) -> pd.DataFrame:
    """What an ideal client would record of that queue: one token a request, headers when service starts."""
    start, finish = fcfs(arrivals_ns, services_ns)
    done = dict.fromkeys(("first_token_ns", "last_token_ns", "ended_ns"), finish)
    made = dict.fromkeys(("scheduled_ns", "released_ns", "sent_ns"), arrivals_ns)
    once = dict.fromkeys(("output_tokens", "output_tokens_planned", "token_events", "token_reads"), 1)
    said: dict[str, int | str] = {
        "outcome": "ok",
        "http_status": 200,
        "finish_reason": "length",
        "output_tokens_source": "usage",
    }
    return columns(len(finish), {**made, "headers_ns": start, **done, **once, **said})
