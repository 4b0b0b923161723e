"""Out-of-place times of an `all_reduce_perf` output of nccl-tests, found by the names of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from analysis.tp.chain import Microbenchmark

__all__ = ["BadMicrobenchmark", "read_microbenchmark"]

_RANK: Final = re.compile(r"#\s+Rank\s+\d+\b")


class BadMicrobenchmark(ValueError):
    """No all_reduce_perf output, or one with wrong results; one line."""


def read_microbenchmark(lines: Iterable[str]) -> Microbenchmark:
    """The measured sizes, ascending. Raises `BadMicrobenchmark`."""
    header: list[str] = []
    ranks, times = 0, dict[int, float]()
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if line.startswith("#"):
            ranks += _RANK.match(line) is not None
            if "size" in cells and "time" in cells:
                header = cells[cells.index("size") :]
        elif header and cells and cells[0].isdecimal() and len(cells) > header.index("time"):
            try:
                size, took_us = int(cells[0][:20]), float(cells[header.index("time")])
                wrong = cells[header.index("#wrong")] if "#wrong" in header else "0"
            except (ValueError, IndexError):
                raise BadMicrobenchmark(f"line {number} is no row of nccl-tests: run all_reduce_perf again") from None
            if wrong not in ("0", "N/A"):
                raise BadMicrobenchmark(f"line {number}: {wrong[:20]} wrong results: repair the links first")
            if size > 0 and took_us > 0:
                times[size] = took_us * 1e-6
    if not times:
        raise BadMicrobenchmark("no rows of sizes and times in it: pass the output of nccl-tests' all_reduce_perf")
    return Microbenchmark(ranks=ranks or None, times=tuple(sorted(times.items())))
