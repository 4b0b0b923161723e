"""The definition of the request and event tables: their columns, types, units and order, and their versions.

One row is one request of one run. Instants are int64 nanoseconds since the run's start t0 on the monotonic clock,
and -1 means "did not happen"; counts are -1 where they are unknown. Stamps and outcomes: method, sections 2 and 3.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ABSENT",
    "ANSWER_VERSION",
    "DERIVED",
    "ERRORS",
    "EVENTS_VERSION",
    "EVENT_COLUMNS",
    "OUTCOMES",
    "REQUEST_COLUMNS",
    "SCHEMA_VERSION",
    "TARGET_COLUMNS",
]

SCHEMA_VERSION: Final = 2
EVENTS_VERSION: Final = 2  # of events.parquet; 1 had a row an event
ANSWER_VERSION: Final = 2  # of capacity.json; 1 had no variants
ABSENT: Final = -1

OUTCOMES: Final = (
    "ok",
    "rejected",  # 429, 503
    "http_error",  # any other 5xx
    "workload_error",  # 400, 401, 403, 404, 413, 422
    "connect_error",
    "timeout",
    "connection_lost",
    "stream_error",  # error event, or finish_reason abort/error/unknown, even with [DONE]
    "truncated",  # no proper end
    "bad_response",
    "short_output",  # fewer tokens than were forced
    "censored",  # cancelled by us when the run's load stopped
    "aborted",  # ours, outside the cohort
)


# column -> numpy dtype; "str" is a Python string, never null
REQUEST_COLUMNS: Final[dict[str, str]] = {
    "index": "int64",  # position in the schedule
    "scheduled_ns": "int64",
    "released_ns": "int64",  # handed over by the dispatcher
    "admitted_ns": "int64",  # got a concurrency slot; only with a cap
    "sent_ns": "int64",  # request bytes handed to the socket
    "connect_ns": "int64",  # duration of TCP (+ TLS) connect this request waited for; 0 on a kept-alive connection
    "headers_ns": "int64",
    "first_token_ns": "int64",
    "last_token_ns": "int64",
    "ended_ns": "int64",  # stream over, failed or cancelled
    "outcome": "str",
    "http_status": "int32",
    "finish_reason": "str",
    "error": "str",  # bounded to 200 characters, control characters escaped
    "certain_miss": "str",  # bound already broken when we cancelled it or it timed out: ttft, tpot, e2e or ""
    "input_tokens_planned": "int64",
    "output_tokens_planned": "int64",
    "prefix_tokens_planned": "int64",  # of the input, shared with the request's prefix group
    "input_tokens": "int64",  # as the server reported
    "output_tokens": "int64",  # by the source below; usage that the answer contradicts is not used
    "output_tokens_source": "str",  # usage, token_ids, limit, events or ""
    "usage_tokens": "int64",  # output tokens as usage reported, used or not
    "cached_tokens": "int64",
    "server_queue_ns": "int64",  # the server's own times of this request, where its answer tells them: from its
    "server_prefill_ns": "int64",  # arrival to its first step, from there to the first token,
    "server_decode_ns": "int64",  # and from the first token to the last
    "first_read_events": "int64",  # token events in the read that brought the first one
    "first_read_tokens": "int64",  # k of TPOT: as many, unless token ids or continuous usage say more
    "token_events": "int64",
    "token_reads": "int64",  # distinct socket reads that carried token events
    "read": "str",  # prompt, or batched: after the first token once a period, so that later events have no stamps of
    # their own, and token_reads is -1
    "target": "int32",  # which of the target's URLs
    "worker": "int32",
}

# computed from the above by records.derive(); seconds, NaN where undefined
DERIVED: Final[dict[str, str]] = {
    "client_queue_s": "float64",  # sent - scheduled
    "send_lag_s": "float64",  # client queue - slot wait - connect: the client's own lateness
    "ttft_s": "float64",  # first_token - scheduled
    "e2e_s": "float64",  # last_token - scheduled
    "ttft_from_sent_s": "float64",
    "e2e_from_sent_s": "float64",
    "tpot_s": "float64",
}

# a second table, one row per token event: gaps between rows of one request are the ITL. A request's first event is at
# its first_token_ns; the others of a live run are whole microseconds later
EVENT_COLUMNS: Final[dict[str, str]] = {
    "index": "int64",
    "at_ns": "int64",
    "tokens": "int32",  # -1 unknown
}

# a third table, metrics of the target and its machine during the run: one row a sample as its source wrote it
TARGET_COLUMNS: Final[dict[str, str]] = {
    "at_ns": "int64",
    "source": "str",  # the target's URL, the NAME of a --metrics-url, client or nvidia-smi
    "metric": "str",
    "labels": "str",  # a JSON object with sorted keys; empty for none
    "value": "float64",
}

# outcomes that count towards the error share: everything but ok, what we cancelled, and what lies outside the cohort
ERRORS: Final = tuple(o for o in OUTCOMES if o not in {"ok", "censored", "aborted"})
