"""Rows per second and peak memory of reading a large CSV trace, against pyarrow's bare CSV reader.

Usage: python benchmarks/trace_read.py [ROWS]   (27,000,000 rows is about 1.2 GB; the default is 4,000,000)
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from traces.read import read_trace

CHUNK = 1_000_000


def generate(path: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    start = np.datetime64("2024-05-10T00:00:00", "us").astype(np.int64)
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for first in range(0, rows, CHUNK):
            n = min(CHUNK, rows - first)
            at = start + np.cumsum(rng.integers(1, 40_000, n))
            start = int(at[-1])
            times = pc.strftime(pa.array(at).cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
            table = pa.table(
                {
                    "t": pc.binary_join_element_wise(times, "+00:00", ""),
                    "i": pa.array(rng.integers(1, 8000, n)),
                    "o": pa.array(rng.integers(1, 1000, n)),
                }
            )
            pacsv.write_csv(table, file, pacsv.WriteOptions(include_header=False, quoting_style="none"))


def trace_bytes(rows: int) -> int:
    return rows * (8 + 4 + 4 + 4 + 1)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        generate(path, rows)
        size = path.stat().st_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        trace, report = read_trace(path)
        ours = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        with pacsv.open_csv(path) as reader:
            base = sum(batch.num_rows for batch in reader)
        theirs = time.perf_counter() - began
    assert report.kept == len(trace) == base == rows
    print(f"{rows:,} rows, {size / 1e6:,.0f} MB")
    print(f"read_trace       {rows / ours:12,.0f} rows/s   {size / ours / 1e6:7.0f} MB/s")
    print(f"peak memory      +{(peak - before) / 1024:.0f} MiB, of which the trace {trace_bytes(rows) / 2**20:.0f} MiB")
    print(f"pyarrow.open_csv {rows / theirs:12,.0f} rows/s   {size / theirs / 1e6:7.0f} MB/s   (untyped baseline)")
    print(f"ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
