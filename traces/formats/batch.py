"""What every container reader yields: some rows of a file, undecoded, with their line numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from traces.decode import Reasons
from traces.trace import Int64s

__all__ = ["Batch"]


@dataclass(slots=True, kw_only=True)
class Batch:
    """`columns` maps a column's name to its values: Arrow arrays of strings, numbers or lists, or a list of parsed JSON
    values, all of `len(line)`.

    `line` int64 (n,) 1-based lines; `reasons` int8 (n,) why a row is unusable already, 0 for the others.
    """

    columns: Mapping[str, pa.Array | list[object]]
    line: Int64s
    reasons: Reasons
