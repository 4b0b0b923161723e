"""What is decided of the measured window's requests so far, and whether that lets the load stop."""

from __future__ import annotations

from typing import Literal

from loadgen.plan.types import Window
from loadgen.send.active import ActiveRequest
from loadgen.send.api import LiveCounts, SendOptions, Standing

__all__ = ["Cohort", "why_over"]


def why_over(
    standing: Standing, now_ns: int, window: Window, options: SendOptions
) -> Literal["", "horizon", "decided", "early fail"]:
    """Why the load may stop: the schedule ends, all is decided and answered enough, or the run can no longer pass."""
    if now_ns >= window.horizon_ns:
        return "horizon"
    if now_ns >= window.end_ns and standing.undecided == 0 and _drained(standing, options):
        return "decided"
    allowed = options.early_fail_misses
    if allowed is not None and standing.misses > allowed and now_ns >= options.early_fail_after_ns:
        return "early fail"
    return ""


def _drained(standing: Standing, options: SendOptions) -> bool:
    drain, errors = options.drain, standing.errors
    if drain is None or standing.misses > drain.misses:
        return True
    return errors + standing.unanswered <= drain.unanswered or errors > drain.unanswered


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
        self.stopped_early = False

    def has(self, scheduled_ns: int) -> bool:
        """Whether a request of that instant belongs to it."""
        return self._window.warmup_ns <= scheduled_ns < self._window.end_ns

    def released(self) -> None:
        """One of its requests left."""
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

    def standing(self) -> Standing:
        """What is decided so far."""
        return Standing(
            undecided=self.due - self._live.cohort_decided,
            misses=self._live.cohort_misses,
            errors=self._errors,
            unanswered=self._unanswered,
        )

    def over(self, now_ns: int) -> bool:
        """Whether the load may stop (`why_over`)."""
        why = why_over(self.standing(), now_ns, self._window, self._options)
        self.stopped_early = why == "early fail"
        return why != ""

    def _decide(self, active: ActiveRequest, *, miss: bool) -> None:
        if active.decided:
            return
        active.decided = True
        self._live.cohort_decided += 1
        self._live.cohort_misses += miss
