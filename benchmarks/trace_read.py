"""Rows per second and peak memory of reading a large CSV trace, against pyarrow's bare CSV reader.

Usage: python benchmarks/trace_read.py [ROWS]   (27,000,000 rows is about 1.2 GB; the default is 4,000,000)
"""

from __future__ import annotations

import io
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
    """Chunks of a million requests, each on a day of its own: 11 hours of arrivals with microseconds and a zone."""
    rng = np.random.default_rng(1)
    n = min(CHUNK, rows)
    at = np.cumsum(rng.integers(1, 80_000, n))
    times = pc.strftime(pa.array(at).cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
    columns = {
        "t": pc.binary_join_element_wise(times, "+00:00", ""),
        "i": pa.array(rng.integers(1, 8000, n)),
        "o": pa.array(rng.integers(1, 1000, n)),
    }
    text = io.BytesIO()
    pacsv.write_csv(pa.table(columns), text, pacsv.WriteOptions(include_header=False, quoting_style="none"))
    chunk = text.getvalue()
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for day in range(-(-rows // CHUNK)):
            date = str(np.datetime64("2024-05-10") + day).encode()
            file.write(chunk.replace(b"1970-01-01", date))


def trace_bytes(rows: int) -> int:
    return rows * (8 + 4 + 4 + 4 + 1)


def main() -> None:
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
    rows = min(asked, CHUNK) * -(-asked // CHUNK)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        generate(path, rows)
        size = path.stat().st_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, cpu = time.perf_counter(), time.process_time()
        trace, report = read_trace(path)
        ours, cpu = time.perf_counter() - began, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        with pacsv.open_csv(path) as reader:
            base = sum(batch.num_rows for batch in reader)
        theirs = time.perf_counter() - began
    assert report.kept == len(trace) == base == rows
    print(f"{rows:,} rows, {size / 1e6:,.0f} MB")
    print(f"read_trace       {rows / ours:12,.0f} rows/s   {size / ours / 1e6:7.0f} MB/s")
    print(f"                 {rows / cpu:12,.0f} rows per CPU second of all threads")
    print(f"peak memory      +{(peak - before) / 1024:.0f} MiB, of which the trace {trace_bytes(rows) / 2**20:.0f} MiB")
    print(f"pyarrow.open_csv {rows / theirs:12,.0f} rows/s   {size / theirs / 1e6:7.0f} MB/s   (untyped baseline)")
    print(f"ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
