"""Token events on disk: of each request the gaps between its events, small integers that compress to a byte or two.

Theory of operation. A request's first event is the `first_token_ns` of its row in the request table, which lies beside;
what is stored is how much later each further event came, in the largest unit that loses nothing (`_UNITS_NS`): whole
microseconds in a live run, whose events are kept to that, nanoseconds in virtual time. The bytes of the gaps are stored
plane by plane: the high ones hardly vary, and requests that were served together repeat one another's gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.records import Ints, numbers
from analysis.schema import EVENT_COLUMNS, EVENTS_VERSION
from loadgen.common.errors import ResultsError

__all__ = ["EVENTS", "read_events", "write_events"]

EVENTS: Final = "events.parquet"
_VERSION_KEY, _UNIT_KEY = b"loadgen.events", b"loadgen.gap_unit_ns"
_UNITS_NS: Final = (1000, 1)


def write_events(events: pd.DataFrame, requests: pd.DataFrame, stream: IO[bytes]) -> None:
    """Write the event table of a run, by request and time; `requests` is the run's request table.

    Raises `ValueError` where a request's first event is not at its first token: the file would not give it back.
    """
    index, at_ns = numbers(events, "index"), numbers(events, "at_ns")
    starts = np.flatnonzero(np.diff(index, prepend=index[:1] - 1))
    first_ns, _ = _of_requests(requests, index[starts])
    if not np.array_equal(first_ns, at_ns[starts]):
        raise ValueError("the event table is not in order of the request table, or of another run")
    gaps_ns = np.delete(np.diff(at_ns), starts[1:] - 1)
    unit_ns = next(unit for unit in _UNITS_NS if unit == 1 or not (_mixed(gaps_ns[:99], unit) or _mixed(gaps_ns, unit)))
    gaps = gaps_ns if unit_ns == 1 else gaps_ns // unit_ns
    ends = np.append(starts, len(index))
    table = pa.table(
        {
            "index": index[starts],
            "gaps": pa.LargeListArray.from_arrays(np.maximum(ends - np.arange(len(ends)), 0), gaps),
            "tokens": pa.LargeListArray.from_arrays(ends, events["tokens"].to_numpy(dtype=np.int32)),
        }
    )
    metadata = {_VERSION_KEY: str(EVENTS_VERSION).encode(), _UNIT_KEY: str(unit_ns).encode()}
    pq.write_table(
        table.replace_schema_metadata(metadata),
        stream,
        compression="zstd",
        compression_level=1,
        use_dictionary=["tokens.list.element"],
        column_encoding={"index": "DELTA_BINARY_PACKED", "gaps.list.element": "BYTE_STREAM_SPLIT"},
        write_statistics=False,
    )


def read_events(run: Path) -> pd.DataFrame:
    """The event table of the sealed run in a directory: EVENT_COLUMNS, by request in schedule order and by time.

    Raises `ResultsError` in one line where the run kept no events, where they were written by another version, and
    where the file does not belong to the request table beside it.
    """
    path = run / EVENTS
    if not path.exists():
        raise ResultsError(
            f"{run}: kept no token events (--events none, the default in virtual time): measure again with --events all"
        )
    try:
        stored = pq.read_table(path)
        requests = pd.read_parquet(run / "requests.parquet", columns=["index", "first_token_ns", "token_events"])
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ResultsError(f"{path}: cannot be read: {reason}") from None
    metadata = stored.schema.metadata or {}
    version = metadata.get(_VERSION_KEY, b"1").decode(errors="replace")[:20]
    if version != str(EVENTS_VERSION):
        raise ResultsError(
            f"{path}: its token events are of version {version}, this loadgen reads version {EVENTS_VERSION}: "
            "measure again, or use the loadgen that wrote them (versions in experiment.json)"
        )
    try:
        index: Ints = stored["index"].to_numpy()
        counts: Ints = pc.list_value_length(stored["tokens"]).to_numpy().astype(np.int64)
        gaps_ns = pc.list_flatten(stored["gaps"]).to_numpy() * int(metadata[_UNIT_KEY])
        tokens = pc.list_flatten(stored["tokens"]).to_numpy()
        first_ns, expected = _of_requests(requests, index)
        if not np.array_equal(counts, expected) or len(gaps_ns) != len(tokens) - len(index):
            raise ValueError("it does not belong to the request table beside it")
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        raise ResultsError(f"{path}: no event table: {error}: restore the file, or measure again") from None
    return _unfolded(index, first_ns, counts, gaps_ns, tokens)


def _mixed(gaps_ns: Ints, unit_ns: int) -> bool:
    return bool((gaps_ns % unit_ns).any())


def _of_requests(requests: pd.DataFrame, index: Ints) -> tuple[Ints, Ints]:
    """First token's instant and number of events of the requests of that index. Raises `ValueError` for an unknown."""
    rows = pd.Index(requests["index"]).get_indexer(pd.Index(index))
    if (rows < 0).any():
        raise ValueError("it has events of requests that the request table does not have")
    return numbers(requests, "first_token_ns")[rows], numbers(requests, "token_events")[rows]


def _unfolded(index: Ints, first_ns: Ints, counts: Ints, gaps_ns: Ints, tokens: Ints) -> pd.DataFrame:
    """One row an event again. A running sum over all requests restarts where a request begins."""
    steps = np.zeros(len(tokens), dtype=np.int64)
    starts = np.cumsum(counts) - counts
    further = np.ones(len(tokens), dtype=np.bool_)
    further[starts] = False
    steps[further] = gaps_ns
    run_ns = np.cumsum(steps)
    at_ns = run_ns + np.repeat(first_ns - run_ns[starts], counts)
    values = {"index": np.repeat(index, counts), "at_ns": at_ns, "tokens": tokens}
    typed = {name: values[name].astype(dtype, copy=False) for name, dtype in EVENT_COLUMNS.items()}
    return pd.DataFrame(typed, copy=False)
