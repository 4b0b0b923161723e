"""Rows per second and peak memory of reading a trace, per format, and of describing it; each in a process of its own.

Usage: python benchmarks/trace_read.py [ROWS] [FORMAT …]   (default: 1,000,000 rows; JSON exports a tenth of that)
27,000,000 rows of `csv` are about 1.2 GB. `pyarrow` is pyarrow's bare CSV reader, which decodes nothing.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from traces.describe import describe
from traces.read import read_trace

CHUNK = 1_000_000
MAP = {"timestamp": "at", "input": "usage.prompt_tokens", "output": "usage.completion_tokens"}


def columns(rows: int, seed: int = 1) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """11 hours of arrivals with microseconds, as text without a zone; lengths."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.integers(1, 80_000_000_000 // max(rows, 1), rows))
    times = pc.strftime(pa.array(at).cast(pa.timestamp("us")), format="%Y-%m-%d %H:%M:%S")
    return times, rng.integers(1, 8000, rows), rng.integers(1, 1000, rows)


def azure(path: Path, rows: int) -> None:
    """Chunks of a million requests, each on a day of its own."""
    n = min(CHUNK, rows)
    times, inputs, outputs = columns(n)
    table = pa.table({"t": pc.binary_join_element_wise(times, "+00:00", ""), "i": inputs, "o": outputs})
    text = pa.BufferOutputStream()
    pacsv.write_csv(table, text, pacsv.WriteOptions(include_header=False, quoting_style="none"))
    chunk = text.getvalue().to_pybytes()
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for day in range(-(-rows // n)):
            file.write(chunk.replace(b"1970-01-01", str(np.datetime64("2024-05-10") + day).encode()))


def zipped(path: Path, rows: int) -> None:
    azure(path, rows)
    path.write_bytes(gzip.compress(path.read_bytes(), 1))


def spend_logs(path: Path, rows: int) -> None:
    times, inputs, outputs = columns(rows)
    with path.open("w") as file:
        file.write("request_id,call_type,startTime,prompt_tokens,completion_tokens,cache_hit,messages,status\n")
        for at, i, o in zip(times.to_pylist(), inputs, outputs, strict=True):
            file.write(f'r,acompletion,{at},{i},{o},False,"[{{""role"": ""user"",\n""content"": ""x""}}]",success\n')


def parquet(path: Path, rows: int) -> None:
    times, inputs, outputs = columns(rows)
    at = pc.cast(times, pa.timestamp("us"))
    pq.write_table(pa.table({"TIMESTAMP": at, "ContextTokens": inputs, "GeneratedTokens": outputs}), path)


def lines(
    make: Callable[[str, int, int, int], object], *, opens: str = "", parts: str = "\n", closes: str = ""
) -> Callable[[Path, int], None]:
    def write(path: Path, rows: int) -> None:
        times, inputs, outputs = columns(rows)
        with path.open("w") as file:
            file.write(opens)
            for n, (at, i, o) in enumerate(zip(times.to_pylist(), inputs.tolist(), outputs.tolist(), strict=True)):
                file.write((parts if n else "") + json.dumps(make(at, i, o, n)))
            file.write(closes)

    return write


def mooncake(at: str, i: int, o: int, n: int) -> object:
    return {"timestamp": n * 40, "input_length": i, "output_length": o, "hash_ids": list(range(n, n + -(-i // 512)))}


def span(at: str, i: int, o: int, n: int) -> object:
    told = {"gen_ai.operation.name": {"stringValue": "chat"}, "gen_ai.usage.input_tokens": {"intValue": str(i)},
            "gen_ai.usage.output_tokens": {"intValue": str(o)}}  # fmt: skip
    attributes = [{"key": key, "value": value} for key, value in told.items()]
    one = {"traceId": f"{n:032x}", "spanId": f"{n + 1:016x}", "kind": 3, "startTimeUnixNano": str(n * 10**6)}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [one | {"attributes": attributes}]}]}]}


FORMATS: dict[str, tuple[Callable[[Path, int], None], int]] = {  # how it is written, and its share of the rows
    "csv": (azure, 1),
    "csv.gz": (zipped, 1),
    "csv, quoted lines (litellm)": (spend_logs, 1),
    "parquet": (parquet, 1),
    "jsonl, block ids (mooncake)": (lines(mooncake), 1),
    "jsonl, --map with paths": (
        lines(lambda at, i, o, n: {"at": n / 25, "usage": {"prompt_tokens": i, "completion_tokens": o}}), 1),
    "jsonl (litellm)": (
        lines(lambda at, i, o, n: {"startTime": at, "prompt_tokens": i, "completion_tokens": o, "status": "ok"}), 10),
    "json on one line (langfuse)": (
        lines(lambda at, i, o, n: {"type": "GENERATION", "startTime": at, "usageDetails": {"input": i, "output": o},
                                   "metadata": "x" * 300}, opens="[", parts=",", closes="]"), 10),
    "jsonl (otlp)": (lines(span), 10),
}  # fmt: skip


def peak_mib() -> float:
    # not ru_maxrss: a child inherits that of the process that started it
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(name: str, path: str) -> None:
    """One row of the table, in a fresh process: nothing of another format is in its peak."""
    before = peak_mib()
    if name == "pyarrow":
        began = time.perf_counter()
        with pacsv.open_csv(path) as reader:
            rows = sum(batch.num_rows for batch in reader)
        print(f"{name:30} {rows:>11,} {rows / (time.perf_counter() - began):>12,.0f}")
        return
    options = {"mapping": MAP, "unit": "s"} if "--map" in name else {}
    began, cpu = time.perf_counter(), time.process_time()
    trace, _ = read_trace(path, **options)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    read = peak_mib()
    began = time.perf_counter()
    describe(trace)
    described = time.perf_counter() - began
    arrays = [
        trace.at_ns,
        trace.input_tokens,
        trace.output_tokens,
        trace.line,
        trace.outcome,
        trace.session,
        trace.parent,
    ]
    held = sum(array.nbytes for array in arrays if array is not None)
    held += 0 if trace.hashes is None else trace.hashes.ids.nbytes + trace.hashes.starts.nbytes
    print(f"{name:30} {len(trace):>11,} {len(trace) / took:>12,.0f} {len(trace) / cpu:>12,.0f} {read - before:>9,.0f} "
          f"{held / 2**20:>9,.0f} {described:>10.1f} {peak_mib() - before:>9,.0f}")  # fmt: skip


def chosen(arguments: list[str]) -> Iterator[tuple[str, Callable[[Path, int], None], int]]:
    asked = int(arguments[0]) if arguments else CHUNK
    for name, (write, share) in FORMATS.items():
        if not arguments[1:] or any(one in name for one in arguments[1:]):
            yield name, write, asked // share


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:])
        return
    print(f"{'format':30} {'rows':>11} {'rows/s':>12} {'rows/CPU s':>12} {'peak MiB':>9} {'trace MiB':>9} "
          f"{'describe s':>10} {'peak MiB':>9}")  # fmt: skip
    for name, write, rows in chosen(sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace"
            write(path, rows)
            for one in [name, "pyarrow"] if name == "csv" else [name]:
                subprocess.run([sys.executable, __file__, "--measure", one, str(path)], check=True)


if __name__ == "__main__":
    main()
