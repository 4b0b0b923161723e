"""Conversations: ids of any kind become numbers, and turns find the turn before them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traces.trace import Int32s, Int64s, canonical_codes

__all__ = ["Codes", "link_turns"]


@dataclass(slots=True)
class Codes:
    """Ids of any kind as numbers, the same one for the same id throughout a file; -1 for none."""

    known: dict[str, int] = field(default_factory=dict)

    def of(self, values: pa.Array | pa.ChunkedArray) -> Int32s:
        """The numbers of a column of ids, int32 (n,)."""
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = pc.dictionary_encode(pc.cast(values, pa.string()))
        none = (None, "", "-", "-1")
        ids = encoded.dictionary.to_pylist()
        numbers = [-1 if one in none else self.known.setdefault(one, len(self.known)) for one in ids]
        table = np.array([*numbers, -1], dtype=np.int32)
        coded: Int32s = table[np.asarray(pc.fill_null(encoded.indices, len(numbers)))]
        return coded


def link_turns(
    session: Int32s | None, row_id: Int32s | None, parent: Int32s | None
) -> tuple[Int32s | None, Int32s | None, int]:
    """Sessions and parents of a trace's rows in order of arrival, and how many turns lost their previous one.

    `session`, `row_id` and `parent` are codes, int32 (n,), or None where the file has no such column. With parents, a
    session without a name of its own is that of its first turn; without, a turn's parent is the row before it in its
    session. A parent that is missing, or not earlier, is none: the turn starts anew, and counts as lost.
    """
    if session is not None and not np.any(session >= 0):
        session = None
    if row_id is None or parent is None:
        if session is None:
            return None, None, 0
        return canonical_codes(session), _previous_of(session).astype(np.int32), 0
    rows = np.arange(parent.size)
    # the last entry stands for "none": a code of -1 finds it
    place = np.full(int(max(row_id.max(), parent.max(), 0)) + 2, -1, dtype=np.int64)
    known = row_id >= 0
    place[row_id[known]] = rows[known]
    found = place[parent]
    lost = ((found < 0) | (found >= rows)) & (parent >= 0)
    found[lost] = -1
    codes = canonical_codes(_roots(found) if session is None else session)
    return codes, found.astype(np.int32), int(np.count_nonzero(lost))


def _previous_of(session: Int32s) -> Int64s:
    order = np.argsort(session, kind="stable")
    grouped = session[order]
    parent = np.full(session.size, -1, dtype=np.int64)
    same = (grouped[1:] == grouped[:-1]) & (grouped[1:] >= 0)
    parent[order[1:][same]] = order[:-1][same]
    return parent


def _roots(parent: Int64s) -> Int64s:
    """The first turn of each row's conversation; parents are earlier rows, so the doubling ends."""
    root = np.where(parent < 0, np.arange(parent.size), parent)
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return root
        root = further
