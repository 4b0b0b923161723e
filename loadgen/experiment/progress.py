"""What happens while a measurement is on, as typed events to a callback; the command line's display is one (cli).

Text in them may come from a server or a file: escape it before display (`analysis.text.printable`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from analysis.text import Passing
from analysis.verdict import RunVerdict
from loadgen.send.api import LiveCounts

__all__ = ["Note", "Progress", "ProgressEvent", "RunLabel", "RunSealed", "RunStarted", "Tick"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """How a run is called, and how long its load lasts."""

    title: str  # e.g. "6 req/s, fresh replicate 3 of 5"
    horizon_ns: int  # end of its measured window, from its first scheduled instant
    hashes: str = ""  # of its schedule and workload, shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line about the experiment; a `passing` one (such as how long a wait has lasted) holds until the next event."""

    text: str
    passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run begins."""

    run: RunLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A run goes on: its counts so far, five times a second. In virtual time there are none."""

    run: RunLabel
    counts: LiveCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSealed:
    """A run ended, and is on the disk with this verdict."""

    run: RunLabel
    verdict: RunVerdict


ProgressEvent = Note | RunStarted | Tick | RunSealed


class Progress:
    """Hands what happens to a callback, in order, on the event loop of the measurement: the callback must not block."""

    def __init__(self, callback: Callable[[ProgressEvent], object] | None = None) -> None:
        self.tell = callback or (lambda _: None)
        self._run = RunLabel(title="", horizon_ns=0)

    def note(self, text: str) -> None:
        """Something worth a line; a `Passing` one only until the next."""
        self.tell(Note(text=str(text), passing=isinstance(text, Passing)))

    def start(self, label: RunLabel) -> None:
        """A run begins."""
        self._run = label
        self.tell(RunStarted(run=label))

    def tick(self, counts: LiveCounts) -> None:
        """A run goes on; called often. The counts go on being changed: the event has a copy."""
        self.tell(Tick(run=self._run, counts=replace(counts)))

    def verdict(self, label: RunLabel, verdict: RunVerdict) -> None:
        """A run ended with this verdict."""
        self.tell(RunSealed(run=label, verdict=verdict))
