"""What is said while work is on: one line for what passes, and no end of the work where nobody reads."""

from __future__ import annotations

from analysis.text import Passing
from loadgen.cli.display import Lines
from loadgen.experiment.progress import Progress


def test_waiting_is_one_line_every_ten_seconds_where_a_line_cannot_be_replaced() -> None:
    said: list[str] = []
    now = 0.0
    progress = Progress(Lines(write=said.append, clock=lambda: now).show)
    for half_seconds in range(50):
        now = half_seconds / 2
        progress.note(Passing(f"waiting ({now:.0f} s)"))
    progress.note("ready")
    assert said == ["waiting (0 s)", "waiting (10 s)", "waiting (20 s)", "ready"]
