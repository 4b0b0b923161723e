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
    "EARLY_FAIL_SHARE",
    "EXPLORE",
    "INDIFFERENCE",
    "INPUT",
    "MAX_ERROR_RATE",
    "MAX_TIMEOUT_S",
    "MIN_MISSES",
    "MIN_REQUESTS",
    "MIN_TIMEOUT_S",
    "OUTPUT",
    "PLACEHOLDER_SLO",
    "PROFILE",
    "READY_TIMEOUT_S",
    "RUNS",
    "SEED",
    "SENTINEL_REQUESTS",
    "TARGET",
    "TOKEN_IDS",
    "UNBOUNDED_TIMEOUT_S",
    "WARMUP_AGES",
    "WARMUP_MAX_S",
    "WARMUP_REQUESTS",
    "WARMUP_S",
    "WARMUP_SEEN",
    "WIDTH",
    "WINDOW_S",
]

TARGET: Final = "http://127.0.0.1:8000"
PROFILE: Final = "llama8b-80gb"  # of an emulated target that names none
WINDOW_S: Final = 120.0
WARMUP_S: Final = 20.0
ATTAIN: Final = "95%"
MAX_ERROR_RATE: Final = "1%"
RUNS: Final = 10
INDIFFERENCE: Final = "3%"  # of a comparison (method, section 8)
EXPLORE: Final = 1
SENTINEL_REQUESTS: Final = 200
WIDTH: Final = "5%"
MIN_REQUESTS: Final = 200
MIN_MISSES: Final = 10  # a cohort that may pass allows so many misses
INPUT: Final = "1024"
OUTPUT: Final = "128"
TOKEN_IDS: Final = "1000..4000"  # noqa: S105 - a range of vocabulary ids, no secret
SEED: Final = 1
PLACEHOLDER_SLO: Final = ("ttft<=800ms", "tpot<=50ms")
MIN_TIMEOUT_S: Final = 60.0
MAX_TIMEOUT_S: Final = 3600.0
UNBOUNDED_TIMEOUT_S: Final = 600.0  # where the SLO bounds no answer's length
SCRAPE_INTERVAL_S: Final = 1.0
READY_TIMEOUT_S: Final = 60.0
EARLY_FAIL_SHARE: Final = 0.1  # of the window must have passed before a run may fail early
WARMUP_REQUESTS: Final = 32  # requests that warm the target once, before the first run
WARMUP_SEEN: Final = 200  # of them where they also fix the warm-up of every run
WARMUP_AGES: Final = 3  # mean ages of what is in service that the warm-up lasts
CLOSED_WARMUP_RATE: Final = 4.0  # requests/s, before a closed loop
WARMUP_MAX_S: Final = 600.0  # and the longest that may take
ANSWER_TOKEN_BYTES: Final = 4 * 1024  # of an answer for each planned output token: 20 logprobs a token take half of it
ANSWER_BASE_BYTES: Final = 4 * 1024 * 1024  # and for the rest: a prompt given back, comments, usage
ANSWER_HEADERS_BYTES: Final = 64 * 1024
ANSWERS_TOGETHER_BYTES: Final = 1024 * 1024 * 1024  # of all answers, what is kept and not read yet
