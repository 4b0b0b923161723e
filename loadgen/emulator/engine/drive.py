"""A plan served by the engine in virtual time: arrivals, time-outs and a gateway's slots between its passes.

Theory of operation. The clock is the end of the latest pass. Between two passes everything due by then is done, in the
order it would reach a server: time-outs, slots that they and completions freed, arrivals. Then the engine leaps, at
most to the next arrival or time-out. Under a gateway (`cap`) requests are sent as slots come free, in order of arrival.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from loadgen.emulator.engine.core import Engine, EngineFull, Sequence, Step
from loadgen.emulator.engine.trace import PassLog

__all__ = ["Drive"]


@dataclass(slots=True, kw_only=True)
class Drive:
    """One run of one engine; `run` fills the columns (one entry a request, ps)."""

    engine: Engine
    at_ps: list[int]
    sequences: list[Sequence]
    timeout_ps: int
    cap: int | None = None
    log: PassLog = field(init=False, default_factory=PassLog)
    sent_ps: list[int] = field(init=False)
    refused: bytearray = field(init=False)
    complete: bytearray = field(init=False)
    spans: list[list[tuple[int, int]]] = field(init=False)  # passes (from, to), from 1, each of a token
    _now_ps: int = field(init=False, default=0)
    _head: int = field(init=False, default=0)  # next to arrive
    _oldest: int = field(init=False, default=0)  # all before it are over
    _over: bytearray = field(init=False)
    _gateway: deque[int] = field(init=False, default_factory=deque)
    _inside: int = field(init=False, default=0)  # in the engine's hands

    def __post_init__(self) -> None:
        total = len(self.at_ps)
        self.sent_ps = [-1] * total
        self.refused, self.complete, self._over = bytearray(total), bytearray(total), bytearray(total)
        self.spans = [[] for _ in range(total)]

    def run(self, until: int) -> None:
        """Serve until the first `until` requests are over; later ones as far as that takes."""
        total = len(self.at_ps)
        while True:
            self._expire()
            self._arrive()
            if self._oldest >= until:
                return
            step = self.engine.leap(self._gap_ps())
            if step.steps:
                self._book(step)
            elif self._head < total:
                self._now_ps = self.at_ps[self._head]
            else:
                return

    def _gap_ps(self) -> int:
        """From now to the next arrival or time-out."""
        coming = self.at_ps[self._oldest] + self.timeout_ps
        if self._head < len(self.at_ps):
            coming = min(coming, self.at_ps[self._head])
        return coming - self._now_ps

    def _expire(self) -> None:
        while self._oldest < self._head:
            if not self._over[self._oldest]:
                if self.at_ps[self._oldest] + self.timeout_ps > self._now_ps:
                    return
                self._give_up(self._oldest)
            self._oldest += 1

    def _give_up(self, request: int) -> None:
        self._over[request] = 1
        if self.sent_ps[request] < 0:
            return
        sequence = self.sequences[request]
        if self.spans[request] and self.spans[request][-1][1] < 0:
            self._close_span(sequence, self.engine.steps)
        self.engine.cancel(sequence)
        self._freed(self.at_ps[request] + self.timeout_ps)

    def _arrive(self) -> None:
        """Release what is due."""
        while self._head < len(self.at_ps) and self.at_ps[self._head] <= self._now_ps:
            request = self._head
            self._head += 1
            if self.cap is None or self._inside < self.cap:
                self._send(request, self.at_ps[request])
            else:
                self._gateway.append(request)

    def _send(self, request: int, at_ps: int) -> None:
        self.sent_ps[request] = at_ps
        if self.at_ps[request] + self.timeout_ps <= self._now_ps:
            self._over[request] = 1  # it left before the engine looked
            return
        try:
            self.engine.add(self.sequences[request])
            self._inside += 1
        except EngineFull:
            self.refused[request] = self._over[request] = 1

    def _freed(self, at_ps: int) -> None:
        """A slot came free."""
        self._inside -= 1
        while self._gateway and self.cap is not None and self._inside < self.cap:
            request = self._gateway.popleft()
            if not self._over[request]:
                self._send(request, max(at_ps, self.at_ps[request]))

    def _book(self, step: Step) -> None:
        log = self.log
        if step.ends_ps is not None:
            log.uneven[len(log.passes)] = step.ends_ps
        log.start_ps.append(self._now_ps)
        log.passes.append(step.steps)
        log.base_ps.append(step.base_ps)
        log.slope_ps.append(step.slope_ps)
        self._now_ps += step.duration_ps
        done = self.engine.steps
        for sequence in step.preempted:
            self._close_span(sequence, done - step.steps)
        for sequence in step.first:
            self.spans[sequence.key].append((done, -1))
        for sequence in step.finished:
            request = sequence.key
            self._close_span(sequence, done)
            self._over[request] = self.complete[request] = 1
            self._freed(self._now_ps)

    def _close_span(self, sequence: Sequence, last: int) -> None:
        spans = self.spans[sequence.key]
        if spans and spans[-1][1] < 0:
            spans[-1] = (spans[-1][0], last)
