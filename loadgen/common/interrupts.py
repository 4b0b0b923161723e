"""Ctrl-C: an orderly end where there is time for one, and in any case an end within a second.

The first Ctrl-C asks for an orderly end, and a thread ends the process when that takes too long. The second one ends it
at once. All that is on the disk was written so that a kill loses no sealed run (see loadgen.results.store), and child
processes end with the pipes they were given.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, NoReturn

__all__ = ["EXIT_CODE", "GRACE_S", "advice", "advise", "asking", "end", "interruptible"]

EXIT_CODE: Final = 5
GRACE_S: Final = 0.9
_SHOW_CURSOR: Final = "\x1b[?25h"  # which a live line hides


def _nothing() -> str:
    return ""


_advice: Callable[[], str] = _nothing


def advise(say: Callable[[], str]) -> None:
    """Set what a user is text who stops the command: what was kept, and how to go on."""
    global _advice
    _advice = say


def advice() -> str:
    """What was set by `advise`; empty if nothing was."""
    return _advice()


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into `KeyboardInterrupt`, and see to it that the process ends."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with asking(interrupt, signal.SIGINT):
        yield


@contextmanager
def asking(ask: Callable[[], object], *signals: signal.Signals) -> Iterator[None]:
    """Call `ask` at the first of these signals while the context is open, and end the process if it does not end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            end()
        asked = True
        timer = threading.Timer(GRACE_S, end)
        timer.daemon = True
        timer.start()
        ask()

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        if not asked:  # what has been asked for holds until the process ends
            for number, handler in before.items():
                signal.signal(number, handler)


def end() -> NoReturn:
    """Say that the user stopped it, and end the process as it stands.

    Not by `sys.exit`: where a `KeyboardInterrupt` came through `exec`, as of the dataclasses of a module that is being
    imported, Python ends by the signal whatever is asked for.
    """
    text = "; ".join(text for text in ("stopped by the user", advice()) if text)
    cursor = _SHOW_CURSOR if sys.stderr is not None and sys.stderr.isatty() else ""
    if threading.current_thread() is threading.main_thread():  # another thread could wait for a full pipe for ever
        with suppress(OSError, ValueError, AttributeError, RuntimeError):
            sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{cursor}loadgen: {text}\n".encode(errors="replace"))
    os._exit(EXIT_CODE)
