"""What was seen of the idle target before or after a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Look"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the idle target; seconds. `odd` says what was not as it should be; empty if nothing was."""

    when: Literal["before", "after"]  # the run
    busy: float  # requests running or waiting at first
    idle_wait_s: float
    probe_s: float | None = None  # None: there was none
    probe_wait_s: float = 0.0  # until the probe was as quick as the first ones, or was given up
    first_probe_s: float | None = None
    odd: str = ""
