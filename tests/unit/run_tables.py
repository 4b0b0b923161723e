"""Request tables and facts of runs that went well, for tests to spoil."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from analysis.records import columns
from analysis.verdict import RunFacts, SenderFacts, TargetFacts

NS = 1_000_000_000


def served(n: int = 1400, *, rate: float = 10.0, residence_s: float = 0.5, **spoiled: Any) -> pd.DataFrame:
    """`n` requests at even gaps, 11 tokens at 10 ms each, gone after `residence_s`; `spoiled` replaces columns."""
    at = (np.arange(n) * (NS / rate)).astype(np.int64)
    last = at + int(residence_s * NS)
    known: dict[str, Any] = {
        "scheduled_ns": at,
        "released_ns": at,
        "sent_ns": at + 100_000,
        "headers_ns": last - 100_000_000,
        "first_token_ns": last - 100_000_000,
        "last_token_ns": last,
        "ended_ns": last,
        "outcome": "ok",
        "http_status": 200,
        "finish_reason": "length",
        "input_tokens_planned": 1000,
        "input_tokens": 1000,
        "output_tokens_planned": 11,
        "output_tokens": 11,
        "output_tokens_source": "usage",
        "token_events": 11,
        "token_reads": 11,
    }
    return columns(n, known | spoiled)


def facts(n: int = 1400, *, rate: float = 10.0, **given: Any) -> RunFacts:
    """The facts of such a run, `given` those of sender and target: 20 s of warm-up and a window of 120 s by default."""
    about_target = {field.name for field in fields(TargetFacts)}
    stop_ns = int(n * NS / rate)
    known: dict[str, Any] = {
        "rate": rate,
        "warmup_ns": 20 * NS,
        "window_ns": stop_ns - 20 * NS,
        "stop_ns": stop_ns,
        "due": n,
        "sent": n,
        "cohort_due": n - int(20 * rate),
    }
    known |= {name: value for name, value in given.items() if name not in about_target}
    target = TargetFacts(**{name: value for name, value in given.items() if name in about_target})
    return RunFacts(sender=SenderFacts(**known), target=target)


def some(n: int, value: Any, other: Any, *, first: int = 0, count: int = 1) -> list[Any]:
    """A column of `other` with `value` in `count` rows from row `first` on."""
    return [value if first <= i < first + count else other for i in range(n)]
