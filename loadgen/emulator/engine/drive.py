"""A plan served by the engine in virtual time: arrivals, time-outs and a gateway's slots between its passes.

Theory of operation. The clock is the end of the latest pass. Between two passes everything due by then is done, in the
order it would reach a server: time-outs, slots that they and completions freed, arrivals. Then the engine leaps, at
most to the next arrival or time-out. Under a gateway (`cap`) requests are sent as slots come free, in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.emulator.engine.core import Engine
from loadgen.emulator.engine.service_times import PassLog
from loadgen.emulator.engine.types import EngineFull, Sequence, Step

__all__ = ["Drive"]


@dataclass(slots=True, kw_only=True)
class Drive:
    """One run of one engine; `run` fills the columns, one entry a request.

    A request's tokens came out one a pass from `first_pass` to `last_pass` (from 1; 0: not yet), after the spans in
    `earlier`, each ended by a preemption. Sequences live only while the engine has them: millions of live objects
    would cost more in garbage collection than in scheduling.
    """

    engine: Engine
    at_ps: list[int]
    make: Callable[[int], Sequence]  # the sequence of a request, its key being that number
    timeout_ps: int
    cap: int | None = None
    log: PassLog = field(init=False, default_factory=PassLog)
    sent_ps: list[int] = field(init=False)
    refused: bytearray = field(init=False)
    complete: bytearray = field(init=False)
    first_pass: list[int] = field(init=False)
    last_pass: list[int] = field(init=False)
    earlier: dict[int, list[tuple[int, int]]] = field(init=False, default_factory=dict)
    cached_tokens: list[int] = field(init=False)
    _alive: dict[int, Sequence] = field(init=False, default_factory=dict)
    _now_ps: int = field(init=False, default=0)
    _over: bytearray = field(init=False)
    _gateway: deque[int] = field(init=False, default_factory=deque)
    _inside: int = field(init=False, default=0)  # in the engine's hands

    def __post_init__(self) -> None:
        total = len(self.at_ps)
        self.sent_ps = [-1] * total
        self.refused, self.complete, self._over = bytearray(total), bytearray(total), bytearray(total)
        self.first_pass, self.last_pass, self.cached_tokens = [0] * total, [0] * total, [0] * total

    def run(self, until: int) -> None:
        """Serve until the first `until` requests are over; later ones as far as that takes."""
        at_ps, timeout_ps, over, total = self.at_ps, self.timeout_ps, self._over, len(self.at_ps)
        leap, book = self.engine.leap, self._book
        oldest = head = now_ps = 0  # all before `oldest` are over; `head` is the next to arrive
        while True:
            while oldest < head and (over[oldest] or at_ps[oldest] + timeout_ps <= now_ps):
                if not over[oldest]:
                    self._give_up(oldest)
                oldest += 1
            while head < total and at_ps[head] <= now_ps:
                self._arrive(head)
                head += 1
            if oldest >= until:
                return
            coming_ps = at_ps[oldest] + timeout_ps
            if head < total and at_ps[head] < coming_ps:
                coming_ps = at_ps[head]
            step = leap(coming_ps - now_ps)
            if step.steps:
                now_ps += step.duration_ps
                book(step)
            elif head < total:
                self._now_ps = now_ps = at_ps[head]
            else:
                return

    def _give_up(self, request: int) -> None:
        self._over[request] = 1
        sequence = self._alive.pop(request, None)
        if sequence is not None:
            if self.first_pass[request]:
                self.last_pass[request] = self.engine.steps
            self.cached_tokens[request] = max(sequence.cached_tokens, 0)
            self.engine.cancel(sequence)
            self._freed(self.at_ps[request] + self.timeout_ps)

    def _arrive(self, request: int) -> None:
        if self.cap is None or self._inside < self.cap:
            self._send(request, self.at_ps[request])
        else:
            self._gateway.append(request)

    def _send(self, request: int, at_ps: int) -> None:
        deadline_ps = self.at_ps[request] + self.timeout_ps
        if at_ps < deadline_ps:
            self.sent_ps[request] = at_ps
        if deadline_ps <= self._now_ps:
            self._over[request] = 1  # it left before the engine looked
            return
        sequence = self.make(request)
        try:
            self.engine.add(sequence)
        except EngineFull:
            self.refused[request] = self._over[request] = 1
            return
        self._alive[request] = sequence
        self._inside += 1

    def _freed(self, at_ps: int) -> None:
        """A slot came free."""
        self._inside -= 1
        while self._gateway and self.cap is not None and self._inside < self.cap:
            request = self._gateway.popleft()
            if not self._over[request]:
                self._send(request, max(at_ps, self.at_ps[request]))

    def _book(self, step: Step) -> None:
        log, done, now_ps = self.log, self.engine.steps, self._now_ps
        if step.ends_ps is not None:
            log.uneven[len(log.passes)] = step.ends_ps
        log.start_ps.append(now_ps)
        log.passes.append(step.steps)
        log.base_ps.append(step.base_ps)
        log.slope_ps.append(step.slope_ps)
        self._now_ps = now_ps + step.duration_ps
        for sequence in step.preempted:
            request = sequence.key
            if self.first_pass[request]:
                self.earlier.setdefault(request, []).append((self.first_pass[request], done - step.steps))
                self.first_pass[request] = 0
        for sequence in step.first:
            self.first_pass[sequence.key] = done
        for sequence in step.finished:
            request = sequence.key
            self.last_pass[request] = done
            self.cached_tokens[request] = sequence.cached_tokens
            self._over[request] = self.complete[request] = 1
            del self._alive[request]
            self._freed(self._now_ps)
