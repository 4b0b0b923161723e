"""What a user sees while it works: a live line in a terminal, plain lines elsewhere; both on stderr, results on stdout.

Everything shown may hold a server's or a file's text, so nothing is read as markup and control characters are escaped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis.text import Passing, printable
from analysis.units import format_duration
from analysis.verdict import RunVerdict
from loadgen.send.api import LiveCounts

__all__ = ["LinesProgress", "LiveProgress", "Progress", "RunLabel", "open_progress"]

_LINES_EVERY_S = 10.0
_REFRESH_PER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """How a run is called on the screen, and how long it may last."""

    title: str  # e.g. "6.00 req/s, replicate 3 of 5 (confirmation)"
    horizon_ns: int  # end of its measured window
    hashes: str = ""  # of its schedule and workload, shortened


class Progress(Protocol):
    """Receives what happens, in order; a context manager that gives the terminal back."""

    def note(self, text: str) -> None:
        """Something worth a line; a `Passing` one only until the next."""
        ...

    def start(self, label: RunLabel) -> None:
        """A run begins."""
        ...

    def tick(self, counts: LiveCounts) -> None:
        """A run goes on; called often."""
        ...

    def verdict(self, label: RunLabel, verdict: RunVerdict) -> None:
        """A run ended with this verdict."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def open_progress(*, quiet: bool = False) -> Progress:
    """Live in a terminal, lines elsewhere, nothing when quiet."""
    if quiet:
        return LinesProgress(write=lambda _: None)
    console = Console(stderr=True, highlight=False)
    return LiveProgress(console) if console.is_terminal and not console.is_dumb_terminal else LinesProgress()


class LinesProgress:
    """One plain line per event, and one every ten seconds of a run."""

    def __init__(self, write: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write or (lambda line: _unless_closed(lambda: print(line, file=sys.stderr, flush=True)))  # noqa: T201 - this is the output
        self._clock = clock
        self._label = RunLabel(title="", horizon_ns=0)
        self._said = 0.0
        self._passing = False

    def note(self, text: str) -> None:
        """See `Progress`."""
        first, self._passing = not self._passing, isinstance(text, Passing)
        if self._passing and not first and self._clock() - self._said < _LINES_EVERY_S:
            return
        self._said = self._clock()
        self._write(printable(text))

    def start(self, label: RunLabel) -> None:
        """See `Progress`."""
        self._label, self._said = label, self._clock()

    def tick(self, counts: LiveCounts) -> None:
        """See `Progress`."""
        if self._clock() - self._said >= _LINES_EVERY_S:
            self._said = self._clock()
            self._write(printable(_live_line(self._label, counts)))

    def verdict(self, label: RunLabel, verdict: RunVerdict) -> None:
        """See `Progress`."""
        self._write(printable(_verdict_line(label, verdict)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


class LiveProgress:
    """Verdicts scroll by; the run that is on is one line at the bottom, redrawn a few times a second."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._label = RunLabel(title="", horizon_ns=0)
        self._drawn = 0.0

    def note(self, text: str) -> None:
        """See `Progress`."""
        line = Text(printable(text), style="dim")
        if isinstance(text, Passing):
            line.no_wrap, line.overflow = True, "ellipsis"
            _unless_closed(lambda: self._live.update(line, refresh=True))
            return
        self._live.update(Text(""), refresh=False)
        _unless_closed(lambda: self._console.print(line))

    def start(self, label: RunLabel) -> None:
        """See `Progress`."""
        self._label, self._drawn = label, 0.0

    def tick(self, counts: LiveCounts) -> None:
        """See `Progress`."""
        if self._clock() - self._drawn >= 1 / _REFRESH_PER_S:
            self._drawn = self._clock()
            line = Text(printable(_live_line(self._label, counts)), no_wrap=True, overflow="ellipsis")
            _unless_closed(lambda: self._live.update(line, refresh=True))

    def verdict(self, label: RunLabel, verdict: RunVerdict) -> None:
        """See `Progress`."""
        style = {"PASS": "green", "FAIL": "red", "INVALID": "yellow"}[verdict.status]
        self._live.update(Text(""), refresh=False)
        _unless_closed(lambda: self._console.print(Text(printable(_verdict_line(label, verdict)), style=style)))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _unless_closed(lambda: self._live.__exit__(kind, error, at))


def _unless_closed(write: Callable[[], object]) -> None:
    """Write what may be lost: where nobody reads it any more, the measurement goes on without."""
    with suppress(OSError, SystemExit):  # rich exits where a pipe is closed
        write()


def _live_line(label: RunLabel, counts: LiveCounts) -> str:
    elapsed, horizon = counts.elapsed_ns / 1e9, label.horizon_ns / 1e9
    left = f"{format_duration(max(horizon - elapsed, 0))} left" if elapsed < horizon else "waiting for the last answers"
    line = (
        f"{label.title}: {elapsed:.0f} s, {left}; sent {counts.sent}, in flight {counts.in_flight}, "
        f"ok {counts.ok}, errors {counts.errors}"
    )
    if counts.cohort_decided:
        line += f", attainment so far {1 - counts.cohort_misses / counts.cohort_decided:.1%}"
    return line


def _verdict_line(label: RunLabel, verdict: RunVerdict) -> str:
    if verdict.status == "INVALID":
        line = f"{label.title}: INVALID ({verdict.blame}): {verdict.reason}"
    else:
        bound = "≤ " if verdict.attainment_is_bound else ""
        errors = f", {verdict.errors} errors" if verdict.errors else ""
        line = (
            f"{label.title}: {verdict.status}, attainment {bound}{verdict.attainment:.2%} of {verdict.cohort}{errors}"
        )
        if verdict.status == "FAIL" and verdict.reason:
            line += f"; {verdict.reason}"
    return f"{line} [{label.hashes}]" if label.hashes else line
