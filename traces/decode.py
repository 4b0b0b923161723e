"""Columns as they stand in a file -> exact integers, with a reason for every value that cannot be converted.

Nothing goes through a float: a number is read as a decimal and brought to nanoseconds by moving the point; a date is
parsed by Arrow, which keeps 9 digits. Where a cast fails for one value of a batch, the values that have the plain form
are cast again and each other one is read by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.dates import ISO, DateFault, SlashDates, parse_date
from traces.trace import Int64s

__all__ = [
    "CLOCKS",
    "DIGITS",
    "REASONS",
    "Clock",
    "InstantDecoder",
    "Reasons",
    "as_text",
    "code",
    "flat",
    "given",
    "matching",
    "only",
]

Clock = Literal["iso", "s", "ms", "us", "ns"]
CLOCKS: Final[tuple[Clock, ...]] = ("iso", "s", "ms", "us", "ns")
DIGITS: Final = {"s": 9, "ms": 6, "us": 3, "ns": 0}
Reasons = npt.NDArray[np.int8]

# reason -> what is said of the row; the order is the order of reports
REASONS: Final = {
    "": "",
    "bad_row": "the row cannot be parsed",
    "not_a_request": "the record is not a model request",
    "missing_time": "no timestamp",
    "bad_time": "the timestamp cannot be read",
    "negative_time": "a negative timestamp",
    "leap_second": "a timestamp in a leap second, which Unix time has no number for",
    "mixed_zone": "times with and without a time zone in one file",
    "missing_input": "no input tokens",
    "bad_input": "input tokens that are not a whole number",
    "zero_input": "zero input tokens",
    "negative_input": "negative input tokens",
    "huge_input": "input tokens beyond 2^31 - 1",
    "missing_output": "no output tokens",
    "bad_output": "output tokens that are not a whole number",
    "zero_output": "zero output tokens",
    "negative_output": "negative output tokens",
    "huge_output": "output tokens beyond 2^31 - 1",
    "failed": "the source's own record of a failed request, without output",
    "cache_hit": "answered from the gateway's own cache: no work for a server",
    "no_generation": "an embedding or another call that generates no tokens",
    "nested_span": "a span inside another of the same call",
    "over_long": "more tokens than --max-model-len",
    "bad_hashes": "block ids that are not a list of integers",
}
_CODES: Final = {name: number for number, name in enumerate(REASONS)}
# a comma is a decimal sign where it cannot part thousands: behind more than three digits, a zero, or before no three
_COMMA: Final = re.compile(r"[+-]?(?:(?:0|[0-9]{4,19}),[0-9]{1,18}|[0-9]{1,19},(?:[0-9]{1,2}|[0-9]{4,18}))")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")


def code(reason: str) -> int:
    """The int8 that stands for a reason."""
    return _CODES[reason]


def flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def as_text(values: pa.Array) -> pa.Array:
    """A column as strings without blanks around them; what has no text of its own becomes null."""
    if pa.types.is_dictionary(values.type):
        return as_text(pc.cast(values, values.type.value_type))
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.string())
    try:
        text = values if pa.types.is_string(values.type) else pc.cast(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array(["?"] * len(values), pa.string())
    padded = pc.any(pc.match_substring_regex(text, r"^\s|\s$")).as_py() if len(text) else False
    return pc.utf8_trim_whitespace(text) if padded else text


def given(text: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are there at all."""
    return np.asarray(pc.fill_null(pc.not_equal(text, ""), False))


def matching(text: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    """Which values match a pattern."""
    return np.asarray(pc.fill_null(pc.match_substring_regex(text, pattern), False))


def only(text: pa.Array, rows: npt.NDArray[np.bool_]) -> pa.Array:
    """The values of some rows, null in the others."""
    return pc.if_else(pa.array(rows), text, pa.scalar(None, pa.string()))


def _unscaled(decimals: pa.Array) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """The integers under decimal128 values, and which of them fit into int64 (nulls do not)."""
    words = np.frombuffer(decimals.buffers()[1], dtype="<i8").reshape(-1, 2)
    words = words[decimals.offset : decimals.offset + len(decimals)]
    low, high = words[:, 0], words[:, 1]
    return low.copy(), (high == (low >> 63)) & np.asarray(pc.is_valid(decimals))


@dataclass(slots=True, kw_only=True)
class InstantDecoder:
    """Turns a file's timestamp columns, batch by batch, into int64 ns; remembers whether its dates carry a zone.

    A column that Arrow cannot cast as a whole is cast where its values have the plain form, and the rest is read value
    by value: a value's fate never depends on its neighbours, and any number of bad ones costs about a microsecond each.
    """

    clock: Clock
    zoned: bool | None = None
    rounded: int = 0  # values with more places than a nanosecond has
    typed: str = ""  # the column's own type, where that says the unit
    slashes: SlashDates = field(default_factory=SlashDates)

    def decode(self, values: pa.Array | pa.ChunkedArray) -> tuple[Int64s, Reasons]:
        """Nanoseconds int64 (n,), 0 where unreadable, and reasons int8 (n,)."""
        values = flat(values)
        if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
            return self._from_arrow(values)
        if self.clock == "iso":
            return self._dates(as_text(values))
        if pa.types.is_decimal(values.type):
            return self._decimals(values)
        return self._numbers(as_text(values))

    def _from_arrow(self, values: pa.Array) -> tuple[Int64s, Reasons]:
        self.typed = str(values.type)
        duration = pa.types.is_duration(values.type)
        self.zoned = not duration and values.type.tz is not None
        factor = 10 ** DIGITS[values.type.unit]
        raw, present = np.asarray(pc.fill_null(pc.cast(values, pa.int64()), 0)), np.asarray(pc.is_valid(values))
        fits = np.abs(raw) <= (2**63 - 1) // factor
        ns = np.where(fits, raw, 0) * factor
        reasons = np.where(present, 0, code("missing_time")).astype(np.int8)
        reasons[present & ~fits] = code("bad_time")
        if duration:
            reasons[present & (ns < 0)] = code("negative_time")
        ns[reasons != 0] = 0
        return ns, reasons

    def _decimals(self, values: pa.Array) -> tuple[Int64s, Reasons]:
        try:
            exact = pc.cast(values, pa.decimal128(38, DIGITS[self.clock]))
        except pa.ArrowInvalid:
            return self._numbers(as_text(values))
        ns, fits = _unscaled(exact)
        return self._judged(ns, fits, np.asarray(pc.is_valid(values)))

    def _numbers(self, text: pa.Array) -> tuple[Int64s, Reasons]:
        digits = DIGITS[self.clock]
        present = given(text)
        exact = self._cast(text, digits)
        if exact is not None:
            ns, fits = _unscaled(exact)
            return self._judged(ns, fits, present)
        places = rf"(\.[0-9]{{1,{digits}}})?" if digits else ""
        plain = matching(text, rf"^[+-]?[0-9]{{1,18}}{places}$")
        ns, fits = _unscaled(pc.cast(only(text, plain), pa.decimal128(38, digits)))
        odd = np.flatnonzero(present & ~plain)
        for row, value in zip(odd.tolist(), text.take(pa.array(odd)).to_pylist(), strict=True):
            found = self._number(value, digits)
            if found is not None:
                ns[row], fits[row] = found, True
        return self._judged(ns, fits, present)

    def _cast(self, text: pa.Array, digits: int) -> pa.Array | None:
        # Arrow's parser wraps around silently on exponents (1e30), so those are left to Python's decimals
        if _holds(text, "eE").any():
            return None
        try:
            return pc.cast(text, pa.decimal128(38, digits))
        except pa.ArrowInvalid:
            return None

    def _number(self, text: str, digits: int) -> int | None:
        """One number as nanoseconds, rounded half to even; None where it is none, or beyond int64."""
        if _COMMA.fullmatch(text):
            text = text.replace(",", ".")
        if len(text) > 400 or not _NUMBER.fullmatch(text):
            return None
        number = Decimal(text)
        if number and not -400 <= number.adjusted() <= 19:
            return None
        scaled = number.scaleb(digits, _WIDE)
        whole = int(scaled.to_integral_value(ROUND_HALF_EVEN, _WIDE))
        if not -(2**63) <= whole < 2**63:
            return None
        self.rounded += whole != scaled
        return whole

    def _judged(
        self, ns: Int64s, fits: npt.NDArray[np.bool_], present: npt.NDArray[np.bool_]
    ) -> tuple[Int64s, Reasons]:
        reasons = np.zeros(ns.size, dtype=np.int8)
        reasons[fits & (ns < 0)] = code("negative_time")
        reasons[~fits] = code("bad_time")
        reasons[~present] = code("missing_time")
        ns[reasons != 0] = 0
        return ns, reasons

    def _dates(self, text: pa.Array) -> tuple[Int64s, Reasons]:
        present = given(text)
        if self.zoned is None and present.any():
            self.zoned = self._zone_of(text[int(np.argmax(present))].as_py())
        kind = pa.timestamp("ns", "UTC" if self.zoned else None)
        try:
            times = pc.cast(text, kind)
            # Arrow also takes `2023-11-16` and `2023-11-16 18:15`: a line cut short would pass for a whole one
            whole = np.asarray(pc.fill_null(pc.equal(pc.utf8_slice_codeunits(text, 16, 17), ":"), False))
            if whole.all():
                return np.asarray(pc.cast(times, pa.int64())), np.zeros(len(text), dtype=np.int8)
        except pa.ArrowInvalid:
            pass
        plain = matching(text, _ISO_ZONED if self.zoned else _ISO_LOCAL)
        try:
            ns = np.asarray(pc.fill_null(pc.cast(pc.cast(only(text, plain), kind), pa.int64()), 0)).copy()
        except pa.ArrowInvalid:  # 30 February, year 9999
            plain[:] = False
            ns = np.zeros(len(text), dtype=np.int64)
        reasons = np.where(present, 0, code("missing_time")).astype(np.int8)
        odd = np.flatnonzero(present & ~plain)
        for row, value in zip(odd.tolist(), text.take(pa.array(odd)).to_pylist(), strict=True):
            try:
                ns[row], zoned = parse_date(value, self.slashes)
            except DateFault as fault:
                reasons[row] = code(fault.reason)
                continue
            if zoned != self.zoned:
                reasons[row] = code("mixed_zone")
        ns[reasons != 0] = 0
        return ns, reasons

    def _zone_of(self, text: str) -> bool | None:
        try:
            return parse_date(text, SlashDates())[1]
        except DateFault:
            return bool(_ZONE.search(text[10:]))


_ISO_ZONED: Final = ISO.replace(")?)?$", ")?)$")
_ISO_LOCAL: Final = ISO.replace("(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$", "$")
_ZONE: Final = re.compile(r"(?:Z|[+-]\d\d(?::?\d\d)?)\s*$")
_WIDE: Final = Context(prec=900)


def _holds(text: pa.Array, letters: str) -> npt.NDArray[np.bool_]:
    # one plain search a letter: a search that ignores case goes through regular expressions, ten times slower
    found = [pc.fill_null(pc.match_substring(text, letter), False) for letter in letters]
    any_of: npt.NDArray[np.bool_] = np.logical_or.reduce([np.asarray(one) for one in found])
    return any_of
