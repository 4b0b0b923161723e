"""The command line's options, each written once: a command names those it takes and receives what the user set.

An option is a scenario key with its help; `takes("target", "rate", …)` gives a command those options as parameters, so
that the same word means the same thing everywhere and a default stands in one place (the scenario).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import orjson
import typer

from loadgen.common.errors import ScenarioError

__all__ = ["CHECK", "EXPERIMENT", "REPLAY", "SEARCH", "takes"]

_TARGET, _LOAD, _TRACE, _REQUESTS, _PROMISE, _EVIDENCE, _COST, _KEPT = (
    "Target",
    "Load",
    "Traces",
    "Requests",
    "Promise",
    "Evidence",
    "Budget",
    "Results",
)


def _text(panel: str, text: str, metavar: str = "TEXT") -> Any:
    return Annotated[str | None, typer.Option(help=text, metavar=metavar, rich_help_panel=panel, show_default=False)]


def _texts(panel: str, text: str, metavar: str = "TEXT") -> Any:
    return Annotated[
        list[str] | None, typer.Option(help=text, metavar=metavar, rich_help_panel=panel, show_default=False)
    ]


def _int(panel: str, text: str) -> Any:
    return Annotated[int | None, typer.Option(help=text, metavar="N", rich_help_panel=panel, show_default=False)]


def _float(panel: str, text: str) -> Any:
    return Annotated[float | None, typer.Option(help=text, metavar="X", rich_help_panel=panel, show_default=False)]


_DURATION, _SHARE = "DURATION", "SHARE"

_OPTIONS: dict[str, Any] = {
    "target": _texts(
        _TARGET,
        "Base URL or unix:/path.sock (repeat it for replicas behind one target), or emulator[:PROFILE], "
        "virtual[:PROFILE]. "
        "Default http://127.0.0.1:8000.",
        "URL",
    ),
    "model": _text(_TARGET, "Model name; default: the only one that /v1/models lists. Needed where there is no list."),
    "api_key_env": _text(_TARGET, "Environment variable that holds the API key.", "NAME"),
    "api_key_file": _text(_TARGET, "File that holds the API key.", "FILE"),
    "header": _texts(
        _TARGET,
        "Further request header, or 'Name: env:VARIABLE'; repeatable. Values are secrets: stored nowhere.",
        "'NAME: VALUE'",
    ),
    "ca_file": _text(_TARGET, "CA bundle for https.", "FILE"),
    "cert_file": _text(_TARGET, "Client certificate for https.", "FILE"),
    "key_file": _text(_TARGET, "Its private key.", "FILE"),
    "insecure": Annotated[
        bool | None,
        typer.Option("--insecure", help="Do not verify the server's certificate.", rich_help_panel=_TARGET),
    ],
    "ready_timeout": _text(_TARGET, "How long to wait for the target to be ready (default 60s).", _DURATION),
    "cache": _text(
        _TARGET,
        "Between runs: salt (default), reset (POST /reset_prefix_cache), restart, command or keep.",
        "POLICY",
    ),
    "restart_command": _text(_TARGET, "With --cache restart: restarts the server and returns; no shell.", "COMMAND"),
    "between_command": _text(_TARGET, "With --cache command: run before every run; no shell.", "COMMAND"),
    "note": _texts(_TARGET, "A fact about the target for the record; repeatable.", "KEY=VALUE"),
    "scrape_interval": _text(
        _TARGET, "How often the target's metrics are read while load is on (default 1s); off reads none.", _DURATION
    ),
    "metrics_url": _texts(
        _TARGET,
        "Further metrics page, such as gpu=http://HOST:9400/metrics (DCGM, node exporter); repeatable.",
        "NAME=URL",
    ),
    "rate": _text(_LOAD, "2..18 searches that range; 2,4,6 or 2..18:2 measures just those rates (requests/s).", "RATE"),
    "arrivals": _text(
        _LOAD, "poisson (default), gamma, constant, trace:FILE, fit-gamma:FILE or fit-mmpp:FILE.", "PROCESS"
    ),
    "burstiness": _float(_LOAD, "Shape of gamma arrivals: below 1 is burstier than Poisson."),
    "cv": _float(_LOAD, "Coefficient of variation of gamma arrivals, instead of --burstiness."),
    "max_concurrency": _int(_LOAD, "Model a gateway that lets so many requests through; the wait is counted."),
    "closed": _int(_LOAD, "Fixed-concurrency baseline with N requests in flight instead of an arrival rate."),
    "transport": _text(_LOAD, "wire (default) or httpx (proxies, slower).", "NAME"),
    "prewarm": _int(_LOAD, "Connections opened to each URL just before a run (default 0)."),
    "replicates": _text(_TRACE, "Of a trace: blocks (default: disjoint stretches) or repeats (one window).", "HOW"),
    "rate_method": _text(_TRACE, "How a trace reaches a rate: time (default), thin or superpose.", "HOW"),
    "trace_window": _text(_TRACE, "Use only this part of the trace, such as 10m..40m.", "A..B"),
    "speed": _float(_TRACE, "Replay so many times faster than recorded."),
    "jitter_within_tick": Annotated[
        bool | None,
        typer.Option("--jitter-within-tick", help="Spread the ties of a coarse clock.", rich_help_panel=_TRACE),
    ],
    "sessions": _text(_TRACE, "timestamps (default) or dependent: a turn waits for the previous answer.", "HOW"),
    "share_content": Annotated[
        bool | None,
        typer.Option("--share-content", help="The same block, the same tokens in every run.", rich_help_panel=_TRACE),
    ],
    "format": _text(_TRACE, "Format of the trace, where its content does not tell.", "NAME"),
    "map": _text(_TRACE, "Columns of any table: timestamp=…,input=…,output=….", "NAME=COLUMN,…"),
    "unit": _text(_TRACE, "Unit of its timestamps, with --map: iso, s, ms, us or ns.", "UNIT"),
    "block_tokens": _int(_TRACE, "Tokens a block id stands for, instead of the format's own."),
    "on_invalid": _text(_TRACE, "Rows that cannot be used: error (default), drop or clip.", "POLICY"),
    "max_model_len": _int(_TRACE, "Rows with more tokens in all cannot be used."),
    "endpoint": _text(_REQUESTS, "completions (default) or chat.", "NAME"),
    "prompt": _text(_REQUESTS, "ids (exact lengths, no tokenizer; default for completions) or text.", "KIND"),
    "input": _text(_REQUESTS, "Input tokens: 1024, uniform:a..b, normal:mean,sd or lognormal:median,sigma.", "LENGTH"),
    "output": _text(_REQUESTS, "Output tokens, likewise (default 128).", "LENGTH"),
    "lengths": _text(_REQUESTS, "CSV or JSONL of input, output[, prefix], or trace:FILE: drawn jointly.", "FILE"),
    "shared_prefix": _int(_REQUESTS, "Tokens of the input shared by all requests of a prefix group."),
    "prefix_groups": _int(_REQUESTS, "Number of prefix groups (default 1)."),
    "stop": _text(_REQUESTS, "forced (default: exactly the planned output) or natural.", "HOW"),
    "temperature": _float(_REQUESTS, "Sampling temperature (default 0)."),
    "token_ids": _text(_REQUESTS, "Range the prompt's token ids come from (default 1000..4000).", "A..B"),
    "extra": _texts(_REQUESTS, "Further member of each request's JSON, e.g. priority=1; repeatable.", "KEY=JSON"),
    "slo": _texts(
        _PROMISE,
        "Bound on ttft, tpot, e2e or client_queue; repeat it for a joint SLO. < needs quotes: 'ttft<=800ms'.",
        "ttft:800ms",
    ),
    "slo_clock": _text(_PROMISE, "scheduled (default: what the user waits) or sent.", "CLOCK"),
    "attain": _text(_PROMISE, "Share of requests that must meet the SLO (default 95%).", _SHARE),
    "max_error_rate": _text(_PROMISE, "Largest share of errors (default 1%).", _SHARE),
    "min_requests": _int(_PROMISE, "Smallest cohort that may pass (default 200, or 10/(1 - attain) if more)."),
    "require": _float(_PROMISE, "Exit with 0 only if a proved capacity reaches this rate."),
    "window": _text(_EVIDENCE, "Measured window of a run (default 120s).", _DURATION),
    "cohort": _int(_EVIDENCE, "Requests in the measured window, instead of --window."),
    "warmup": _text(_EVIDENCE, "Warm-up of a run (default 20s, or longer if answers are).", _DURATION),
    "timeout": _text(_EVIDENCE, "Time limit of one request, no shorter than the SLO (default 1m to 1h).", _DURATION),
    "runs": _int(_EVIDENCE, "R, fresh runs that must all pass at the rate that is published (default 10)."),
    "explore": _int(_EVIDENCE, "Runs that must pass at a rate before the search goes on above it (default 1)."),
    "all_runs": Annotated[
        bool | None,
        typer.Option(
            "--all-runs",
            help="In a table, make all R runs of a rate although one of them failed.",
            rich_help_panel=_EVIDENCE,
        ),
    ],
    "confirm": Annotated[int | None, typer.Option(hidden=True)],  # has no effect: --runs fresh runs prove the answer
    "width": _text(_EVIDENCE, "Width of the rate grid (default 5%).", _SHARE),
    "seeds": _text(_EVIDENCE, "Seeds of the R fresh runs (of a table: of its runs), e.g. 101..110.", "A..B"),
    "seed": _int(_EVIDENCE, "One seed that derives them all (default 1)."),
    "seeding": _text(_EVIDENCE, "paired (default: the same seeds at every rate) or fresh (no --seeds).", "HOW"),
    "arrival_seed": _int(_EVIDENCE, "Change the arrivals alone."),
    "workload_seed": _int(_EVIDENCE, "Change lengths and content alone."),
    "max_time": _text(
        _COST, "Stop the search this long after the command started; the bracket so far is kept.", _DURATION
    ),
    "max_requests": _int(_COST, "Stop the search before it sends more requests than this."),
    "max_tokens": _int(_COST, "Stop the search before it asks for more tokens than this."),
    "events": _text(
        _KEPT,
        "Token events kept of a run: all (default), sample (one request in 16) or none (default in virtual time).",
        "WHICH",
    ),
}

_OF_A_SEARCH = (
    "runs",
    "explore",
    "all_runs",
    "confirm",
    "width",
    "require",
    "seeding",
    "max_time",
    "max_requests",
    "max_tokens",
)
_OF_A_REPLAY = ("speed", "sessions")
_BOTH = tuple(name for name in _OPTIONS if name not in {*_OF_A_SEARCH, *_OF_A_REPLAY, "closed"})
EXPERIMENT = (*_BOTH, "closed")
SEARCH = (*_BOTH, *_OF_A_SEARCH)
# a trace has its own arrivals and lengths, and the window of it is what is measured
_NOT_REPLAYED = {"arrivals", "burstiness", "cv", "cohort", "input", "output", "lengths", "shared_prefix",
                 "prefix_groups", "replicates", "trace_window", "window"}  # fmt: skip
REPLAY = tuple(name for name in (*_BOTH, *_OF_A_REPLAY) if name not in _NOT_REPLAYED)

CHECK = ("target", "model", "api_key_env", "api_key_file", "header", "ca_file", "cert_file", "key_file", "insecure",
         "ready_timeout", "transport", "endpoint", "prompt", "stop", "temperature", "token_ids", "extra")  # fmt: skip


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options; it receives those the user set as the dict `overrides`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in names}
            command(overrides=_overrides(given), **arguments)

        own = inspect.signature(command).parameters
        hints = get_type_hints(command, include_extras=True)
        parameters = [own[name].replace(annotation=hints[name]) for name in own if name != "overrides"]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_OPTIONS[name])
            for name in names
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _overrides(given: dict[str, Any]) -> dict[str, Any]:
    chosen = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None and v != []}
    if "extra" in chosen:
        chosen["extra"] = dict(map(_extra, chosen["extra"]))
    return chosen


def _extra(text: str) -> tuple[str, Any]:
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"--extra {text!r} is not of the form KEY=JSON, such as priority=1 or user='\"me\"'")
    try:
        return key.strip(), orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ScenarioError(f"--extra {text!r}: the part after = is not JSON ({error})") from None
