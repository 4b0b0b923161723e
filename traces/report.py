"""What reading a trace found: how many rows, which were left out and why, and what a wrong unit would show in."""

from __future__ import annotations

from dataclasses import dataclass, field

from traces.decode import REASONS

__all__ = ["ReadReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """The account of one read: `rows == kept + sum(dropped.values())`, always.

    `clipped` rows are kept ones with a count put right, by reason. `inversions` are rows earlier than the row before
    them in the file; they were sorted in. `ties` are arrivals at the same instant as the one before. `resolution_ns` is
    the largest step that divides every offset. `origin_ns` is the first arrival on the file's own clock.
    """

    path: str
    format: str
    clock: str
    rows: int
    kept: int
    dropped: dict[str, int]
    clipped: dict[str, int] = field(default_factory=dict)
    inversions: int
    ties: int
    span_s: float
    rate: float
    resolution_ns: int
    origin_ns: int
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report for a person, one fact a line; span and rate come first, so that a wrong unit is seen."""
        shown = [
            f"format {self.format} (clock: {self.clock})",
            f"span {self.span_s:.6f} s, rate {self.rate:.4f} requests/s",
            f"rows {self.rows} = {self.kept} kept" + "".join(f" + {n} {why}" for why, n in self.dropped.items()),
        ]
        shown += [f"dropped {n}: {REASONS[why]}" for why, n in self.dropped.items()]
        shown += [f"clipped {n}: {REASONS[why]}" for why, n in self.clipped.items()]
        shown.append(f"inversions {self.inversions}, ties {self.ties}, clock resolution {self.resolution_ns} ns")
        return shown + list(self.notes)
