"""How long requests are: input and output tokens, drawn apart from two laws or together from a file's rows.

Each request consumes four uniform numbers of the lengths stream whatever it does with them (input, output, row, prefix
group), turned into lengths by inverse distribution functions. So request i has the same lengths at every rate, and
changing the law of the outputs moves no input.

Attention work depends on the joint distribution (method, section 10), hence a file gives whole rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from scipy.special import ndtr, ndtri

from analysis.text import bounded
from loadgen.common.errors import UsageError
from loadgen.plan.types import Int64s

__all__ = ["MAX_TOKENS", "DrawnLengths", "LengthLaw", "LengthTable", "Lengths", "parse_law", "read_lengths"]

MAX_TOKENS: Final = 10_000_000
_UNIFORMS = 4
_DRAWN_AT_ONCE = 65_536  # requests, so that a long plan takes no more memory than its columns
_NUMBER = r"\d+(?:\.\d+)?"
_RANGE = r"(?P<low>\d+)\s*\.\.\s*(?P<high>\d+)"
_UNIFORM = re.compile(rf"uniform:\s*{_RANGE}", re.ASCII)
_BELL = re.compile(
    rf"(?P<kind>normal|lognormal):\s*(?P<centre>{_NUMBER})\s*,\s*(?P<spread>{_NUMBER})\s*(?:,\s*{_RANGE})?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLaw:
    """One length's law, tokens, both ends of its range included.

    `uniform` covers the range; `normal` (centre = mean, spread = standard deviation) and `lognormal` (centre = median,
    spread = σ of the logarithm) are cut to the range as conditional laws, so that no mass heaps up at the ends, and
    rounded. A range of one value is a fixed length.
    """

    kind: str
    low: int
    high: int
    centre: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MAX_TOKENS:
            raise ValueError(f"lengths {self.low}..{self.high} are not a range within 1..{MAX_TOKENS:,}")
        if self.kind == "lognormal" and self.centre <= 0:
            raise ValueError("a lognormal length needs a median above 0")
        if self.kind != "uniform":
            below, above = self._tails()
            if not above - below > 1e-9:
                raise ValueError(
                    f"{self.kind}:{self.centre:g},{self.spread:g} hardly ever falls in {self.low}..{self.high}"
                )

    def _tails(self) -> tuple[float, float]:
        """Probabilities below and up to the range, half a token wider on either side for the rounding."""
        edges = np.array([self.low - 0.5, self.high + 0.5])
        edges = np.log(edges / self.centre) if self.kind == "lognormal" else edges - self.centre
        if self.spread == 0:
            return float(edges[0] > 0), float(edges[1] > 0)
        below, above = ndtr(edges / self.spread)
        return float(below), float(above)

    def at(self, uniforms: npt.NDArray[np.float64]) -> Int64s:
        """Lengths at these quantiles in [0, 1), by the inverse distribution function."""
        if self.kind == "uniform":
            return self.low + np.floor(uniforms * (self.high - self.low + 1)).astype(np.int64)
        below, above = self._tails()
        # a quantile of 0 or 1 is infinite: stay inside, the clip below does the rest
        z = ndtri(np.clip(below + uniforms * (above - below), 1e-300, 1 - 2**-53))
        value = self.centre * np.exp(self.spread * z) if self.kind == "lognormal" else self.centre + self.spread * z
        lengths: Int64s = np.clip(np.rint(value), self.low, self.high).astype(np.int64)
        return lengths


def parse_law(text: str) -> LengthLaw:
    """A law from `1024`, `uniform:a..b`, `normal:mean,sd[,min..max]` or `lognormal:median,sigma[,min..max]`.

    Raises `ValueError`.
    """
    text = text.strip()
    if re.fullmatch(r"\d+", text, re.ASCII):
        return LengthLaw(kind="uniform", low=int(text), high=int(text))
    if match := _UNIFORM.fullmatch(text):
        return LengthLaw(kind="uniform", low=int(match["low"]), high=int(match["high"]))
    if match := _BELL.fullmatch(text):
        low, high = (int(match["low"]), int(match["high"])) if match["low"] else (1, MAX_TOKENS)
        centre, spread = float(match["centre"]), float(match["spread"])
        return LengthLaw(kind=match["kind"], low=low, high=high, centre=centre, spread=spread)
    raise ValueError(
        f"{text!r} is no length; write 1024, uniform:a..b, normal:mean,sd[,min..max] "
        "or lognormal:median,sigma[,min..max]"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthTable:
    """Observed rows to draw from with equal chances: int64 (rows, 3) of input, output, cached prefix tokens."""

    rows: Int64s

    @property
    def has_prefix(self) -> bool:
        """Whether any row shares a prefix."""
        return bool(np.any(self.rows[:, 2] > 0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnLengths:
    """The lengths of a run's requests, four columns of shape (n,), as `RunPlan` has them."""

    input_tokens: Int64s
    output_tokens: Int64s
    prefix_tokens: Int64s
    prefix_group: Int64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """Which lengths a workload draws.

    `shared_prefix` tokens of each input, or the row's own third number, come from one of `prefix_groups` common texts,
    the group being drawn with equal chances. The prefix is part of the input and leaves it at least one token of its
    own: a shorter input shares correspondingly less.
    """

    input: LengthLaw = field(default_factory=lambda: parse_law("1024"))
    output: LengthLaw = field(default_factory=lambda: parse_law("128"))
    table: LengthTable | None = None  # displaces input and output
    shared_prefix: int = 0
    prefix_groups: int = 1

    def __post_init__(self) -> None:
        if self.shared_prefix < 0 or self.prefix_groups < 1:
            raise ValueError("a shared prefix has 0 or more tokens, in 1 or more groups")
        if self.table is not None and self.table.has_prefix and self.shared_prefix:
            raise ValueError("the file of lengths has prefixes of its own: drop the shared prefix or that column")
        if self.shared_prefix >= self.input_max:
            raise ValueError(
                f"a shared prefix of {self.shared_prefix} tokens leaves inputs of at most {self.input_max} nothing of "
                "their own: lengthen the input or shorten the prefix"
            )

    @property
    def input_max(self) -> int:
        """Largest input that can be drawn, tokens."""
        return self.input.high if self.table is None else int(self.table.rows[:, 0].max())

    @property
    def output_max(self) -> int:
        """Largest output that can be drawn, tokens: O_max of the default timeout."""
        return self.output.high if self.table is None else int(self.table.rows[:, 1].max())

    @property
    def total_max(self) -> int:
        """Largest sum of input and output that can be drawn, tokens."""
        if self.table is not None:
            return int(self.table.rows[:, :2].sum(axis=1).max())
        return self.input.high + self.output.high

    def draw(self, rng: np.random.Generator, count: int) -> DrawnLengths:
        """Lengths of the first `count` requests; a longer draw begins with a shorter one."""
        drawn = np.empty((4, count), dtype=np.int64)
        for start in range(0, count, _DRAWN_AT_ONCE):
            part = slice(start, min(start + _DRAWN_AT_ONCE, count))
            drawn[:, part] = self._drawn(rng.random((part.stop - start, _UNIFORMS)))
        inputs, outputs, prefix, group = drawn
        return DrawnLengths(input_tokens=inputs, output_tokens=outputs, prefix_tokens=prefix, prefix_group=group)

    def _drawn(self, uniforms: npt.NDArray[np.float64]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        if self.table is None:
            inputs, outputs = self.input.at(uniforms[:, 0]), self.output.at(uniforms[:, 1])
            prefix = np.full(len(uniforms), self.shared_prefix, dtype=np.int64)
        else:
            rows = self.table.rows[np.floor(uniforms[:, 2] * len(self.table.rows)).astype(np.int64)]
            inputs, outputs, prefix = rows[:, 0], rows[:, 1], rows[:, 2] + self.shared_prefix
        prefix = np.minimum(prefix, inputs - 1)
        group = np.floor(uniforms[:, 3] * self.prefix_groups).astype(np.int64)
        group[prefix == 0] = -1
        return inputs, outputs, prefix, group


_COLUMNS = {
    "input": 0, "input_tokens": 0, "output": 1, "output_tokens": 1,
    "cached_prefix": 2, "cached_prefix_tokens": 2, "prefix": 2, "prefix_tokens": 2,
}  # fmt: skip
_NAMES = ("input", "output", "cached prefix")


def read_lengths(path: Path | str) -> LengthTable:
    """Rows of (input, output[, cached prefix]) from CSV, with or without a header, or from JSON lines (`.jsonl`).

    A JSON line is a list, or an object with the header's names: `input`, `output`, `cached_prefix`, each also with
    `_tokens`. Empty lines are passed over. Raises `UsageError` naming file and line.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a CSV or JSONL file of lengths") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}); give a CSV or JSONL file of lengths") from None
    read = _jsonl_rows if path.suffix.lower() in {".jsonl", ".ndjson"} else _csv_rows
    rows = []
    for line, cells in read(text, path):
        rows.append(_row(cells, f"{path}:{line}"))
    if not rows:
        raise UsageError(f"{path}: no rows; write input,output[,cached prefix], one request a line")
    return LengthTable(rows=np.array(rows, dtype=np.int64))


def _row(cells: list[Any], where: str) -> tuple[int, int, int]:
    numbers = [_tokens(cell, name, where) for cell, name in zip(cells, _NAMES, strict=False)]
    input_tokens, output_tokens, prefix = (*numbers, 0)[:3]
    if input_tokens < 1 or output_tokens < 1:
        raise UsageError(f"{where}: {input_tokens} in, {output_tokens} out: a request has at least 1 token of each")
    if prefix > input_tokens:
        raise UsageError(f"{where}: a cached prefix of {prefix} tokens is longer than the input of {input_tokens}")
    return input_tokens, output_tokens, prefix


def _tokens(cell: Any, name: str, where: str) -> int:
    if isinstance(cell, str) and re.fullmatch(r"\d{1,18}", cell.strip(), re.ASCII):
        cell = int(cell)
    if not isinstance(cell, int) or isinstance(cell, bool) or cell < 0:
        raise UsageError(f"{where}: {name} {bounded(repr(cell), 40)} is not a whole number of tokens")
    if cell > MAX_TOKENS:
        raise UsageError(f"{where}: {name} {bounded(repr(cell), 40)} is more than {MAX_TOKENS:,} tokens")
    return cell


def _check_width(cells: list[Any], where: str) -> None:
    if len(cells) not in (2, 3):
        raise UsageError(f"{where}: {len(cells)} values, but a row is input,output[,cached prefix]")


def _placed(names: list[str], where: str) -> Callable[[list[Any]], list[Any]]:
    """A reader of rows whose values come under these names, which may be in any order."""
    places: dict[int, int] = {}
    for position, name in enumerate(names):
        column = _COLUMNS.get(name.strip().lower())
        if column is None:
            raise UsageError(
                f"{where}: unknown column {bounded(repr(name), 40)}; known are input, output and cached_prefix"
            )
        if column in places:
            raise UsageError(f"{where}: {_NAMES[column]} is given twice")
        places[column] = position
    missing = [name for column, name in enumerate(_NAMES[:2]) if column not in places]
    if missing:
        raise UsageError(f"{where}: no {missing[0]} column; name the columns input, output and cached_prefix")
    return lambda cells: [cells[places[column]] for column in sorted(places)]


def _csv_rows(text: str, path: Path) -> Iterator[tuple[int, list[Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    place: Callable[[list[Any]], list[Any]] | None = None
    width = 0
    try:
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if not width:
                width = len(cells)
                _check_width(cells, where)
                if cells[0].strip()[:1].isalpha():
                    place = _placed(cells, where)
                    continue
            if len(cells) != width:
                raise UsageError(f"{where}: {len(cells)} values where the first row has {width}")
            yield reader.line_num, place(cells) if place else cells
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: {error}") from None


def _jsonl_rows(text: str, path: Path) -> Iterator[tuple[int, list[Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise UsageError(f"{where}: not JSON: {bounded(repr(line.strip()), 40)}") from None
        if isinstance(value, dict):
            yield number, _placed(list(value), where)(list(value.values()))
        elif isinstance(value, list):
            _check_width(value, where)
            yield number, value
        else:
            raise UsageError(f"{where}: {bounded(repr(value), 40)} is neither a list nor an object of lengths")
