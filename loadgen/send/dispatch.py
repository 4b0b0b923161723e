"""The open-loop dispatcher: sends each request at its own instant, whatever the server does, and knows when to stop.

Theory of operation. Everything happens in callbacks of one clock; nothing here awaits. `_wake` runs at the next instant
that matters: the next arrival, a time-out, the moment an undecided request becomes a certain miss, the end of the
window, the horizon. It releases every request that is due by then (late ones at once, none is skipped or moved), books
what has expired, lends the rest of the gap to the body ring, and arms the next wake-up at an absolute instant.
Responses come back through `ended`, from the transport.

    scheduled → released → (waiting for a slot, only with max_concurrency) → on the wire → ended

The load stays on after the window until each request of the cohort is decided: ended, or a certain miss (`decide`); and
longer, with `drain`, until so few of these are unanswered that they cannot hide too many errors. Then, or at the
horizon, an early FAIL or the user's wish, the dispatcher stops: what is in flight is cancelled, `censored` in the
cohort and `aborted` outside it.

∫N(t)dt, with N(t) the requests scheduled by t and not ended, is kept live: at every change at instant t the area grows
by N·(t − t_last). The sum telescopes to Σ(ended − scheduled) whatever the order of the changes, which is what the
conservation gate holds against the records; a request that was lost or counted twice breaks it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import wraps
from heapq import heappop, heappush
from typing import Any, Concatenate, Final, ParamSpec

import numpy as np

from analysis.schema import ABSENT, ERRORS
from loadgen.plan.types import NS, Int64s, RunPlan
from loadgen.send.active import ActiveRequest, BodySource, Held, Transport
from loadgen.send.api import LiveCounts, SendOptions
from loadgen.send.clock import Clock, Timer
from loadgen.send.cohort import Cohort
from loadgen.send.decide import LiveBounds
from loadgen.send.openai import HttpEnd, outcome_of
from loadgen.send.pacing import NEVER_NS, Departure, pacer_of, plain
from loadgen.send.routing import router_of
from loadgen.send.table import Tables

__all__ = ["Dispatcher", "guarded"]

P = ParamSpec("P")

_SLOT_NS: Final = 10_000_000  # time-outs and certain misses that fall into one such slot share a wake-up
_FILL_LEAST_NS: Final = 300_000  # a body has to be encoded some time: a busy loop must not starve the ring
_FILL_MOST_NS: Final = 2_000_000  # the event loop is never away for longer
_FILL_MARGIN_NS: Final = 500_000  # before the next arrival
_HAND_OVER_NS: Final = 100_000_000  # the longest that the network is given for what was released at the stop
_HAND_OVER_STEP_NS: Final = 1_000_000


def guarded(callback: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Keep an exception that would end in the event loop's log, and have the run end with it."""

    @wraps(callback)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(self, *args, **kwargs)
        except Exception as error:
            self.failure = self.failure or error
            self._on_stopped()

    return call


class Dispatcher:
    """Drives one run from `start` to the call of `on_stopped`."""

    def __init__(
        self,
        *,
        plan: RunPlan,
        bodies: BodySource,
        transport: Transport,
        clock: Clock,
        options: SendOptions,
        tables: Tables,
        targets: int,
        on_stopped: Callable[[], None],
        indices: Int64s | None = None,
        governed: bool = False,
    ) -> None:
        """`indices`: the requests of this worker, increasing; all of them by default.

        `governed`: the load ends at the instant that `stop_at` is given, and no earlier.
        """
        chosen = np.arange(len(plan)) if indices is None else indices
        self._pacer = pacer_of(options.pacing, plan, chosen, bodies)
        self._input = plain(plan.input_tokens)
        self._output = plain(plan.output_tokens)
        self._prefix = plain(plan.prefix_tokens)
        self._bodies = bodies
        self._transport = transport
        self._clock = clock
        self._options = options
        self.tables = tables
        self._router = router_of(options.routing, targets=targets, requests=len(plan), root_seed=plan.root_seed)
        self._unsent = 0 if targets == 1 else ABSENT  # the target of what never goes on the wire
        self._on_stopped = on_stopped
        self._forced = plan.format.stop == "forced"
        self._bounds = LiveBounds(options.slo)
        self._timeout_ns = round(options.timeout_s * NS)
        self._cap = options.max_concurrency
        self._window_end_ns = plan.window.end_ns
        self._horizon_ns = plan.window.horizon_ns
        self._governed = governed
        self._limit_ns = self._horizon_ns if governed else NEVER_NS  # the load ends then: nothing later is released

        self._in_flight: dict[int, ActiveRequest] = {}  # released and not ended
        self._waiting: deque[ActiveRequest] = deque()  # for a slot
        self._on_wire = 0
        self._timeouts: deque[ActiveRequest] = deque()  # in order of scheduled instants, so in order of time-outs
        self._doubtful: list[tuple[int, int, ActiveRequest]] = []  # heap: by the next certain-miss instant
        self._timer: Timer | None = None
        self._area = 0  # ns·requests
        self._area_at_ns = 0
        self._held = Held()
        self._lost = 0  # connections that broke with a request in flight

        self.live = LiveCounts()
        at_ns = plan.schedule.at_ns[chosen]
        due = int(np.count_nonzero((at_ns >= plan.window.warmup_ns) & (at_ns < plan.window.end_ns)))
        known = due if self._pacer.cohort_known else None
        self.cohort = Cohort(window=plan.window, options=options, live=self.live, due=known)
        self.peak_in_flight = 0
        self.stop_ns = -1
        self._stopping = False
        self.target_died = False
        self.sent = 0
        self.failure: Exception | None = None  # of ours, in a callback: the run is worth nothing

    @property
    def due(self) -> int:
        """Requests released so far; one that waits for another's end is not due."""
        return self.live.due

    @property
    def area_s(self) -> float:
        """∫N(t)dt over [0, stop], request-seconds."""
        return self._area / NS

    def counts(self) -> LiveCounts:
        """The counters for a progress display."""
        self.live.elapsed_ns = self._clock.now_ns()
        self.live.sent = self.due - len(self._waiting)
        return self.live

    def start(self) -> None:
        """Begin at the clock's t0."""
        if self._governed:
            self._clock.call_at(self._limit_ns, self._stop_at_limit)
        self._wake()

    def stop_at(self, at_ns: int) -> None:
        """Stop the load at an instant, or now if that has passed; where the load would end before it, nothing changes.

        Processes that share a plan stop at one instant by it, so that their requests add up to one run's.
        """
        at_ns = max(at_ns, self._clock.now_ns() + 1)
        if at_ns < self._limit_ns and self.stop_ns < 0:
            self._limit_ns = at_ns
            self._clock.call_at(at_ns, self._stop_at_limit)

    @guarded
    def _stop_at_limit(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the load now and cancel what is in flight; a second call does nothing.

        What was released only now is handed to the network first, where the transport has to be given a moment for
        that: `on_stopped` is called when all is over.
        """
        if self.stop_ns >= 0 or self._stopping:
            return
        self._stopping = True
        for active in list(self._in_flight.values()):
            self._caught_up(active)  # what ended before the stop did end
        now = self._clock.now_ns()
        if self._pacer.at_planned_instants:
            self._release(self._pacer.due(min(now, self._limit_ns - 1)))  # nothing due before the stop stays unsent
        self.stop_ns = min(now + 1, self._limit_ns)
        if self._timer is not None:
            self._timer.cancel()
        self._count_area(self.stop_ns, 0)
        self._cancel_all()

    @guarded
    def _cancel_all(self) -> None:
        """Cancel what is in flight, once the network has been asked to take all that should be on it."""
        now = self._clock.now_ns()
        if now < self.stop_ns + _HAND_OVER_NS and not all(
            active.handed_over or (self._cap is not None and active.admitted_ns < 0)
            for active in self._in_flight.values()
        ):
            self._clock.call_at(now + _HAND_OVER_STEP_NS, self._cancel_all)
            return
        for active in list(self._in_flight.values()):
            self._transport.cancel(active)
            cancelled_ns = max(self._clock.now_ns(), self.stop_ns)
            if active.cohort and not active.certain_miss:
                active.certain_miss = self._bounds.broken(active, cancelled_ns)
            self._conclude(active, "cancelled", cancelled_ns, "cancelled when the load stopped")
        self.live.in_flight = 0
        self._on_stopped()

    @guarded
    def ended(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        """A transport reports the end of an active request."""
        if active.index not in self._in_flight:
            return
        if self.stop_ns < 0:
            self._count_area(at_ns, -1)
            self._router.left(active.target)
            self._leave_wire(1)
        self._conclude(active, end, at_ns, error)
        if self.stop_ns < 0 and self._over(self._clock.now_ns()):
            self.stop()

    def _over(self, now_ns: int) -> bool:
        return not self._governed and self.cohort.over(now_ns)

    @guarded
    def _wake(self) -> None:
        self._timer = None
        now = self._clock.now_ns()
        self._release(self._pacer.due(min(now, self._limit_ns - 1)))
        self._expire(now)
        if self.stop_ns >= 0:
            return
        if self._over(now):
            self.stop()
            return
        gap = self._pacer.next_ns() - self._clock.now_ns() - _FILL_MARGIN_NS
        self._bodies.fill(now, max(min(gap, _FILL_MOST_NS), _FILL_LEAST_NS))
        self._arm()

    def _arm(self) -> None:
        deadlines = [self._doubtful[0][0] + 1 if self._doubtful else NEVER_NS]
        while self._timeouts and self._timeouts[0].end:
            self._timeouts.popleft()
        if self._timeouts:
            deadlines.append(self._timeouts[0].scheduled_ns + self._timeout_ns)
        wake_ns = -(-min(deadlines) // _SLOT_NS) * _SLOT_NS
        if self._clock.now_ns() < self._window_end_ns:
            wake_ns = min(wake_ns, self._window_end_ns)
        self._timer = self._clock.call_at(min(wake_ns, self._pacer.next_ns(), self._horizon_ns), self._wake)

    def _release(self, departures: Iterable[Departure]) -> None:
        for index, scheduled_ns, body in departures:
            cohort = self.cohort.has(scheduled_ns)
            active = ActiveRequest(index, scheduled_ns, target=self._unsent, cohort=cohort, together=self._held)
            active.input_tokens_planned = self._input[index]
            active.output_tokens_planned = self._output[index]
            active.prefix_tokens_planned = self._prefix[index]
            active.body = body
            active.released_ns = self._clock.now_ns()
            self._count_area(scheduled_ns, +1)
            self._in_flight[index] = active
            self._timeouts.append(active)
            self.live.due += 1
            if cohort:
                self.cohort.released()
                if self._bounds.any:
                    heappush(self._doubtful, (self._bounds.next_ns(active, active.released_ns), index, active))
            if self._cap is None or self._on_wire < self._cap:
                self._enter_wire(active)
            else:
                self._waiting.append(active)

    @guarded
    def _release_freed(self) -> None:
        """Release what waited for the end of another request."""
        if self.stop_ns >= 0:
            return
        self._release(self._pacer.freed(self._clock.now_ns()))
        if self._timer is not None:  # what is new may have to be decided before the next arrival
            self._timer.cancel()
            self._arm()

    def _enter_wire(self, active: ActiveRequest) -> None:
        self._on_wire += 1
        self.peak_in_flight = max(self.peak_in_flight, self._on_wire)
        if self._cap is not None:
            active.admitted_ns = self._clock.now_ns()
        active.target = self._router.chosen(active.index)
        self._transport.start(active, self)

    def _leave_wire(self, count: int) -> None:
        self._on_wire -= count
        while self._waiting and self._cap is not None and self._on_wire < self._cap:
            active = self._waiting.popleft()
            if not active.end:  # it may have timed out in the queue
                self._enter_wire(active)

    def _expire(self, now_ns: int) -> None:
        """Book time-outs and certain misses."""
        freed = 0
        while self._timeouts and (self._timeouts[0].end or self._timeouts[0].scheduled_ns + self._timeout_ns <= now_ns):
            active = self._timeouts.popleft()
            if not self._caught_up(active):
                continue
            self._transport.cancel(active)
            self._count_area(now_ns, -1)
            if active.cohort and not active.certain_miss:
                active.certain_miss = self._bounds.broken(active, now_ns)
            if active.admitted_ns >= 0 or self._cap is None:
                freed += 1
                self._router.left(active.target)
            self._conclude(active, "timeout", now_ns, f"no end within {self._options.timeout_s:g} s of its instant")
        if freed:  # not before all have timed out: a slot is not for one that is about to
            self._leave_wire(freed)
        while self._doubtful and self._doubtful[0][0] < now_ns:
            _, index, active = heappop(self._doubtful)
            if not self._caught_up(active):
                continue
            active.certain_miss = self._bounds.broken(active, now_ns)
            if active.certain_miss:
                self.cohort.missed(active)
            else:  # a token came in the meantime, or only the end of the stream is missing
                next_ns = self._bounds.next_ns(active, now_ns)
                heappush(self._doubtful, (next_ns if next_ns >= now_ns else now_ns + _SLOT_NS, index, active))

    def _caught_up(self, active: ActiveRequest) -> bool:
        """Whether a request is still in flight once all that came of it has been read."""
        if active.lagging and not active.end:
            self._transport.catch_up(active)
        return not active.end

    def _conclude(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str) -> None:
        """Read the answer, find the outcome, write the row."""
        del self._in_flight[active.index]
        active.end, active.ended_ns = end, at_ns
        if active.handed_over or (self._cap is not None and active.admitted_ns < 0):
            self.sent += 1  # the client did its part: the network, or the modelled gateway, had it
        if not error and active.status != 200:
            error = active.refusal()
        answer = active.finish(end)
        if answer is not None and active.batched:
            answer.token_reads = ABSENT  # reads say nothing of how the server wrote
        forced = active.output_tokens_planned if self._forced else None
        outcome, text = outcome_of(answer, end=end, status=active.status, error=error, forced_tokens=forced)
        if end == "cancelled" and active.cohort:
            outcome = "censored"
        self._watch_target(outcome, error)
        live = self.live
        if outcome == "ok":
            live.ok += 1
        elif end != "cancelled":
            live.errors += 1
        good: bool | None = None
        if active.cohort and outcome != "censored":  # that is undecided, or was counted when its bound broke
            good = outcome == "ok" and answer is not None and self._bounds.met(active, answer)
        self.cohort.concluded(active, error=outcome in ERRORS, good=good)
        if end not in ("cancelled", "timeout"):
            active.certain_miss = ""  # said only of what we ended
        self.tables.add(active, outcome, text, answer)
        if self.stop_ns < 0 and self._pacer.ended(active.index):
            self._clock.call_at(self._clock.now_ns(), self._release_freed)  # not from within the end of another one

    def _watch_target(self, outcome: str, error: str) -> None:
        """A target that breaks connections in use and then refuses new ones has died."""
        if outcome in ("connection_lost", "truncated", "stream_error"):
            self._lost += 1
        elif outcome == "connect_error" and self._lost and "refused" in error.lower():
            self.target_died = True

    def _count_area(self, at_ns: int, change: int) -> None:
        live = self.live
        at_ns = min(at_ns, self._limit_ns)  # a process may be late to stop
        self._area += live.in_flight * (at_ns - self._area_at_ns)
        self._area_at_ns = at_ns
        live.in_flight += change
