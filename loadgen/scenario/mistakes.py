"""What users of other load generators type, and what it is called here."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["meant", "remedy"]

_CONCURRENCY: Final = (
    "loadgen offers an arrival rate (--rate); a fixed number of requests in flight is `loadgen run --closed N`, "
    "a gateway's limit is --max-concurrency N"
)
_WINDOW: Final = "the measured time of a run is --window, such as --window 60s"
_SERVER: Final = "the server is given by --target http://HOST:PORT"
_MEANT: Final = {
    "concurrency": _CONCURRENCY,
    "max_concurrent": _CONCURRENCY,
    "num_users": _CONCURRENCY,
    "users": _CONCURRENCY,
    "duration": _WINDOW,
    "time": _WINDOW,
    "num_prompts": "a run measures a time (--window) or so many requests (--cohort N)",
    "num_requests": "a run measures a time (--window) or so many requests (--cohort N)",
    "requests": "a run measures a time (--window) or so many requests (--cohort N)",
    "request_rate": "the arrival rate is --rate, such as --rate 6 or --rate 2..18",
    "qps": "the arrival rate is --rate, such as --rate 6 or --rate 2..18",
    "rps": "the arrival rate is --rate, such as --rate 6 or --rate 2..18",
    "url": _SERVER,
    "base_url": _SERVER,
    "host": _SERVER,
    "api_key": "a key is named, never typed: --api-key-env NAME or --api-key-file FILE",
    "input_len": "input and output tokens are --input and --output",
    "output_len": "input and output tokens are --input and --output",
    "goodput": "bounds are --slo, such as --slo ttft:800ms",
    "percentile": "the share of requests that must meet the SLO is --attain, such as --attain 95%",
}
_OPTION: Final = re.compile(r"No such option:? '?--([a-z][a-z-]*)", re.IGNORECASE)
_EXTRA: Final = re.compile(r"unexpected extra argument\S* \((\S+)")


def meant(key: str) -> str:
    """What another tool's option or key is here, in words; empty if that is not known."""
    return _MEANT.get(key.replace("-", "_"), "")


def remedy(complaint: str) -> str:
    """A command-line parser's complaint with what to type instead; empty where nothing better is known."""
    if (option := _OPTION.search(complaint)) and (said := meant(option[1])):
        return f"there is no option --{option[1]}: {said}"
    if extra := _EXTRA.search(complaint):
        if "://" in extra[1]:
            return f"{extra[1].rstrip(')')}: {_SERVER}"
        if extra[1].startswith("="):
            return f"{extra[1].rstrip(')')}: the shell takes < for itself; write --slo ttft:800ms, or quote it"
    return ""
