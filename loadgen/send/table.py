"""The run's two tables while they grow: one column an array, so that millions of rows cost bytes and not objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.records import columns
from analysis.schema import EVENT_COLUMNS, REQUEST_COLUMNS
from loadgen.common.redact import redacted
from loadgen.send.active import ActiveRequest
from loadgen.send.api import Events, RecordSink, sampled
from loadgen.send.openai import ParsedResponse

__all__ = ["Tables"]

_EMPTY: Final = ParsedResponse()
_EVENT_UNIT_NS: Final = 1000  # no read is stamped more exactly


class Tables:
    """Takes finished requests, hands each row to the sink, and becomes data frames in the end."""

    def __init__(
        self, sink: RecordSink | None, *, worker: int = 0, secrets: Iterable[str] = (), keep: Events = "all"
    ) -> None:
        """`secrets` are kept out of what servers say; `keep` says whose token events are recorded."""
        self._sink = sink
        self._secrets = tuple(secrets)
        self._worker = worker
        self._keep = keep
        self._columns: list[Any] = [[] if dtype == "str" else array("q") for dtype in REQUEST_COLUMNS.values()]
        self._event_counts = array("q")
        self._event_at_ns = array("q")
        self._event_tokens = array("q")

    def add(self, active: ActiveRequest, outcome: str, error: str, answer: ParsedResponse | None) -> None:
        """One finished request."""
        parsed = answer or _EMPTY
        row: dict[str, int | str] = {
            "index": active.index,
            "scheduled_ns": active.scheduled_ns,
            "released_ns": active.released_ns,
            "admitted_ns": active.admitted_ns,
            "sent_ns": active.sent_ns,
            "connect_ns": active.connect_ns,
            "headers_ns": active.headers_ns,
            "first_token_ns": parsed.first_token_ns,
            "last_token_ns": parsed.last_token_ns,
            "ended_ns": active.ended_ns,
            "outcome": outcome,
            "http_status": active.status,
            "finish_reason": parsed.finish_reason,
            "error": redacted(error, self._secrets),
            "certain_miss": active.certain_miss,
            "input_tokens_planned": active.input_tokens_planned,
            "output_tokens_planned": active.output_tokens_planned,
            "prefix_tokens_planned": active.prefix_tokens_planned,
            "input_tokens": parsed.input_tokens,
            "output_tokens": parsed.output_tokens,
            "output_tokens_source": parsed.output_tokens_source,
            "usage_tokens": parsed.usage_tokens,
            "cached_tokens": parsed.cached_tokens,
            "server_queue_ns": parsed.server_queue_ns,
            "server_prefill_ns": parsed.server_prefill_ns,
            "server_decode_ns": parsed.server_decode_ns,
            "first_read_events": parsed.first_read_events,
            "first_read_tokens": parsed.first_read_tokens,
            "token_events": len(parsed.events),
            "token_reads": parsed.token_reads,
            "read": "batched" if active.batched else "prompt",
            "target": active.target,
            "worker": self._worker,
        }
        for column, value in zip(self._columns, row.values(), strict=True):
            column.append(value)
        # later events of a batched request have no stamps of their own
        kept = not active.batched and (
            self._keep in ("all", "prompt") or (self._keep == "sample" and sampled(active.index))
        )
        events = parsed.events if kept else []
        self._event_counts.append(len(events))
        if events:
            at_ns, tokens = zip(*events, strict=True)
            self._event_at_ns.extend(at_ns)
            self._event_tokens.extend(tokens)
        if self._sink is not None:
            self._sink.add(tuple(row.values()), events)

    def requests(self) -> pd.DataFrame:
        """The request table in schedule order."""
        known = {
            name: column if isinstance(column, list) else np.frombuffer(column, dtype=np.int64)
            for name, column in zip(REQUEST_COLUMNS, self._columns, strict=True)
        }
        frame = columns(len(self._event_counts), known)
        return frame.sort_values("index", kind="stable", ignore_index=True)

    def events(self) -> pd.DataFrame:
        """The event table, by request in schedule order and by time within it, whole microseconds from the first."""
        counts = np.frombuffer(self._event_counts, dtype=np.int64)
        index = np.repeat(np.frombuffer(self._columns[0], dtype=np.int64), counts)
        at_ns = np.frombuffer(self._event_at_ns, dtype=np.int64)
        starts = (np.cumsum(counts) - counts)[counts > 0]
        first_ns = np.repeat(at_ns[starts], counts[counts > 0])
        values = {
            "index": index,
            "at_ns": at_ns - (at_ns - first_ns) % _EVENT_UNIT_NS,
            "tokens": np.frombuffer(self._event_tokens, dtype=np.int64),
        }
        order = np.argsort(index, kind="stable")
        return pd.DataFrame({name: values[name][order].astype(dtype) for name, dtype in EVENT_COLUMNS.items()})
