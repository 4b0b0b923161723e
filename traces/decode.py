"""Columns as they stand in a file -> exact integers, with a reason for every value that is none.

Nothing goes through a float: a number is read as a decimal of up to 18 places and brought to nanoseconds by moving the
point; a date is parsed by Arrow, which keeps 9 digits. A cast that fails for one value of a batch is repeated on its
halves, so that good values keep the fast way and each bad one is found (k bad ones cost about k·log n casts).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.trace import MAX_TOKENS, Int64s

__all__ = [
    "CLOCKS",
    "DIGITS",
    "REASONS",
    "Clock",
    "InstantDecoder",
    "Reasons",
    "code",
    "decode_hashes",
    "decode_tokens",
]

Clock = Literal["iso", "s", "ms", "us", "ns"]
CLOCKS: Final[tuple[Clock, ...]] = ("iso", "s", "ms", "us", "ns")
DIGITS: Final = {"s": 9, "ms": 6, "us": 3, "ns": 0}
Reasons = npt.NDArray[np.int8]

# reason -> what is said of the row; the order is the order of reports
REASONS: Final = {
    "": "",
    "bad_row": "the row cannot be parsed",
    "not_a_request": "the record is no model request",
    "missing_time": "no timestamp",
    "bad_time": "the timestamp cannot be read",
    "negative_time": "a negative timestamp",
    "leap_second": "a timestamp in a leap second, which Unix time has no number for",
    "mixed_zone": "times with and without a time zone in one file",
    "missing_input": "no input tokens",
    "bad_input": "input tokens that are no whole number",
    "zero_input": "zero input tokens",
    "negative_input": "negative input tokens",
    "huge_input": "input tokens beyond 2^31 - 1",
    "missing_output": "no output tokens",
    "bad_output": "output tokens that are no whole number",
    "zero_output": "zero output tokens",
    "negative_output": "negative output tokens",
    "huge_output": "output tokens beyond 2^31 - 1",
    "failed": "the source's own record of a failed request, without output",
    "over_long": "more tokens than --max-model-len",
    "bad_hashes": "block ids that are no list of integers",
}
_CODES: Final = {name: number for number, name in enumerate(REASONS)}
_ZONE: Final = re.compile(r"(?:Z|[+-]\d\d(?::?\d\d)?)\s*$")
_DECIMAL: Final = pa.decimal128(38, 18)


def code(reason: str) -> int:
    """The int8 that stands for a reason."""
    return _CODES[reason]


def _salvage(values: pa.Array, cast: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """`cast(values)` with null for each value that cannot be cast."""
    try:
        return cast(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) == 1:
            return pa.nulls(1, cast(values.slice(0, 0)).type)
        half = len(values) // 2
        return pa.concat_arrays([_salvage(values.slice(0, half), cast), _salvage(values.slice(half), cast)])


def _flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):
        return values
    if pa.types.is_dictionary(values.type):
        return _as_text(pc.cast(values, values.type.value_type))
    return pc.cast(values, pa.string())


def _present(text: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(pc.not_equal(text, ""), False))


def _holds(text: pa.Array, letters: str) -> npt.NDArray[np.bool_]:
    # one plain search a letter: a search that ignores case goes through regular expressions, ten times slower
    found = [pc.fill_null(pc.match_substring(text, letter), False) for letter in letters]
    any_of: npt.NDArray[np.bool_] = np.logical_or.reduce([np.asarray(one) for one in found])
    return any_of


def _to_decimals(text: pa.Array) -> pa.Array:
    """Numbers in text as decimal128(38, 18), null where they are none."""
    # Arrow's parser wraps around silently on exponents (1e30), so those go through Python's decimals
    exponents = _holds(text, "eE")
    if not exponents.any():
        return _salvage(text, lambda part: pc.cast(part, _DECIMAL))
    plain = [_bounded(value) if odd else value for value, odd in zip(text.to_pylist(), exponents, strict=True)]
    return _to_decimals(pa.array(plain, pa.string()))


def _bounded(value: str) -> str | None:
    try:
        number = Decimal(value) if len(value) < 64 else Decimal("NaN")
    except InvalidOperation:
        return None
    in_range = number.is_finite() and (not number or -18 <= number.adjusted() <= 19)
    return f"{number:f}" if in_range else None


def _unscaled(decimals: pa.Array) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """The integers under decimal128 values, and which of them fit into int64 (nulls do not)."""
    words = np.frombuffer(decimals.buffers()[1], dtype="<i8").reshape(-1, 2)
    words = words[decimals.offset : decimals.offset + len(decimals)]
    low, high = words[:, 0], words[:, 1]
    return low.copy(), (high == (low >> 63)) & np.asarray(pc.is_valid(decimals))


@dataclass(slots=True, kw_only=True)
class InstantDecoder:
    """Turns a file's timestamp columns, batch by batch, into int64 ns; remembers whether its dates carry a zone."""

    clock: Clock
    zoned: bool | None = None
    rounded: int = 0  # values with more places than a nanosecond has
    _first: bool = field(default=True)

    def decode(self, values: pa.Array | pa.ChunkedArray) -> tuple[Int64s, Reasons]:
        """Nanoseconds int64 (n,), 0 where unreadable, and reasons int8 (n,)."""
        values = _flat(values)
        if pa.types.is_timestamp(values.type):
            return self._from_arrow(values)
        return self._dates(_as_text(values)) if self.clock == "iso" else self._numbers(values)

    def _from_arrow(self, values: pa.Array) -> tuple[Int64s, Reasons]:
        self.zoned = values.type.tz is not None
        ns = _salvage(values, lambda part: pc.cast(pc.cast(part, pa.timestamp("ns", values.type.tz)), pa.int64()))
        reasons = np.where(np.asarray(pc.is_null(values)), code("missing_time"), 0).astype(np.int8)
        reasons[np.asarray(pc.is_null(ns)) & (reasons == 0)] = code("bad_time")
        return np.asarray(pc.fill_null(ns, 0)), reasons

    def _numbers(self, values: pa.Array) -> tuple[Int64s, Reasons]:
        if pa.types.is_decimal(values.type):
            present, decimals = np.asarray(pc.is_valid(values)), values
        else:
            text = _as_text(values)
            present, decimals = _present(text), _to_decimals(text)
        digits = DIGITS[self.clock]
        try:
            exact = pc.cast(decimals, pa.decimal128(38, digits))
        except pa.ArrowInvalid:
            # finer than a nanosecond (float noise such as 4.314579000000001), or beyond all bounds
            near = _salvage(decimals, lambda part: pc.cast(pc.round(part, digits), pa.decimal128(38, digits)))
            self.rounded += int(pc.sum(pc.not_equal(pc.cast(near, _DECIMAL), decimals)).as_py() or 0)
            exact = near
        ns, fits = _unscaled(exact)
        reasons = np.zeros(len(values), dtype=np.int8)
        reasons[fits & (ns < 0)] = code("negative_time")
        reasons[~fits] = code("bad_time")
        reasons[~present] = code("missing_time")
        ns[reasons != 0] = 0
        return ns, reasons

    def _dates(self, text: pa.Array) -> tuple[Int64s, Reasons]:
        if self.zoned is None:
            first = next((value for value in text.to_pylist() if value), "")
            self.zoned = _ZONE.search(first[10:]) is not None if first else None
        kind = pa.timestamp("ns", "UTC" if self.zoned else None)
        times = _salvage(text, lambda part: pc.cast(part, kind))
        # Arrow also takes `2023-11-16` and `2023-11-16 18:15`: a line cut short would pass for a whole one
        whole = pc.equal(pc.utf8_slice_codeunits(text, 16, 17), ":")
        good = np.asarray(pc.is_valid(times)) & np.asarray(pc.fill_null(whole, False))
        if good.all():
            return np.asarray(pc.cast(times, pa.int64())), np.zeros(len(text), dtype=np.int8)
        present = _present(text)
        reasons = np.where(good, 0, code("bad_time")).astype(np.int8)
        for row in np.flatnonzero(~good & present):
            reasons[row] = code(self._date_fault(text[int(row)].as_py()))
        reasons[~present] = code("missing_time")
        ns = np.asarray(pc.fill_null(pc.cast(times, pa.int64()), 0)).copy()
        ns[reasons != 0] = 0
        return ns, reasons

    def _date_fault(self, text: str) -> str:
        other = pa.timestamp("ns", None if self.zoned else "UTC")
        try:
            pc.cast(pa.array([text]), other)
            return "mixed_zone" if len(text) > 16 and text[16] == ":" else "bad_time"
        except pa.ArrowInvalid:
            return "leap_second" if text[16:19] == ":60" else "bad_time"


def decode_tokens(values: pa.Array | pa.ChunkedArray, side: Literal["input", "output"]) -> tuple[Int64s, Reasons]:
    """Token counts int64 (n,), 0 where unreadable, and reasons int8 (n,) named after the side."""
    values = _flat(values)
    if pa.types.is_integer(values.type):
        numbers, present = pc.cast(values, pa.int64(), safe=False), np.asarray(pc.is_valid(values))
    else:
        text = _as_text(values)
        present = _present(text)
        # Arrow would read 0x1F as 31
        hexes = _holds(text, "xX")
        numbers = _salvage(pc.if_else(pa.array(~hexes), text, "") if hexes.any() else text, _cast_whole)
    tokens = np.asarray(pc.fill_null(numbers, 0))
    reasons = np.zeros(len(values), dtype=np.int8)
    reasons[tokens == 0] = code(f"zero_{side}")
    reasons[tokens < 0] = code(f"negative_{side}")
    reasons[tokens > MAX_TOKENS] = code(f"huge_{side}")
    unread = np.asarray(pc.is_null(numbers))
    reasons[unread] = code(f"bad_{side}")
    for row in np.flatnonzero(unread & present):
        text_value = str(values[int(row)].as_py())
        if re.fullmatch(r"\d{19,}", text_value):
            reasons[row] = code(f"huge_{side}")
    reasons[~present] = code(f"missing_{side}")
    return tokens, reasons


def _cast_whole(text: pa.Array) -> pa.Array:
    try:
        return pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        # 374.0 is a whole number: tables that passed through a float column are full of them
        return pc.cast(pc.replace_substring_regex(text, r"^(\d+)\.0*$", r"\1"), pa.int64())


def decode_hashes(values: Any, rows: int) -> tuple[Int64s, Int64s, Reasons]:
    """Block ids: flat int64 (total,), counts int64 (rows,), reasons int8 (rows,); a null row has none.

    `values` is an Arrow list<int64>, an Arrow string column of ids parted by spaces, or a Python list of lists.
    """
    reasons = np.zeros(rows, dtype=np.int8)
    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = _flat(values)
        if (
            pa.types.is_list(values.type)
            and pa.types.is_integer(values.type.value_type)
            and not values.flatten().null_count
        ):
            counts = np.asarray(pc.fill_null(pc.list_value_length(values), 0)).astype(np.int64)
            return np.asarray(pc.cast(values.flatten(), pa.int64(), safe=False)), counts, reasons
        values = values.to_pylist()
    ids: list[int] = []
    counts = np.zeros(rows, dtype=np.int64)
    for row, listed in enumerate(values):
        try:
            own = (
                [_wrapped(int(x)) for x in listed.split()]
                if isinstance(listed, str)
                else [_wrapped(x) for x in listed or ()]
            )
        except (ValueError, TypeError):
            reasons[row] = code("bad_hashes")
            continue
        ids += own
        counts[row] = len(own)
    return np.array(ids, dtype=np.int64), counts, reasons


def _wrapped(number: Any) -> int:
    """An id as int64; unsigned 64-bit hashes keep their bits."""
    if isinstance(number, bool) or not isinstance(number, int) or not -(2**63) <= number < 2**64:
        raise ValueError("not a 64-bit integer")
    return number - 2**64 if number >= 2**63 else number
