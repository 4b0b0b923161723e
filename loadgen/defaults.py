"""Every default of an experiment, in one place and printed in every plan (method, section 13)."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANSWERS_TOGETHER_BYTES",
    "ANSWER_BASE_BYTES",
    "ANSWER_HEADERS_BYTES",
    "ANSWER_TOKEN_BYTES",
    "ATTAIN",
    "CLOSED_WARMUP_RATE",
    "CONFIRM_WINDOW_FACTOR",
    "EARLY_FAIL_SHARE",
    "INPUT",
    "MAX_ERROR_RATE",
    "MIN_REQUESTS",
    "MIN_TIMEOUT_S",
    "OUTPUT",
    "PLACEHOLDER_SLO",
    "READY_TIMEOUT_S",
    "RUNS",
    "SEED",
    "SENTINEL_EVERY",
    "TARGET",
    "TOKEN_IDS",
    "WARMUP_MAX_S",
    "WARMUP_REQUESTS",
    "WARMUP_S",
    "WIDTH",
    "WINDOW_S",
]

TARGET: Final = "http://127.0.0.1:8000"
WINDOW_S: Final = 120.0
WARMUP_S: Final = 20.0
ATTAIN: Final = "95%"
MAX_ERROR_RATE: Final = "1%"
RUNS: Final = 5
CONFIRM_WINDOW_FACTOR: Final = 2
WIDTH: Final = "5%"
MIN_REQUESTS: Final = 200
INPUT: Final = "1024"
OUTPUT: Final = "128"
TOKEN_IDS: Final = "1000..4000"  # noqa: S105 - a range of vocabulary ids, no secret
SEED: Final = 1
SENTINEL_EVERY: Final = 10
PLACEHOLDER_SLO: Final = ("ttft<=800ms", "tpot<=50ms")
MIN_TIMEOUT_S: Final = 60.0
SCRAPE_INTERVAL_S: Final = 1.0
READY_TIMEOUT_S: Final = 60.0
EARLY_FAIL_SHARE: Final = 0.1  # of the window must have passed before a run may fail early
WARMUP_REQUESTS: Final = 32  # requests that warm the target once, before the first run
CLOSED_WARMUP_RATE: Final = 4.0  # requests/s, before a closed loop
WARMUP_MAX_S: Final = 60.0  # and the longest that may take
ANSWER_TOKEN_BYTES: Final = 4 * 1024  # of an answer for each planned output token: 20 logprobs a token take half of it
ANSWER_BASE_BYTES: Final = 4 * 1024 * 1024  # and for the rest: a prompt given back, comments, usage
ANSWER_HEADERS_BYTES: Final = 64 * 1024
ANSWERS_TOGETHER_BYTES: Final = 1024 * 1024 * 1024  # of all answers, what is kept and not read yet
