"""A scenario: everything that decides an experiment, validated before anything is sent.

The keys of the file are the long options of the command line, with underscores. `Scenario.sha256` covers what can
change a result; budgets, names and where a secret is found are left out, so that a resumed experiment may be given more
time.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from analysis.slo import Slo, parse_slo
from analysis.units import parse_share
from loadgen.common import defaults
from loadgen.common.errors import ScenarioError
from loadgen.common.redact import REDACTED
from loadgen.scenario.canonical import canonical
from loadgen.scenario.mistakes import meant
from loadgen.scenario.settings import (
    Command,
    Headers,
    Notes,
    ScrapeInterval,
    Seconds,
    SecondsOrZero,
    Share,
    Text,
    Texts,
    parse_window_s,
)

__all__ = ["NOT_HASHED", "OF_FILE", "Scenario", "differences", "validated"]

NOT_HASHED = frozenset(
    {
        "name",
        "note",
        "require",
        "events",
        "max_time",
        "max_requests",
        "max_tokens",
        "ready_timeout",
        "api_key_env",
        "api_key_file",
        "header",
    }
)
_SECRET = re.compile(r"(?i)(api[-_]?key|passw(or)?d|secret|bearer|(auth|access|hf|api)[-_]?token)")
_PROCESSES = ("poisson", "gamma", "constant")
OF_FILE = ("trace", "fit-gamma", "fit-mmpp")
ENDPOINTS = (("/v1/chat/completions", "chat"), ("/v1/completions", "completions"))


class Scenario(BaseModel):
    """One experiment's settings; field names are the keys of a scenario file. Durations in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    # what is loaded
    target: Texts = (defaults.TARGET,)
    model: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False
    header: Headers = Field(default=(), repr=False)
    ready_timeout: SecondsOrZero = defaults.READY_TIMEOUT_S
    scrape_interval: ScrapeInterval = defaults.SCRAPE_INTERVAL_S
    metrics_url: Texts = ()
    cache: Literal["salt", "reset", "restart", "command", "keep"] = "salt"
    restart_command: Command = ()
    between_command: Command = ()
    note: Notes = Field(default_factory=dict)
    # the load
    rate: Text = "2..18"
    arrivals: Text = "poisson"
    burstiness: Annotated[float, Field(gt=0, le=1e6)] | None = None
    cv: Annotated[float, Field(gt=0, le=1e3)] | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    closed: Annotated[int, Field(ge=1)] | None = None
    transport: Literal["wire", "httpx"] = "wire"
    prewarm: Annotated[int, Field(ge=0, le=100_000)] = 0
    # a recorded load
    format: str | None = None
    map: str | None = None
    unit: str | None = None
    block_tokens: Annotated[int, Field(ge=1)] | None = None
    on_invalid: Literal["error", "drop", "clip"] = "error"
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    trace_window: Text | None = None
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    rate_method: Literal["time", "thin", "superpose"] = "time"
    jitter_within_tick: bool = False
    replicates: Literal["blocks", "repeats", "once"] = "blocks"  # once: loadgen replay
    sessions: Literal["timestamps", "dependent"] = "timestamps"
    share_content: bool = False
    trace_sha256: str | None = None  # of what is read from the file; filled in where it is not given
    lengths_sha256: str | None = None
    # the requests
    endpoint: Literal["completions", "chat"] = "completions"
    prompt: Literal["ids", "text"] | None = None
    input: Text = defaults.INPUT
    output: Text = defaults.OUTPUT
    lengths: str | None = None
    shared_prefix: Annotated[int, Field(ge=0)] = 0
    prefix_groups: Annotated[int, Field(ge=1)] = 1
    stop: Literal["forced", "natural"] = "forced"
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    token_ids: Text = defaults.TOKEN_IDS
    extra: dict[str, Any] = Field(default_factory=dict)
    # the promise
    slo: Texts = ()
    slo_clock: Literal["scheduled", "sent"] = "scheduled"
    attain: Share = defaults.ATTAIN
    max_error_rate: Share = defaults.MAX_ERROR_RATE
    min_requests: Annotated[int, Field(ge=1)] | None = None
    require: Annotated[float, Field(gt=0)] | None = None
    # the evidence
    window: Seconds = defaults.WINDOW_S
    cohort: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    warmup: SecondsOrZero = defaults.WARMUP_S
    timeout: Seconds | None = None
    runs: Annotated[int, Field(ge=1, le=1000)] = defaults.RUNS
    explore: Annotated[int, Field(ge=1, le=1000)] = defaults.EXPLORE
    all_runs: bool = False
    confirm: Annotated[int, Field(ge=0, le=1000)] | None = None  # has no effect: R fresh runs prove a rate
    width: Share = defaults.WIDTH
    seeds: Text | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    seeding: Literal["paired", "fresh"] = "paired"
    arrival_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    workload_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    # what is kept of it
    events: Literal["none", "sample", "all"] | None = None
    # what it may cost
    max_time: Seconds | None = None
    max_requests: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _endpoint_of_the_url(cls, values: Any) -> Any:
        """A target given as the path that requests go to says which API is meant."""
        if not isinstance(values, dict):
            return values
        target = values.get("target", ())
        urls = (target,) if isinstance(target, str) else target if isinstance(target, list | tuple) else ()
        meant = {name for url in urls for path, name in ENDPOINTS if str(url).strip().rstrip("/").endswith(path)}
        if not meant:
            return values
        asked = {values["endpoint"]} if "endpoint" in values else meant
        if asked != meant or len(meant) > 1:
            said = f"endpoint = {values['endpoint']} with " if "endpoint" in values else ""
            raise ValueError(
                f"{said}target {', '.join(map(str, urls))}: the path says {' and '.join(sorted(meant))}; give the base "
                "URL, or the same API everywhere"
            )
        return {**values, "endpoint": meant.pop()}

    @field_validator("header")
    @classmethod
    def _headers_have_names(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        if not all(":" in entry for entry in entries):  # it may be a secret: it is not shown
            raise ValueError("a header is written 'Name: value' or 'Name: env:VARIABLE'")
        return entries

    @field_validator("slo")
    @classmethod
    def _slo_parses(cls, terms: tuple[str, ...]) -> tuple[str, ...]:
        parse_slo(terms)
        return terms

    @field_validator("arrivals")
    @classmethod
    def _arrivals_are_known(cls, arrivals: str) -> str:
        kind, colon, file = arrivals.partition(":")
        if not (arrivals in _PROCESSES or (colon and kind in OF_FILE and file.strip())):
            raise ValueError(
                f"{arrivals!r} is no arrival process; write poisson, gamma, constant, trace:FILE, fit-gamma:FILE or "
                "fit-mmpp:FILE"
            )
        return arrivals

    @field_validator("trace_window")
    @classmethod
    def _trace_window_parses(cls, text: str | None) -> str | None:
        if text is not None:
            parse_window_s(text)
        return text

    @field_validator("width")
    @classmethod
    def _width_is_sensible(cls, width: str) -> str:
        if not Fraction(1, 1000) <= parse_share(width) <= 1:
            raise ValueError(f"{width!r} is not a grid width between 0.1% and 100%")
        return width

    @field_validator("metrics_url")
    @classmethod
    def _metrics_urls_parse(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        names = []
        for entry in entries:
            name, equals, url = entry.partition("=")
            parts = urlsplit(url)
            if not equals or not name.isidentifier() or parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{name!r} is not of the form NAME=URL, such as gpu=http://HOST:9400/metrics")
            if parts.username is not None or parts.password is not None:
                raise ValueError(f"{name}: the URL holds a user or a password, which would be stored with the results")
            names.append(name)
        if taken := {"client", "nvidia"} & set(names) or (set(names) if len(set(names)) < len(names) else set()):
            raise ValueError(f"name each source once, and none client or nvidia ({', '.join(sorted(taken))})")
        return entries

    @field_validator("attain")
    @classmethod
    def _attain_above_zero(cls, attain: str) -> str:
        if parse_share(attain) == 0:
            raise ValueError("an attainment of 0 promises nothing; write the share that must meet the SLO, such as 95%")
        return attain

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        def refuse(text: str) -> None:
            raise ValueError(text)

        self._no_contradictions_of_seeds(refuse)
        if self.burstiness is not None and self.cv is not None:
            refuse("burstiness and cv say the same thing (cv = 1/sqrt(burstiness)): give one")
        if self.arrivals != "gamma" and (self.burstiness is not None or self.cv is not None):
            refuse(f"burstiness and cv belong to arrivals = gamma, not to {self.arrivals}")
        if self.arrivals == "gamma" and self.burstiness is None and self.cv is None:
            refuse("arrivals = gamma needs burstiness (its shape k) or cv")
        self._no_contradictions_of_a_trace(refuse)
        if self.closed is not None and self.max_concurrency is not None:
            refuse("closed and max_concurrency exclude each other: a closed loop already fixes the concurrency")
        if self.prompt == "ids" and self.endpoint == "chat":
            refuse("prompt = ids needs endpoint = completions: chat messages are text")
        if self.lengths is not None and {"input", "output"} & self.model_fields_set:
            refuse("lengths gives input and output together: drop input and output, or lengths")
        if self.cohort is not None and "window" in self.model_fields_set:
            refuse("cohort and window exclude each other: the window lasts until the cohort's requests are in it")
        if self.cohort is not None and self.cohort < self.least_requests:
            refuse(
                f"cohort = {self.cohort} is below min_requests = {self.least_requests}, so nothing could ever pass: "
                "raise cohort, or lower min_requests"
            )
        if (self.cert_file is None) != (self.key_file is None):
            refuse("cert_file and key_file go together")
        if self.api_key_env is not None and self.api_key_file is not None:
            refuse("api_key_env and api_key_file exclude each other")
        if self.require is not None and not self.slo:
            refuse("require needs an SLO of your own: the placeholder SLO decides nothing; set slo")
        return self

    @model_validator(mode="after")
    def _commands_have_their_policy(self) -> Self:
        for policy, key in (("restart", "restart_command"), ("command", "between_command")):
            command = getattr(self, key)
            if (self.cache == policy) != bool(command):
                raise ValueError(f"{key} and cache = {policy} go together: give both, or neither")
            if any(_SECRET.search(word) for word in command):
                raise ValueError(f"{key} names a secret and would be stored: let the command read a file or a variable")
        return self

    def _no_contradictions_of_seeds(self, refuse: Callable[[str], None]) -> None:
        if self.seeds is not None and self.seed is not None:
            refuse("seeds and seed exclude each other: give the replicates' seeds, or one seed that derives them")
        if self.seeds is not None and self.seeding == "fresh":
            refuse("seeds and seeding = fresh exclude each other: fresh draws new seeds for every rate; give seed")

    def _no_contradictions_of_a_trace(self, refuse: Callable[[str], None]) -> None:
        file = self.arrivals_file
        if file is None and not (self.lengths or "").startswith("trace:"):
            for key in ("format", "map", "unit", "block_tokens", "max_model_len"):
                if getattr(self, key) is not None:
                    refuse(
                        f"{key} says how a trace is read: give one with arrivals = trace:FILE or lengths = trace:FILE"
                    )
        if file is None and (self.trace_window is not None or self.jitter_within_tick):
            refuse("trace_window and jitter_within_tick need a trace: arrivals = trace:FILE")
        if not self.recorded:
            if (
                self.rate_method != "time"
                or self.replicates != "blocks"
                or self.share_content
                or self.speed is not None
            ):
                refuse("rate_method, replicates, speed and share_content need arrivals = trace:FILE")
            return
        if self.cohort is not None:
            refuse("cohort has no meaning for a trace, which has the requests it has: give window")
        if self.closed is not None:
            refuse("closed and arrivals = trace exclude each other: a closed loop ignores the trace's instants")
        if {"input", "output"} & self.model_fields_set or (self.shared_prefix and self.lengths is None):
            refuse(
                "a trace brings its own lengths: drop input, output and shared_prefix, or give other ones by lengths"
            )
        if self.share_content and self.cache != "keep":
            refuse("share_content lets runs warm each other, which a salt or a reset prevents: it needs cache = keep")

    @property
    def least_requests(self) -> int:
        """The smallest cohort that may pass: max(200, ⌈10/(1 − q)⌉) where it is not asked otherwise.

        At a share q of 99 %, 200 requests would pass with two misses, and say little of a thousand.
        """
        if self.min_requests is not None:
            return self.min_requests
        missing = 1 - parse_share(self.attain)
        return max(defaults.MIN_REQUESTS, math.ceil(defaults.MIN_MISSES / missing) if missing else 0)

    @property
    def recorded(self) -> bool:
        """Whether the arrivals are a trace's own."""
        return self.arrivals.startswith("trace:")

    @property
    def replicate_word(self) -> Literal["replicate", "block", "repeat", "replay"]:
        """What a replicate is called (method, sections 7 and 11): one that is not independent is none."""
        if self.recorded and self.replicates != "blocks":
            return "repeat" if self.replicates == "repeats" else "replay"
        return "block" if self.recorded or self.cache == "keep" else "replicate"

    @property
    def arrivals_file(self) -> str | None:
        """The trace that arrivals come from, or are fitted to."""
        return self.arrivals.partition(":")[2] or None

    @cached_property
    def objective(self) -> Slo:
        """The SLO, or the placeholder that every output names."""
        if self.slo:
            return parse_slo(self.slo, clock=self.slo_clock)
        placeholder = parse_slo(defaults.PLACEHOLDER_SLO, clock=self.slo_clock)
        return Slo(ttft_s=placeholder.ttft_s, tpot_s=placeholder.tpot_s, clock=self.slo_clock, placeholder=True)

    @property
    def prompt_kind(self) -> Literal["ids", "text"]:
        """Token ids where the endpoint takes them, text otherwise."""
        return self.prompt or ("ids" if self.endpoint == "completions" else "text")

    @property
    def kept_events(self) -> Literal["none", "sample", "all"]:
        """Whose token events are kept: by default everybody's, in virtual time nobody's."""
        if self.events is not None:
            return self.events
        return "none" if self.target[0].partition(":")[0] == "virtual" else "all"

    def stored(self) -> dict[str, Any]:
        """A JSON-ready dict that `restore` reads back; holds no secret, only where one is found."""
        stored = self.model_dump(mode="json", exclude_defaults=True)
        if self.note:
            stored["note"] = {key: REDACTED if _SECRET.search(key) else told for key, told in self.note.items()}
        return stored

    @staticmethod
    def restore(stored: Mapping[str, Any]) -> Scenario:
        """The scenario of a stored experiment. Raises `ScenarioError`."""
        return validated(dict(stored), "the stored experiment", option=False)

    @property
    def sha256(self) -> str:
        """Hash of everything that can change a result: of values, not of how they are written."""
        meant = canonical(self.model_dump(mode="json"))
        kept = {key: value for key, value in meant.items() if key not in NOT_HASHED}
        return hashlib.sha256(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)).hexdigest()


def validated(values: dict[str, Any], where: str, *, option: bool) -> Scenario:
    """The scenario of these keys; `where` they are from, and whether the user wrote them as options, is for the error.

    Raises `ScenarioError` with one line that names the key.
    """
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, Scenario.model_fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known keys are {', '.join(Scenario.model_fields)}"
            if isinstance(first["input"], Mapping):
                hint = f"; there are no tables: the keys of [{key}] stand at the top of the file"
            elif known := meant(key):
                hint = f"; {known}"
            raise ScenarioError(f"{where or 'options'}: unknown key {key!r}{hint}") from None
        text = first["msg"].removeprefix("Value error, ")
        if key:
            text = f"{'--' + key.replace('_', '-') if option else key}: {text}"
            if first["type"] != "value_error" and key != "header":  # whose value is a secret
                text += f" (got {first['input']!r})"
        raise ScenarioError(f"{where}: {text}" if where else text) from None


def differences(before: Scenario, now: Scenario) -> list[str]:
    """Keys that can change a result and differ, as `key: before → now`."""
    left, right = before.model_dump(mode="json"), now.model_dump(mode="json")
    meant, means = canonical(left), canonical(right)
    return [f"{k}: {left[k]} → {right[k]}" for k in left if k not in NOT_HASHED and meant[k] != means[k]]
