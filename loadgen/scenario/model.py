"""A scenario: everything that decides an experiment, validated before anything is sent.

The keys of the file are the long options of the command line, with underscores. `Scenario.sha256` covers what can
change a result; budgets, names and where a secret is found are left out, so that a resumed experiment may be given more
time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

import orjson
from pydantic import Field, model_validator

from loadgen.common.redact import REDACTED
from loadgen.scenario.canonical import canonical
from loadgen.scenario.groups.budget import BudgetSettings, ResultSettings
from loadgen.scenario.groups.evidence import EvidenceSettings
from loadgen.scenario.groups.load import LoadSettings
from loadgen.scenario.groups.promise import PromiseSettings
from loadgen.scenario.groups.requests import RequestSettings
from loadgen.scenario.groups.target import SECRET, TargetSettings
from loadgen.scenario.groups.trace import TraceSettings
from loadgen.scenario.option import Settings, not_hashed
from loadgen.scenario.validate import validated

__all__ = ["Scenario", "differences"]

_ENDPOINTS: Final = (("/v1/chat/completions", "chat"), ("/v1/completions", "completions"))


class _Named(Settings):
    name: str | None = Field(None, json_schema_extra={"hashed": False})  # of a file: no option


# the last base's fields are the first
class Scenario(
    BudgetSettings,
    ResultSettings,
    EvidenceSettings,
    PromiseSettings,
    RequestSettings,
    TraceSettings,
    LoadSettings,
    TargetSettings,
    _Named,
):
    """One experiment's settings; field names are the keys of a scenario file. Durations in seconds."""

    @model_validator(mode="before")
    @classmethod
    def _endpoint_of_the_url(cls, values: Any) -> Any:
        """A target given as the path that requests go to says which API is meant."""
        if not isinstance(values, dict):
            return values
        target = values.get("target", ())
        urls = (target,) if isinstance(target, str) else target if isinstance(target, list | tuple) else ()
        meant = {name for url in urls for path, name in _ENDPOINTS if str(url).strip().rstrip("/").endswith(path)}
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

    @property
    def indivisible(self) -> str:
        """What of the load several processes cannot send together, in words; empty if they can."""
        if self.target[0].partition(":")[0] == "virtual":
            return "target = virtual: in virtual time nothing is sent"
        if self.closed is not None:
            return "closed: N requests at a time are counted in one place"
        if self.max_concurrency is not None:
            return "max_concurrency: the requests let through are counted in one place"
        if self.routing == "least-in-flight":
            return "routing = least-in-flight: each process would see its own requests only"
        if self.sessions == "dependent":
            return "sessions = dependent: a turn waits for one that another process may have sent"
        return ""

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        if self.cohort is not None and self.cohort < self.least_requests:
            raise ValueError(
                f"cohort = {self.cohort} is below min_requests = {self.least_requests}, so nothing could ever pass: "
                "raise cohort, or lower min_requests"
            )
        if self.workers not in ("auto", "1") and self.indivisible:
            raise ValueError(f"workers = {self.workers} cannot divide {self.indivisible}: drop workers")
        if contradiction := self._in_a_trace() if self.recorded else self._without_a_trace():
            raise ValueError(contradiction)
        return self

    def _without_a_trace(self) -> str:
        if self.arrivals_file is None and not (self.lengths or "").startswith("trace:"):
            for key in ("format", "map", "unit", "block_tokens", "max_model_len"):
                if getattr(self, key) is not None:
                    return (
                        f"{key} says how a trace is read: give one with arrivals = trace:FILE or lengths = trace:FILE"
                    )
        if self.arrivals_file is None and (self.trace_window is not None or self.jitter_within_tick):
            return "trace_window and jitter_within_tick need a trace: arrivals = trace:FILE"
        changed = self.rate_method != "time" or self.replicates != "blocks" or self.share_content
        if changed or self.speed is not None:
            return "rate_method, replicates, speed and share_content need arrivals = trace:FILE"
        return ""

    def _in_a_trace(self) -> str:
        if self.cohort is not None:
            return "cohort has no meaning for a trace, which has the requests it has: give window"
        if self.closed is not None:
            return "closed and arrivals = trace exclude each other: a closed loop ignores the trace's instants"
        if {"input", "output"} & self.model_fields_set or (self.shared_prefix and self.lengths is None):
            return "a trace brings its own lengths: drop input, output and shared_prefix, or give other ones by lengths"
        if self.share_content and self.cache != "keep":
            return "share_content lets runs warm each other, which a salt or a reset prevents: it needs cache = keep"
        return ""

    @property
    def replicate_word(self) -> Literal["replicate", "block", "repeat", "replay"]:
        """What a replicate is called (method, sections 7 and 11): one that is not independent is none."""
        if self.recorded and self.replicates != "blocks":
            return "repeat" if self.replicates == "repeats" else "replay"
        return "block" if self.recorded or self.cache == "keep" else "replicate"

    @property
    def kept_events(self) -> Literal["none", "sample", "prompt", "all"]:
        """Whose token events are kept: by default those of requests read promptly, in virtual time nobody's."""
        if self.events is not None:
            return self.events
        return "none" if self.target[0].partition(":")[0] == "virtual" else "prompt"

    def stored(self) -> dict[str, Any]:
        """A JSON-ready dict that `restore` reads back; holds no secret, only where one is found."""
        stored = self.model_dump(mode="json", exclude_defaults=True)
        if self.note:
            stored["note"] = {key: REDACTED if SECRET.search(key) else value for key, value in self.note.items()}
        return stored

    @staticmethod
    def restore(stored: Mapping[str, Any]) -> Scenario:
        """The scenario of a stored experiment. Raises `ScenarioError`."""
        return validated(Scenario, dict(stored), "the stored experiment", option=False)

    @property
    def sha256(self) -> str:
        """Hash of everything that can change a result: of values, not of how they are written."""
        skipped, written = not_hashed(type(self)), self.model_dump(mode="json")
        kept = {key: canonical(key, value) for key, value in written.items() if key not in skipped}
        return hashlib.sha256(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)).hexdigest()


def differences(before: Scenario, now: Scenario) -> list[str]:
    """Keys that can change a result and differ, as `key: before → now`."""
    skipped = not_hashed(Scenario)
    left, right = before.model_dump(mode="json"), now.model_dump(mode="json")
    return [
        f"{key}: {value} → {right[key]}"
        for key, value in left.items()
        if key not in skipped and canonical(key, value) != canonical(key, right[key])
    ]
