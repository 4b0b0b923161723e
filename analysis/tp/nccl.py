"""Output of nccl-tests' `all_reduce_perf`, of any version since 2.0: found by the names of its columns.

Layouts differ: with `error` (largest deviation) or `#wrong` (a count) or neither, with or without `root`, with four
more columns of single iterations (`-I`: i_min, i_max, i_p99, i_cv%), of repeatability (`#bitdiff`) or of tuning, with a
time stamp at the end, with in-place columns alone, with header lines that begin with # or do not, with prefixes that
mpirun, prterun or srun put before each line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from analysis.text import bounded
from analysis.tp.ncclrows import BadNccl, NcclRow, NcclRun, Side

__all__ = ["BadNccl", "NcclRow", "NcclRun", "read_nccl"]

_PREFIX: Final = re.compile(r"\[(?:[^\[\]\s]{1,200}@)?\d+(?:,\d+)?\](?:<std(?:out|err)>)?:?\s?|\d+:\s")
_RANK: Final = re.compile(r"#?\s*Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s.*\bdevice\b")
_SETTINGS: Final = re.compile(r"nThread (\d{1,6}) nGpus (\d{1,6}) ")
_TEST: Final = re.compile(r"Collective test starting: (\S+)")
_FAILED: Final = re.compile(r"(?:NCCL|CUDA|Cuda) failure|Test failure|Invalid number of GPUs|not compiled with")
_WRONG: Final = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")
_WARNING: Final = re.compile(
    r"NCCL WARN .*|Reducing maxBytes .*|Avg bus bandwidth\s*:.*FAILED|#\s*error:\s*\S.*|agg iters: (?!1\b)\d+"
    r"|Bitwise mismatches\s*:.*FAILED|Blocking Enabled.*"  # -z: times with a wait after each call
)
_UNITS_S: Final = {"(us)": 1e-6, "(ms)": 1e-3, "(s)": 1.0, "(ns)": 1e-9}
_CLEAR_GB_PER_S: Final = 5.0  # from which two decimals tell busbw/algbw
_LIKELY: Final = 1e-3, 1e12  # times of a collective, in the file's unit
_MOST_BYTES: Final = 1 << 50  # of one collective
MOST_ROWS: Final = 1 << 16
_MOST_CHARACTERS: Final = 2000  # of a line; a row has 300 at most


def read_nccl(lines: Iterable[str]) -> NcclRun:
    """The rows of a file. Raises `BadNccl` where the test failed, nothing was measured, or ranks are mixed."""
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        reader.take(number, line[:_MOST_CHARACTERS].rstrip("\r\n"))
    return reader.finish()


@dataclass(slots=True)
class _Table:
    """The columns of a header line: where each side begins, and how long it is."""

    names: list[str]
    starts: list[int]
    units_s: float = 1e-6

    @property
    def lead(self) -> int:
        return self.starts[0]

    @property
    def stamp(self) -> bool:
        return self.names[-1] == "timestamp"

    @property
    def width(self) -> int:
        """Cells of one side."""
        end = self.starts[1] if len(self.starts) > 1 else len(self.names) - self.stamp
        return end - self.starts[0]


@dataclass(slots=True)
class _Reader:
    table: _Table | None = None
    per_process: int = 0  # threads × GPUs
    listed: dict[int, set[int]] = field(default_factory=dict)  # ranks by group
    counts: set[int] = field(default_factory=set)  # of ranks, by the lists
    least: set[int] = field(default_factory=set)  # where ranks are not listed: those of one process
    rows: list[NcclRow] = field(default_factory=list)
    broken: int = 0
    first_broken: int = 0  # line
    ratios: list[tuple[int, float]] = field(default_factory=list)  # (line, busbw / algbw)
    warnings: dict[str, int] = field(default_factory=dict)
    warned: int = 0
    out_of_bounds: int = 0
    footer: bool = False

    def take(self, number: int, line: str) -> None:
        if (prefix := _PREFIX.match(line)) is not None:
            line = line[prefix.end() :]
        if number == 1 and line.lstrip("\ufeff").startswith("{"):
            raise BadNccl("JSON (of nccl-tests -J, perhaps): pass the text that all_reduce_perf prints")
        if _FAILED.search(line) and "NCCL INFO" not in line:
            raise BadNccl(f"line {number}: {bounded(line.strip(), 100)}: the test failed; repair that and run it again")
        cells = line.replace("#", " # ", 1).split() if line.startswith("#") else line.split()
        cells = cells[1:] if cells[:1] == ["#"] else cells
        if not cells:
            return
        if cells[0] in ("size", "bytes") and "algbw" in cells:
            self._header(number, cells)
        elif cells[0] == "(B)" and self.table is not None:
            self._units(number, cells)
        elif cells[0].isdecimal() and not line.startswith("#"):
            self._row(number, cells)
        else:
            self._other(number, line)

    def _header(self, number: int, cells: list[str]) -> None:
        if "cputime" in cells:
            raise BadNccl(f"line {number}: CPU times of the launch (-C): run all_reduce_perf without -C")
        starts = [at for at, name in enumerate(cells) if name == "time"]
        if not starts:
            raise BadNccl(f"line {number}: no column named time: pass the output of nccl-tests' all_reduce_perf")
        self.table = _Table(cells, starts)
        sizes = {len(ranks) for ranks in self.listed.values()}
        if len(sizes) > 1:
            raise BadNccl(f"line {number}: groups of {' and '.join(map(str, sorted(sizes)))} ranks: {_MIXED}")
        # a process lists its GPUs in 2 KB, so with many the list is cut and nThread × nGpus is larger
        if sizes:
            self.counts.add(max((*sizes, self.per_process)))
        elif self.per_process:
            self.least.add(self.per_process)

    def _units(self, number: int, cells: list[str]) -> None:
        assert self.table is not None
        unit = next((cell for cell in cells if cell in _UNITS_S), None)
        if unit is None or "(GB/s)" not in cells:
            raise BadNccl(f"line {number}: units {bounded(' '.join(cells), 60)}: expected (us) and (GB/s)")
        self.table.units_s = _UNITS_S[unit]

    def _row(self, number: int, cells: list[str]) -> None:
        table = self.table
        if table is None:
            return
        if len(self.rows) >= MOST_ROWS:
            raise BadNccl(f"line {number}: more than {MOST_ROWS} rows: pass the output of one run")
        names, width = table.names, table.width
        given = len(cells) - 2 * (table.stamp and len(cells) >= table.lead + width + 2)
        sides: tuple[Side | None, Side | None]
        try:
            if given == table.lead + width and len(table.starts) > 1:  # in-place alone: the other half is blank
                sides = (None, self._side(number, cells[table.lead : given]))
            elif given < len(names) - table.stamp:
                raise ValueError
            else:
                out_of_place, *rest = (self._side(number, cells[start : start + width]) for start in table.starts)
                sides = (out_of_place, rest[0] if rest else None)
            size = int(cells[0])
            if size > _MOST_BYTES:
                raise ValueError
        except (ValueError, OverflowError):
            self.broken += 1
            self.first_broken = self.first_broken or number
            return
        if size > 0 and any(sides):
            lead = dict(zip(names[: table.lead], cells, strict=False))
            self.rows.append(
                NcclRow(
                    line=number,
                    size_bytes=size,
                    element=bounded(lead.get("type", ""), 20),
                    operation=bounded(lead.get("redop", lead.get("op", "sum")), 20),
                    out_of_place=sides[0],
                    in_place=sides[1],
                )
            )

    def _side(self, number: int, cells: Sequence[str]) -> Side | None:
        """One half of a row; `None` for no time at all. Raises `ValueError` for what is no number, or no likely one."""
        assert self.table is not None
        start, width, unit_s = self.table.lead, self.table.width, self.table.units_s
        found = dict(zip(self.table.names[start : start + width], cells, strict=True))
        took = float(found["time"])
        if took == 0:
            return None
        least, most = _LIKELY
        wrong = 0 if (counted := found.get("#wrong", "N/A")) == "N/A" else int(float(counted))
        p99, spread = float(found.get("i_p99", "1")), float(found.get("i_cv%", "0"))
        if not (least <= took <= most and least <= p99 <= most and 0 <= spread <= most and wrong >= 0):
            raise ValueError
        algbw, busbw = float(found.get("algbw", "0")), float(found.get("busbw", "0"))
        if algbw >= _CLEAR_GB_PER_S:
            self.ratios.append((number, busbw / algbw))
        return Side(
            took_s=took * unit_s,
            wrong=None if counted == "N/A" else wrong,
            p99_s=p99 * unit_s if "i_p99" in found else None,
            spread=spread / 100 if "i_cv%" in found else None,
        )

    def _other(self, number: int, line: str) -> None:
        if (settings := _SETTINGS.search(line)) is not None:
            if self.table is not None:  # another run in the same file
                self.table, self.listed = None, {}
            self.per_process = int(settings[1]) * int(settings[2])
        if (rank := _RANK.match(line)) is not None:
            group = self.listed.setdefault(int((rank[2] or "0")[:9]), set())
            if int(rank[1][:9]) in group:
                raise BadNccl(
                    f"line {number}: rank {rank[1][:9]} is listed twice, so each process measured alone: build "
                    "nccl-tests with MPI=1, or run one process with -g"
                )
            group.add(int(rank[1][:9]))
        if (test := _TEST.search(line)) is not None and "all_reduce" not in test[1]:
            raise BadNccl(f"line {number}: output of {bounded(test[1], 40)}: run all_reduce_perf")
        if (wrong := _WRONG.search(line)) is not None:
            self.footer, self.out_of_bounds = True, self.out_of_bounds + int(wrong[1])
        if (warning := _WARNING.search(line)) is not None:
            self.warned += 1
            if len(self.warnings) < 5:
                self.warnings.setdefault(bounded(warning[0].strip("# "), 100), number)

    def finish(self) -> NcclRun:
        if self.table is None and not self.rows:
            raise BadNccl("no rows of sizes and times in it: pass the output of nccl-tests' all_reduce_perf as text")
        if not self.rows:
            cut = f": line {self.first_broken} is not a row" if self.broken else ""
            raise BadNccl(f"a header, but no rows of sizes and times{cut}: run all_reduce_perf again, to its end")
        if len(counts := self.counts | self.least) > 1:
            raise BadNccl(f"runs of {' and '.join(map(str, sorted(counts)))} ranks: {_MIXED}")
        operations = {row.operation for row in self.rows}
        if operations == {"none"}:
            raise BadNccl("its rows reduce nothing (redop none): run all_reduce_perf")
        ranks = self._ranks()
        warnings = [f"line {number}: {text}" for text, number in self.warnings.items()]
        if self.warned > len(self.warnings):
            warnings.append(f"{self.warned} warnings in all")
        if self.broken:
            rows = "1 row" if self.broken == 1 else f"{self.broken} rows"
            warnings.append(f"{rows} could not be read, the first in line {self.first_broken}")
        if not self.footer:
            warnings.append("the closing lines of nccl-tests are missing: the run, or the copy, ended early")
        kinds = {(row.element, row.operation) for row in self.rows}
        run = NcclRun(
            ranks=ranks,
            rows=tuple(self.rows),
            columns=() if self.table is None else tuple(self.table.names),
            warnings=(),
            wrong=max(self.out_of_bounds, sum(row.wrong for row in self.rows)),
        )
        if len(kinds) > 1:
            used = run.used()[0]
            warnings.append(f"several element types or operations: {used.element} {used.operation} is used")
        return NcclRun(ranks=ranks, rows=run.rows, columns=run.columns, warnings=tuple(warnings), wrong=run.wrong)

    def _ranks(self) -> int | None:
        """p by the list of ranks, checked against busbw/algbw = 2(p−1)/p; by that ratio where there is no list.

        Without either it is what one process had, which is all there were unless MPI started more.
        """
        ranks = next(iter(self.counts), None)
        if ranks is None and self.ratios:
            ranks = _of_ratio(self.ratios[-1][1], next(iter(self.least), 1))
        elif ranks is None:
            ranks = next(iter(self.least), None)
        if ranks == 1:
            raise BadNccl("it was measured on 1 rank, which reduces nothing: run all_reduce_perf on p GPUs (-g p)")
        for number, ratio in self.ratios:
            if ranks is not None and abs(ratio - 2 * (ranks - 1) / ranks) > 0.02:
                raise BadNccl(
                    f"line {number}: busbw/algbw is {ratio:.2f}, not 2(p−1)/p = {2 * (ranks - 1) / ranks:.2f} of p = "
                    f"{ranks}: no all-reduce, or another number of ranks"
                )
        return ranks


def _of_ratio(ratio: float, per_process: int) -> int | None:
    """The p of busbw/algbw = 2(p−1)/p that is a multiple of a process's ranks; `None` where it cannot be told."""
    if abs(ratio - 2 * (per_process - 1) / per_process) <= 0.003:
        return per_process
    if not 0 <= ratio < 1.9:  # from p = 20 on, two decimals do not part p from p + 1
        return None
    guess = round(2 / (2 - ratio))
    return guess if guess % per_process == 0 else per_process


_MIXED: Final = "pass each number of ranks as its own file"
