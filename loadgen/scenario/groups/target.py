"""The system that is loaded: where it is, how it is reached, and what is done to it between runs."""

from __future__ import annotations

import re
from functools import partial
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from loadgen.common import defaults
from loadgen.scenario.option import ANYWHERE, Settings, setting
from loadgen.scenario.settings import Command, Headers, Notes, ScrapeInterval, SecondsOrZero, Texts
from loadgen.send.routing import Routing

__all__ = ["SECRET", "TargetSettings"]

SECRET: Final = re.compile(r"(?i)(api[-_]?key|passw(or)?d|secret|bearer|(auth|access|hf|api)[-_]?token)")
_setting = partial(setting, panel="Target")


class TargetSettings(Settings):
    """What is loaded."""

    target: Texts = _setting(
        (defaults.TARGET,),
        "Base URL or unix:/path.sock (repeat it for replicas behind one target), or emulator[:PROFILE], "
        "virtual[:PROFILE].",
        metavar="URL",
        on=ANYWHERE,
    )
    routing: Routing = _setting(
        "round-robin",
        "How requests are spread over several URLs: round-robin, random or least-in-flight.",
        metavar="POLICY",
    )
    model: str | None = _setting(
        None,
        "Model name; needed where /v1/models lists none or several.",
        shown="the only one listed",
        on=ANYWHERE,
    )
    api_key_env: str | None = _setting(
        None, "Environment variable that holds the API key.", metavar="NAME", on=ANYWHERE, hashed=False
    )
    api_key_file: str | None = _setting(None, "File that holds the API key.", metavar="FILE", on=ANYWHERE, hashed=False)
    ca_file: str | None = _setting(None, "CA bundle for https.", metavar="FILE", on=ANYWHERE)
    cert_file: str | None = _setting(None, "Client certificate for https.", metavar="FILE", on=ANYWHERE)
    key_file: str | None = _setting(None, "Private key of the client certificate.", metavar="FILE", on=ANYWHERE)
    insecure: bool = _setting(False, "Do not verify the server's certificate.", on=ANYWHERE)
    header: Headers = _setting(
        (),
        "Further request header, or 'Name: env:VARIABLE'; repeatable. Values are secrets and are not stored.",
        metavar="'NAME: VALUE'",
        on=ANYWHERE,
        hashed=False,
        secret=True,
    )
    ready_timeout: SecondsOrZero = _setting(
        defaults.READY_TIMEOUT_S, "How long to wait for the target to be ready.", on=ANYWHERE, hashed=False
    )
    scrape_interval: ScrapeInterval = _setting(
        defaults.SCRAPE_INTERVAL_S, "How often to read the target's metrics during a run; off: never."
    )
    metrics_url: Texts = _setting(
        (),
        "Further metrics page, such as gpu=http://HOST:9400/metrics (DCGM, node exporter); repeatable.",
        metavar="NAME=URL",
    )
    cache: Literal["salt", "reset", "restart", "command", "keep"] = _setting(
        "salt",
        "How to keep runs from sharing the prefix cache: salt, reset (POST /reset_prefix_cache), restart or "
        "command; keep lets them share it.",
        metavar="POLICY",
    )
    restart_command: Command = _setting(
        (), "With --cache restart: the command that restarts the server and returns; no shell runs it."
    )
    between_command: Command = _setting(
        (), "With --cache command: the command to run before every run; no shell runs it."
    )
    note: Notes = _setting({}, "A fact about the target to store with the results; repeatable.", hashed=False)

    @field_validator("header")
    @classmethod
    def _headers_have_names(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        if not all(":" in entry for entry in entries):  # it may be a secret: it is not shown
            raise ValueError("a header is written 'Name: value' or 'Name: env:VARIABLE'")
        return entries

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

    @model_validator(mode="after")
    def _routing_has_a_choice(self) -> Self:
        if self.routing != "round-robin" and len(self.target) == 1:
            simulated = self.target[0].partition(":")[0] in ("virtual", "emulator")
            why = "; replicas that a profile simulates take requests in turn" if simulated else ""
            raise ValueError(
                f"routing = {self.routing} chooses among several URLs, and target names one{why}: give every replica's "
                "URL, or drop it"
            )
        return self

    @model_validator(mode="after")
    def _files_and_commands_belong_together(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_env and api_key_file exclude each other")
        for policy, key in (("restart", "restart_command"), ("command", "between_command")):
            command = getattr(self, key)
            if (self.cache == policy) != bool(command):
                raise ValueError(f"{key} and cache = {policy} go together: give both, or neither")
            if any(SECRET.search(word) for word in command):
                raise ValueError(f"{key} names a secret and would be stored: let the command read a file or a variable")
        return self
