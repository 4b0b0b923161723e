"""What a user sees while it works: a live line in a terminal, plain lines elsewhere; both on stderr, results on stdout.

Everything shown may hold a server's or a file's text, so nothing is read as markup and control characters are escaped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis.text import printable
from analysis.units import format_duration
from loadgen import Note, ProgressEvent, RunSealed, RunStarted, Tick

__all__ = ["Display", "Lines", "open_display"]

_LINES_EVERY_S = 10.0
_REFRESH_PER_S = 5


class Display(Protocol):
    """Shows events as they come; a context manager that gives the terminal back."""

    def show(self, event: ProgressEvent) -> None:
        """Show it, or not, as time and space allow."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def open_display(*, quiet: bool = False) -> Display:
    """Live in a terminal, lines elsewhere, nothing when quiet."""
    if quiet:
        return Lines(write=lambda _: None)
    console = Console(stderr=True, highlight=False)
    return LiveLine(console) if console.is_terminal and not console.is_dumb_terminal else Lines()


class Lines:
    """One plain line per event, and one every ten seconds of a run."""

    def __init__(self, write: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write or (lambda line: _unless_closed(lambda: print(line, file=sys.stderr, flush=True)))  # noqa: T201 - this is the output
        self._clock = clock
        self._said = 0.0
        self._passing = False

    def show(self, event: ProgressEvent) -> None:
        """See `Display`."""
        match event:
            case Note(text=text, passing=passing):
                first, self._passing = not self._passing, passing
                if passing and not first and self._clock() - self._said < _LINES_EVERY_S:
                    return
                self._said = self._clock()
                self._write(printable(text))
            case RunStarted():
                self._said = self._clock()
            case Tick():
                if self._clock() - self._said >= _LINES_EVERY_S:
                    self._said = self._clock()
                    self._write(printable(_live_line(event)))
            case RunSealed():
                self._write(printable(_verdict_line(event)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


class LiveLine:
    """Verdicts scroll by; the run that is on is one line at the bottom, redrawn a few times a second."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def show(self, event: ProgressEvent) -> None:
        """See `Display`."""
        match event:
            case Note(text=text, passing=True):
                self._redraw(Text(printable(text), style="dim", no_wrap=True, overflow="ellipsis"))
            case Note(text=text):
                self._scroll(Text(printable(text), style="dim"))
            case RunStarted():
                self._drawn = 0.0
            case Tick():
                if self._clock() - self._drawn >= 1 / _REFRESH_PER_S:
                    self._drawn = self._clock()
                    self._redraw(Text(printable(_live_line(event)), no_wrap=True, overflow="ellipsis"))
            case RunSealed(verdict=verdict):
                style = {"PASS": "green", "FAIL": "red", "INVALID": "yellow"}[verdict.status]
                self._scroll(Text(printable(_verdict_line(event)), style=style))

    def _redraw(self, line: Text) -> None:
        _unless_closed(lambda: self._live.update(line, refresh=True))

    def _scroll(self, line: Text) -> None:
        self._live.update(Text(""), refresh=False)
        _unless_closed(lambda: self._console.print(line))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _unless_closed(lambda: self._live.__exit__(kind, error, at))


def _unless_closed(write: Callable[[], object]) -> None:
    """Write what may be lost: where nobody reads it any more, the measurement goes on without."""
    with suppress(OSError, SystemExit):  # rich exits where a pipe is closed
        write()


def _live_line(tick: Tick) -> str:
    run, counts = tick.run, tick.counts
    elapsed, horizon = counts.elapsed_ns / 1e9, run.horizon_ns / 1e9
    left = f"{format_duration(max(horizon - elapsed, 0))} left" if elapsed < horizon else "waiting for the last answers"
    line = (
        f"{run.title}: {elapsed:.0f} s, {left}; sent {counts.sent}, in flight {counts.in_flight}, "
        f"ok {counts.ok}, errors {counts.errors}"
    )
    if counts.cohort_decided:
        line += f", attainment so far {1 - counts.cohort_misses / counts.cohort_decided:.1%}"
    return line


def _verdict_line(sealed: RunSealed) -> str:
    run, verdict = sealed.run, sealed.verdict
    if verdict.status == "INVALID":
        line = f"{run.title}: INVALID ({verdict.blame}): {verdict.reason}"
    else:
        bound = "≤ " if verdict.attainment_is_bound else ""
        errors = f", {verdict.errors} errors" if verdict.errors else ""
        line = f"{run.title}: {verdict.status}, attainment {bound}{verdict.attainment:.2%} of {verdict.cohort}{errors}"
        if verdict.status == "FAIL" and verdict.reason:
            line += f"; {verdict.reason}"
    return f"{line} [{run.hashes}]" if run.hashes else line
