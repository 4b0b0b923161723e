"""What a variant's server is started with, checked before anything is started or sent."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from analysis.text import bounded
from loadgen.common.errors import TargetUnfit, UsageError
from loadgen.common.redact import REDACTED, secrets_of

__all__ = ["LaunchCommand", "LaunchSpec", "check_launch", "port_is_free", "resolve"]

HOST: Final = "127.0.0.1"
_PORT: Final = "{port}"
_FROM_OURS: Final = "env:"
_SECRET_OPTION: Final = re.compile(r"(--api[-_]key|--hf[-_]token)(?:=(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A server to launch, as the user wrote it.

    `command` is split as a shell would and run without one; `{port}` becomes a free port, every other brace is kept.
    `env` is added to our environment; a value `env:NAME` is taken from ours, so that a file holds no secret.
    """

    name: str  # of the variant
    command: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    ready_timeout_s: float
    stop_timeout_s: float = 30.0  # from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """A command that can be run, and what of it must not be shown."""

    words: tuple[str, ...]
    executable: str
    environment: Mapping[str, str] = field(repr=False)
    port: int
    secrets: tuple[str, ...] = field(repr=False)

    @property
    def shown(self) -> str:
        """The command line without keys."""
        shown: list[str] = []
        for word in self.words:
            match = _SECRET_OPTION.fullmatch(word)
            if shown and _SECRET_OPTION.fullmatch(shown[-1]) and "=" not in shown[-1]:
                shown.append(REDACTED)
            else:
                shown.append(f"{match[1]}={REDACTED}" if match and match[2] else word)
        return shlex.join(shown)


def check_launch(spec: LaunchSpec) -> None:
    """Raises `UsageError` for what can be seen to be wrong without starting anything."""
    resolve(spec, free_port=1)


def resolve(spec: LaunchSpec, *, free_port: int | None = None) -> LaunchCommand:
    """What to run; a port is chosen where none is given. Raises `UsageError`, and `TargetUnfit` without a free port."""
    who = f"variant {bounded(spec.name)}"
    try:
        words = shlex.split(spec.command)
    except ValueError as error:
        raise UsageError(f"{who}: the command {bounded(spec.command)} cannot be split: {error}") from None
    if not words or "\0" in spec.command:
        raise UsageError(f"{who}: the command is empty or no text; write it as 'vllm serve MODEL --port {{port}}'")
    fixed = _fixed_port(who, words)
    environment, secrets = _environment(who, spec.env)
    executable = _executable(who, words[0], environment, spec.cwd)
    port = fixed or free_port or _free_port(who)
    keys = {str(number): value for number, value in enumerate(_keys(words))}
    return LaunchCommand(
        words=tuple(word.replace(_PORT, str(port)) for word in words),
        executable=executable,
        environment=environment,
        port=port,
        secrets=secrets_of({**secrets, **keys}),
    )


def port_is_free(port: int) -> bool:
    """Whether a server can listen on the port of this machine's loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: closed connections do not matter
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _fixed_port(who: str, words: Sequence[str]) -> int | None:
    """The port that the command names itself; `None` where one is filled in."""
    if any(_PORT in word for word in words):
        return None
    given = [after for word, after in zip(words, [*words[1:], ""], strict=True) if word == "--port"]
    given += [word.partition("=")[2] for word in words if word.startswith("--port=")]
    if not given:
        raise UsageError(f"{who}: the command says no port; add --port {{port}}, which becomes a free one")
    if not given[-1].isdecimal() or not 0 < int(given[-1]) < 1 << 16:
        raise UsageError(f"{who}: --port {bounded(given[-1])} is not a port (1 to 65535); write --port {{port}}")
    return int(given[-1])


def _environment(who: str, added: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The server's variables, and those among them that came from ours by name."""
    environment, taken = dict(os.environ), {}
    for name, value in added.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{who}: env {bounded(name)!r} is not a valid name of an environment variable")
        if value.startswith(_FROM_OURS):
            source = value.removeprefix(_FROM_OURS)
            if source not in os.environ:
                raise UsageError(f"{who}: env {bounded(name)}: the variable {bounded(source)} is not set; export it")
            value = taken[name] = os.environ[source]
        environment[name] = value
    return environment, taken


def _executable(who: str, word: str, environment: Mapping[str, str], cwd: str | None) -> str:
    directory = Path(cwd or ".")
    if not directory.is_dir():
        raise UsageError(f"{who}: cwd {bounded(str(directory))} is not a directory")
    if "/" in word:
        found = shutil.which(directory / word)
    else:
        found = shutil.which(word, path=environment.get("PATH", os.defpath))
    if found is None:
        hint = "give a program's name or its path"
        if "=" in word:
            hint = "no shell reads the command: write variables under env"
        raise UsageError(f"{who}: there is no command {bounded(word)}; {hint}")
    return str(Path(found).absolute())


def _keys(words: Sequence[str]) -> list[str]:
    keys = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if match := _SECRET_OPTION.fullmatch(word):
            keys.append(match[2] or after)
    return keys


def _free_port(who: str) -> int:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, 0))
        except OSError as error:
            raise TargetUnfit(f"{who}: this machine has no free port ({error.strerror})") from None
        return int(probe.getsockname()[1])
