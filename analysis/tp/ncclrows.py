"""What an output of nccl-tests' `all_reduce_perf` holds: sizes, their times, and what speaks against them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from analysis.tp.allreduce import Microbenchmark, joined

__all__ = ["BadNccl", "NcclRow", "NcclRun", "Side"]

_FIRST_TYPES: Final = ("bfloat16", "half", "float16")  # what servers reduce


class BadNccl(ValueError):
    """No all_reduce_perf output, or one that cannot be used; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One half of a row, out-of-place or in-place. `wrong`: `None` where results were not checked or not counted."""

    took_s: float
    wrong: int | None
    p99_s: float | None  # of single iterations, with -I
    spread: float | None  # standard deviation of single iterations / their mean, with -I


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRow:
    """One measured size; a side that was not measured is `None`."""

    line: int
    size_bytes: int
    element: str  # as nccl-tests name it: float, bfloat16, half, …
    operation: str
    out_of_place: Side | None
    in_place: Side | None

    @property
    def wrong(self) -> int:
        """Elements with a wrong result."""
        return sum(side.wrong or 0 for side in (self.out_of_place, self.in_place) if side is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRun:
    """What a file holds. `warnings` are for whoever uses its times; `wrong`: results out of bounds, in all rows."""

    ranks: int | None
    rows: tuple[NcclRow, ...]
    columns: tuple[str, ...]
    warnings: tuple[str, ...]
    wrong: int

    def measured(self, *, in_place: bool = False) -> Microbenchmark:
        """Times by size, of one element type and operation: those of a server where there are several.

        Where a row lacks that side, its other side counts, and a warning says so. Raises `BadNccl` for times of wrong
        results.
        """
        if self.wrong:
            first = next((row for row in self.rows if row.wrong), None)
            where = "" if first is None else f"line {first.line}: "
            raise BadNccl(f"{where}{self.wrong} wrong results: repair the links first, then measure again")
        pairs: list[Microbenchmark] = []
        others = 0
        for row in self.used():
            asked, other = (row.in_place, row.out_of_place) if in_place else (row.out_of_place, row.in_place)
            others += asked is None
            if (side := asked or other) is not None:
                pairs.append(Microbenchmark(ranks=self.ranks, times=((row.size_bytes, side.took_s),)))
        names = ("in-place", "out-of-place") if in_place else ("out-of-place", "in-place")
        lacking = (f"{others} rows have no {names[0]} time: the {names[1]} one counts",) if others else ()
        return replace(joined(pairs), warnings=(*self.warnings, *lacking))

    def used(self) -> tuple[NcclRow, ...]:
        """The rows of one element type and operation."""
        kinds = sorted({(row.operation != "sum", _order(row.element), row.operation) for row in self.rows})
        _, (_, element), operation = kinds[0]
        return tuple(row for row in self.rows if (row.element, row.operation) == (element, operation))


def _order(element: str) -> tuple[int, str]:
    return (_FIRST_TYPES.index(element) if element in _FIRST_TYPES else len(_FIRST_TYPES), element)
