"""Token counts and block ids as written in a file -> exact integers, or a reason why a value is invalid."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traces.decode import Reasons, as_text, code, flat, given, matching, only
from traces.trace import MAX_TOKENS, Int64s

__all__ = ["decode_hashes", "decode_tokens"]

_WHOLE: Final = r"^[0-9]{1,18}$"


def decode_tokens(values: pa.Array | pa.ChunkedArray, side: Literal["input", "output"]) -> tuple[Int64s, Reasons]:
    """Token counts int64 (n,), 0 where unreadable, and reasons int8 (n,) named after the side."""
    values = flat(values)
    if pa.types.is_integer(values.type):
        if pa.types.is_uint64(values.type):
            values = pc.min_element_wise(values, pa.scalar(2**62, pa.uint64()), skip_nulls=False)
        numbers, present = pc.cast(values, pa.int64()), np.asarray(pc.is_valid(values))
        tokens, unread = np.asarray(pc.fill_null(numbers, 0)), ~present
    else:
        text = as_text(values)
        present = given(text)
        plain = matching(text, _WHOLE)
        tokens = np.asarray(pc.fill_null(pc.cast(only(text, plain), pa.int64()), 0))
        unread = ~plain
        odd = np.flatnonzero(present & ~plain)
        if odd.size:
            tokens = tokens.copy()
            for row, value in zip(odd.tolist(), text.take(pa.array(odd)).to_pylist(), strict=True):
                # 374.0 is a whole number: tables that passed through a float column are full of them
                if match := _COUNT.fullmatch(value):
                    magnitude = min(int(match[2]) if len(match[2]) < 20 else 2**62, 2**62)
                    tokens[row], unread[row] = -magnitude if match[1] == "-" else magnitude, False
    reasons = np.zeros(len(values), dtype=np.int8)
    reasons[tokens == 0] = code(f"zero_{side}")
    reasons[tokens < 0] = code(f"negative_{side}")
    reasons[tokens > MAX_TOKENS] = code(f"huge_{side}")
    reasons[unread] = code(f"bad_{side}")
    reasons[~present] = code(f"missing_{side}")
    return tokens, reasons


_COUNT: Final = re.compile(r"([+-]?)0*([0-9]+)(?:\.0*)?")


def decode_hashes(values: Any, rows: int) -> tuple[Int64s, Int64s, Reasons]:
    """Block ids: flat int64 (total,), counts int64 (rows,), reasons int8 (rows,); a null row has none.

    `values` is an Arrow list<int64>, an Arrow string column of ids parted by spaces, or a Python list of lists.
    """
    reasons = np.zeros(rows, dtype=np.int8)
    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = flat(values)
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
