"""The one type every reader gives and every transform takes: a trace, as immutable columns.

Row i is one request. Rows are in order of arrival; equal instants keep the order they had in the file. A trace of 27
million requests without hashes and sessions takes 21 bytes a row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traces.errors import TraceError

__all__ = ["MAX_TOKENS", "OUTCOMES", "BlockHashes", "Int32s", "Int64s", "Trace", "canonical_codes"]

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
NS: Final = 1_000_000_000
MAX_TOKENS: Final = 2**31 - 1  # what an int32 column holds; no model reads nearly as much

OUTCOMES: Final = ("", "ok", "failed")  # what the source said of the request; "" nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockHashes:
    """Prefix-block ids of all requests in one flat array: those of request i are `ids[starts[i]:starts[i + 1]]`.

    `ids` int64 (total,), `starts` int64 (n + 1,), `block_tokens` tokens per id (the last block of a request may be
    partial). Equal ids mean equal tokens in that block and in every block before it.
    """

    ids: Int64s
    starts: Int64s
    block_tokens: int

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise TraceError(f"a block of {self.block_tokens} tokens", remedy="pass --block-tokens 512, or 16")
        starts = self.starts
        if starts.size < 1 or starts[0] != 0 or starts[-1] != self.ids.size or bool(np.any(starts[1:] < starts[:-1])):
            raise TraceError("block starts that do not cover the ids in order")
        for name in ("ids", "starts"):
            object.__setattr__(self, name, _frozen(getattr(self, name), np.int64))

    @property
    def counts(self) -> Int64s:
        """Blocks per request, int64 (n,)."""
        return np.diff(self.starts)

    def of(self, row: int) -> Int64s:
        """The ids of one request."""
        return self.ids[self.starts[row] : self.starts[row + 1]]

    def take(self, rows: Int64s) -> BlockHashes:
        """The ids of the given requests, in that order."""
        counts = self.counts[rows]
        starts = np.concatenate(([0], np.cumsum(counts)))
        flat = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], counts)
        return BlockHashes(ids=self.ids[flat], starts=starts, block_tokens=self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival, all columns of shape (n,) and read-only, n ≥ 1.

    `at_ns` int64 nanoseconds from the first arrival, so `at_ns[0] == 0`; `input_tokens`, `output_tokens` int32, ≥ 1;
    `line` int32, 1-based line of the source (the record's number where a file has no lines), 0 unknown; `outcome` int8,
    an index into OUTCOMES; `hashes` where the source has them; `session` int32, numbered 0.. by first arrival, -1 none,
    and `parent` int32, the row of the previous turn, always an earlier one, -1 none: both or neither.

    Raises `TraceError` where the columns contradict this.
    """

    at_ns: Int64s
    input_tokens: Int32s
    output_tokens: Int32s
    line: Int32s
    outcome: npt.NDArray[np.int8]
    hashes: BlockHashes | None = None
    session: Int32s | None = None
    parent: Int32s | None = None

    def __post_init__(self) -> None:
        n = self.at_ns.size
        if n == 0:
            raise TraceError("no requests", remedy="a trace has at least one row that can be sent")
        types = {"at_ns": np.int64, "outcome": np.int8}
        for name in ("at_ns", "input_tokens", "output_tokens", "line", "outcome", "session", "parent"):
            column = getattr(self, name)
            if column is None:
                continue
            if column.shape != (n,):
                raise TraceError(f"column {name} has shape {column.shape}, not ({n},)")
            object.__setattr__(self, name, _frozen(column, types.get(name, np.int32)))
        if self.at_ns[0] != 0 or bool(np.any(self.at_ns[1:] < self.at_ns[:-1])):
            raise TraceError("arrivals that are not sorted offsets from the first one")
        if min(int(self.input_tokens.min()), int(self.output_tokens.min())) < 1:
            raise TraceError("a request of less than one token")
        if self.hashes is not None and self.hashes.starts.size != n + 1:
            raise TraceError(f"hashes of {self.hashes.starts.size - 1} requests in a trace of {n}")
        if (self.session is None) != (self.parent is None):
            raise TraceError("sessions without parents, or parents without sessions")
        if self.parent is not None and bool(np.any(self.parent >= np.arange(n))):
            raise TraceError("a turn whose previous turn comes later")

    def __len__(self) -> int:
        return int(self.at_ns.size)

    @property
    def span_ns(self) -> int:
        """From the first arrival to the last."""
        return int(self.at_ns[-1])

    @property
    def rate(self) -> float:
        """Realised rate, (n − 1)/span in requests/s (method, section 2); NaN where the span is 0."""
        return (len(self) - 1) / (self.span_ns / NS) if self.span_ns else float("nan")

    @property
    def gaps_s(self) -> npt.NDArray[np.float64]:
        """Gaps between successive arrivals, seconds, float64 (n − 1,)."""
        return np.diff(self.at_ns) / NS

    @property
    def sha256(self) -> str:
        """Fingerprint of what is replayed: instants, lengths, block ids and session structure; not of `line`."""
        digest = hashlib.sha256()
        columns: list[npt.NDArray[np.integer] | None]
        columns = [self.at_ns, self.input_tokens, self.output_tokens, self.session, self.parent]
        if self.hashes is not None:
            columns += [self.hashes.starts, self.hashes.ids]
            digest.update(str(self.hashes.block_tokens).encode())
        for column in columns:
            digest.update(b"-" if column is None else column.astype(column.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    def take(self, rows: Int64s, *, at_ns: Int64s | None = None) -> Trace:
        """The given rows as a trace of its own, re-based on its first arrival.

        `rows` int64 (m,) row numbers, in the new order; `at_ns` int64 (m,) their instants, those of this trace by
        default. A turn whose previous turn is left out, or no longer earlier, starts anew (parent -1).
        """
        at = self.at_ns[rows] if at_ns is None else at_ns
        session = parent = None
        if self.session is not None and self.parent is not None:
            session = canonical_codes(self.session[rows])
            place = np.full(len(self) + 1, -1, dtype=np.int64)  # the last entry stands for "no parent"
            place[rows] = np.arange(rows.size)
            parent = place[self.parent[rows]]
            parent[parent >= np.arange(rows.size)] = -1
        return Trace(
            at_ns=at - at[0] if at.size else at,
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            line=self.line[rows],
            outcome=self.outcome[rows],
            hashes=None if self.hashes is None else self.hashes.take(rows),
            session=session,
            parent=None if parent is None else parent.astype(np.int32),
        )


def canonical_codes(codes: npt.NDArray[np.integer]) -> Int32s:
    """Codes renumbered 0.. by first appearance; negative ones become -1."""
    values, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    real = np.flatnonzero(values >= 0)
    numbers = np.full(values.size, -1, dtype=np.int32)
    numbers[real[np.argsort(first[real])]] = np.arange(real.size, dtype=np.int32)
    return numbers[inverse]


def _frozen(column: npt.NDArray[np.generic], dtype: type) -> npt.NDArray[np.generic]:
    column = np.ascontiguousarray(column, dtype=dtype)
    if column.flags.writeable:
        # a view hides the caller's handle less than a copy would, but 27 million rows are not copied for that
        column = column.view()
        column.flags.writeable = False
    return column
