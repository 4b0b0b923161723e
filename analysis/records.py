"""Request tables: typed construction, and the columns derived from the stamps (method, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.schema import ABSENT, DERIVED, REQUEST_COLUMNS
from analysis.units import NS_PER_S

__all__ = [
    "NS_PER_S",
    "Bools",
    "Floats",
    "Ints",
    "after_first",
    "buffered",
    "columns",
    "derive",
    "itl_s",
    "numbers",
    "outcome_is",
    "table",
    "unseen",
]

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GATHERED_SPAN = 20  # a stream that waited so many times as long for its first token as all others took,
GATHERED_EVENTS = 1.5  # and came with so many events a read, was gathered and let go
Numbers = TypeVar("Numbers", int, Ints)
# a whole column, or one value that fills it
ColumnValues = int | str | Sequence[int | str] | npt.NDArray[Any] | pd.api.extensions.ExtensionArray | pd.Series
_DEFAULTS: dict[str, int | str] = {
    **{name: "" if dtype == "str" else ABSENT for name, dtype in REQUEST_COLUMNS.items()},
    "connect_ns": 0,
    "first_read_tokens": 1,
    "prefix_tokens_planned": 0,
    "read": "prompt",
    "target": 0,
    "worker": 0,
}
_EMPTY = pd.array([""], dtype="str")


def columns(n: int, known: Mapping[str, ColumnValues]) -> pd.DataFrame:
    """A request table of `n` rows in schema order from whole columns; a scalar fills its column.

    Columns not given hold "did not happen" (-1), an empty string, or what is true when nothing is said (no connect, one
    token in the first event, target and worker 0); `index` counts from 0. Raises `ValueError` on an unknown column, a
    wrong length or a value that is not of the column's type.
    """
    unknown = sorted(set(known) - set(REQUEST_COLUMNS))
    if unknown:
        raise ValueError(f"not columns of the request table: {', '.join(unknown)}")
    made: dict[str, Any] = {}
    for name, dtype in REQUEST_COLUMNS.items():
        given = known.get(name, np.arange(n) if name == "index" else _DEFAULTS[name])
        try:
            made[name] = _column(n, given, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"request column {name!r} is not {n} values of type {dtype}: {error}") from None
    return pd.DataFrame(made, index=pd.RangeIndex(n), copy=False)  # each column is a copy already


def _column(n: int, given: Any, dtype: str) -> Any:
    """One column as an array of its own. What needs no conversion is spared a Series, most of a small table's cost."""
    if isinstance(given, np.ndarray) and given.shape == (n,) and dtype != "str" and np.can_cast(given.dtype, dtype):
        return given.astype(dtype)
    if dtype == "str" and isinstance(given, str) and not given:
        return _EMPTY.take(np.zeros(n, dtype=np.intp))
    if isinstance(given, int) and dtype != "str":
        return np.full(n, given, dtype=dtype)
    return pd.Series(given, index=pd.RangeIndex(n), dtype=dtype).array


def table(rows: Sequence[Mapping[str, int | str]]) -> pd.DataFrame:
    """A typed request table in schema order, one row a mapping; what a row leaves out is as in `columns`.

    Raises `ValueError` as `columns` does.
    """
    known = {
        name: [row.get(name, i if name == "index" else _DEFAULTS.get(name, "")) for i, row in enumerate(rows)]
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    return columns(len(rows), known)


def numbers(requests: pd.DataFrame, name: str) -> Ints:
    """An integer column as int64, shape (n,)."""
    values: Ints = requests[name].to_numpy(dtype=np.int64)
    return values


def outcome_is(requests: pd.DataFrame, *outcomes: str) -> Bools:
    """Which requests ended with one of `outcomes`, shape (n,)."""
    among: Bools = requests["outcome"].array.isin(outcomes)
    return among


def unseen(events: Numbers, reads: Numbers, span_ns: Numbers, wait_ns: Numbers) -> Any:
    """Whether a stream came in one event or read, or something gathered it and let it go in a few pieces.

    Of numbers or of columns. `span_ns` is from the first token to the last, `wait_ns` from the send to the first. Both
    are needed to see that a stream was gathered: a queue makes waits long, and a server that writes on a clock puts
    several events into a read. An unknown count (-1) is not buffered.
    """
    return (
        (events == 1)
        | (reads == 1)
        | ((reads > 1) & (events >= GATHERED_EVENTS * reads) & (span_ns * GATHERED_SPAN < wait_ns))
    )


def after_first(output_tokens: Numbers, first_read_tokens: Numbers) -> Any:
    """O − k, the tokens that came after the first read; of numbers or of columns.

    k is at least 1; -1 means that the first read's tokens were not counted.
    """
    return output_tokens - first_read_tokens - (first_read_tokens < 1) * (1 - first_read_tokens)


def buffered(requests: pd.DataFrame) -> Bools:
    """Which good requests brought O > 1 tokens in a single event or socket read, or gathered: TPOT cannot be seen.

    Method, section 2.
    """
    events, reads = numbers(requests, "token_events"), numbers(requests, "token_reads")
    first = numbers(requests, "first_token_ns")
    span_ns, wait_ns = numbers(requests, "last_token_ns") - first, first - numbers(requests, "sent_ns")
    several: Bools = (numbers(requests, "output_tokens") > 1) & outcome_is(requests, "ok")
    hidden: Bools = several & unseen(events, reads, span_ns, wait_ns)
    return hidden


def derive(requests: pd.DataFrame) -> pd.DataFrame:
    """The table with the DERIVED columns of the schema added (or renewed), seconds, NaN where undefined.

    Method, section 2: client queue = sent − scheduled; send lag = client queue − slot wait − connect, slot wait =
    admitted − released; TTFT and E2E from the scheduled instant and from the send; TPOT = (last − first)/(O − k), k the
    tokens of the first read. TPOT is undefined for O = 1, for buffered streams, and where O is unknown. The input is
    not changed.
    """
    at = {name: numbers(requests, f"{name}_ns") for name in ("scheduled", "sent", "first_token", "last_token")}
    sent, first, last = at["sent"] >= 0, at["first_token"] >= 0, at["last_token"] >= 0
    admitted = numbers(requests, "admitted_ns")
    slot_wait_ns = np.where(admitted >= 0, admitted - numbers(requests, "released_ns"), 0)
    connect_ns = np.maximum(numbers(requests, "connect_ns"), 0)
    client_queue_ns = at["sent"] - at["scheduled"]

    produced = numbers(requests, "output_tokens")
    after = after_first(produced, numbers(requests, "first_read_tokens"))
    seen_apart = (numbers(requests, "token_events") != 1) & (numbers(requests, "token_reads") != 1)
    defined = first & last & (produced > 1) & (after > 0) & seen_apart & ~buffered(requests)

    made: dict[str, Floats] = {
        "client_queue_s": _seconds(client_queue_ns, sent),
        "send_lag_s": _seconds(client_queue_ns - slot_wait_ns - connect_ns, sent),
        "ttft_s": _seconds(at["first_token"] - at["scheduled"], first),
        "e2e_s": _seconds(at["last_token"] - at["scheduled"], last),
        "ttft_from_sent_s": _seconds(at["first_token"] - at["sent"], first & sent),
        "e2e_from_sent_s": _seconds(at["last_token"] - at["sent"], last & sent),
        # one division, so that a TPOT of exactly the bound is not an ulp above it
        "tpot_s": np.where(
            defined, (at["last_token"] - at["first_token"]) / (np.where(defined, after, 1) * NS_PER_S), np.nan
        ),
    }
    renewed = [name for name in DERIVED if name in requests]
    kept = requests.drop(columns=renewed) if renewed else requests
    # seven insertions one by one would cost more than all the rest
    return pd.concat([kept, pd.DataFrame(made, index=requests.index, columns=list(DERIVED), copy=False)], axis=1)


def itl_s(events: pd.DataFrame) -> Floats:
    """Gaps between successive token events of the same request, seconds, shape (gaps,).

    Rows may come in any order; events are not tokens (method, section 2), so ITL is not TPOT.
    """
    index, at_ns = numbers(events, "index"), numbers(events, "at_ns")
    order = np.lexsort((at_ns, index))
    index, at_ns = index[order], at_ns[order]
    gaps: Floats = np.diff(at_ns)[np.diff(index) == 0] / NS_PER_S
    return gaps


def _seconds(span_ns: Ints, defined: Bools) -> Floats:
    return np.where(defined, span_ns / NS_PER_S, np.nan)
