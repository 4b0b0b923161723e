"""What is decided of the measured window's requests so far, and whether that lets the load stop."""

from __future__ import annotations

from loadgen.plan.types import Window
from loadgen.send.active import ActiveRequest
from loadgen.send.api import LiveCounts, SendOptions

__all__ = ["Cohort"]


class Cohort:
    """The requests scheduled in the measured window. `due` is how many there are: known at first, or counted."""

    def __init__(self, *, window: Window, options: SendOptions, live: LiveCounts, due: int | None) -> None:
        self._window = window
        self._options = options
        self._live = live
        self._known = due is not None
        self._unanswered = 0  # certain misses that are still in flight
        self._errors = 0
        self.due = due or 0
        self.undecided = 0
        self.stopped_early = False

    def has(self, scheduled_ns: int) -> bool:
        """Whether a request of that instant belongs to it."""
        return self._window.warmup_ns <= scheduled_ns < self._window.end_ns

    def released(self) -> None:
        """One of its requests left."""
        self.undecided += 1
        self.due += not self._known

    def missed(self, active: ActiveRequest) -> None:
        """A request in flight became a certain miss."""
        self._decide(active, miss=True)
        self._unanswered += 1

    def concluded(self, active: ActiveRequest, *, error: bool, good: bool | None) -> None:
        """A request ended; `good` is its indicator, `None` where it stays undecided or was counted as a miss before."""
        self._unanswered -= active.decided
        self._errors += active.cohort and error
        if active.cohort and good is not None:
            self._decide(active, miss=not good)

    def over(self, now_ns: int) -> bool:
        """Whether the load may stop: all is decided and answered enough, or the run can no longer pass."""
        if now_ns >= self._window.horizon_ns:
            return True
        if now_ns >= self._window.end_ns and self.undecided == 0 and self._drained():
            return True
        allowed = self._options.early_fail_misses
        if allowed is not None and self._live.cohort_misses > allowed and now_ns >= self._options.early_fail_after_ns:
            self.stopped_early = True
        return self.stopped_early

    def _drained(self) -> bool:
        drain, errors = self._options.drain, self._errors
        if drain is None or self._live.cohort_misses > drain.misses:
            return True
        return errors + self._unanswered <= drain.unanswered or errors > drain.unanswered

    def _decide(self, active: ActiveRequest, *, miss: bool) -> None:
        if active.decided:
            return
        active.decided = True
        self.undecided -= 1
        self._live.cohort_decided += 1
        self._live.cohort_misses += miss
