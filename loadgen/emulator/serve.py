"""The emulator as a process: bind, print the address, serve until it is stopped.

It prints one line, `emulator ready on http://HOST:PORT (…)`, once it accepts connections, and stops at SIGTERM or
SIGINT. With `--watch-stdin` it also stops when its standard input ends, which happens when the process holding the
other end of the pipe dies in any way: an emulator never outlives the run that started it.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import uvicorn

from loadgen.common import defaults
from loadgen.common.errors import LoadgenError, UsageError
from loadgen.emulator.app import EmulatorApp
from loadgen.emulator.profiles import load_profile

__all__ = ["READY", "main", "serve"]

READY = "emulator ready on "
KEEP_ALIVE_S = 5  # vLLM's own idle limit of a kept connection


class _Server(uvicorn.Server):
    """Announces itself, and closes the app before the signal that stopped it is raised again."""

    def __init__(self, config: uvicorn.Config, app: EmulatorApp, ready_line: str) -> None:
        super().__init__(config)
        self._app, self._ready_line = app, ready_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what was made before the first request is never looked at again
        print(self._ready_line, flush=True)  # noqa: T201

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._app.close()


def serve(profile: str, *, host: str = "127.0.0.1", port: int = 0, truth_log: Path | None = None,
          watch_stdin: bool = False, settings: Sequence[str] = ()) -> None:  # fmt: skip
    """Serve a profile (with `settings` in it, see `load_profile`) until a signal; port 0 takes a free one.

    Raises `UsageError`.
    """
    loaded = load_profile(profile, settings)
    listener = _bind(host, port)
    truth = _open_truth(truth_log)
    app = EmulatorApp(loaded, truth=truth)
    config = uvicorn.Config(
        app, loop="auto", http="httptools", ws="none", lifespan="off", interface="asgi3", log_level="warning",
        access_log=False,
        proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=1,
    )  # fmt: skip
    if watch_stdin:
        threading.Thread(target=_stop_when_stdin_ends, daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    ready = f"{READY}http://{shown}:{listener.getsockname()[1]} (profile {profile}, simulated: {loaded.description})"
    try:
        _Server(config, app, ready).run(sockets=[listener])
    finally:
        listener.close()
        if truth is not None:
            truth.close()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m loadgen.emulator`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadgen.emulator", description="A simulated vLLM server.")
    parser.add_argument("--profile", default=defaults.PROFILE, help="name of a shipped profile or path of a .toml file")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback)")
    parser.add_argument("--port", type=int, default=0, help="port to bind; 0 takes a free one")
    parser.add_argument("--truth-log", type=Path, help="write when each request arrived and was answered, JSON lines")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the profile")
    parser.add_argument("--watch-stdin", action="store_true", help="stop when standard input ends")
    args = parser.parse_args(argv)
    try:
        serve(
            args.profile, host=args.host, port=args.port, truth_log=args.truth_log, watch_stdin=args.watch_stdin,
            settings=args.set,
        )  # fmt: skip
    except LoadgenError as error:
        print(f"emulator: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"emulator cannot listen on {host} port {port}: {reason}; choose another --port") from None
    return listener


def _open_truth(path: Path | None) -> TextIO | None:
    if path is None:
        return None
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"truth log {path} cannot be written: {error.strerror}") from None


def _stop_when_stdin_ends() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
