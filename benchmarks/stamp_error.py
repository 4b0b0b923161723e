"""How late are the stamps of first and last tokens? The kernel's beside this process's own, idle and with a CPU hog.

The sender is pinned to one core and the server (server.c, compiled here) to another. 128-token streams, a token each
10 ms, Poisson arrivals. An error is the client's stamp − the instant at which the server handed the token to the
kernel, both on this machine's CLOCK_MONOTONIC. The hog is a busy process on the sender's core, which gets half of it.
Runs alternate; each is a process of its own.

Target: p99 of the kernel's stamps ≤ 0.1 ms for first and last token, with the hog too, at rates at which requests leave
in time (p99 send lag < 5 ms). Exit code 1 if it is missed.

    python -m benchmarks.stamp_error [--rates 50,100,200] [--seconds 8]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.client_ceiling import WARMUP_S, lean_server, schedule_s, sent, told
from loadgen.common.loop import run_loop

TARGET_MS: Final = 0.1
LAG_MS: Final = 5.0


def hog(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def one_run(stamps: str, rate: float, seconds: float, cores: tuple[int, int]) -> None:
    """In a process of its own: prints one line of JSON."""
    at_s = schedule_s(rate, seconds)
    with tempfile.TemporaryDirectory() as folder:
        server = lean_server(Path(folder), at_s.size, core=cores[1])
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        os.sched_setaffinity(0, {cores[0]})
        before = time.process_time()
        t0, output, _ = run_loop(sent(url, at_s, Path(folder) / "records.jsonl", stamps))  # type: ignore[arg-type]
        cpu_s = time.process_time() - before
        truth = told(server)
    written = {int(row[0]): row for row in truth}
    table = output.requests
    table = table[(table["outcome"] == "ok") & (table["scheduled_ns"] >= WARMUP_S * 1e9)]
    rows = np.array([written[index] for index in table["index"]])
    lag_ms = (rows[:, 1] - t0 - table["scheduled_ns"].to_numpy()) / 1e6
    errors = {
        name: (table[f"{name}_token_ns"].to_numpy() + t0 - rows[:, place]) / 1e6
        for name, place in (("first", 2), ("last", 3))
    }
    result = {
        "lag_p99_ms": p99(lag_ms),
        "cpu_us": cpu_s / at_s.size * 1e6,
        "n": len(table),
        "by_reading": output.facts.stamps_by_reading,
        "merged": float((table["first_read_events"] > 1).mean()),
        **{f"{name}_{what}": value for name, ms in errors.items() for what, value in (
            ("p50", float(np.median(ms))), ("p99", p99(ms)), ("max", float(ms.max())), ("min", float(ms.min())),
        )},
    }  # fmt: skip
    print(json.dumps(result))


def p99(values: np.ndarray) -> float:
    return float(np.sort(values)[-(-99 * values.size // 100) - 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="50,100,200")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--one", nargs=2, metavar=("STAMPS", "RATE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("two cores are needed: one for the client, one for the server")
    if arguments.one:
        one_run(arguments.one[0], float(arguments.one[1]), arguments.seconds, (cores[0], cores[1]))
        return 0
    missed = False
    print("rate  load  stamps  send lag p99   first token p50 / p99 / max   last token p50 / p99 / max   CPU a stream")
    for rate in map(float, arguments.rates.split(",")):
        for load in ("idle", "hog"):
            busy = multiprocessing.get_context("spawn").Process(target=hog, args=(cores[0],), daemon=True)
            if load == "hog":
                busy.start()
            try:
                for stamps in ("user", "kernel"):
                    command = [sys.executable, "-m", "benchmarks.stamp_error", "--one", stamps, str(rate)]
                    command += ["--seconds", str(arguments.seconds)]
                    run = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
                    in_time = run["lag_p99_ms"] < LAG_MS
                    fails = stamps == "kernel" and in_time and max(run["first_p99"], run["last_p99"]) > TARGET_MS
                    missed |= fails
                    print(
                        f"{rate:4g}  {load}  {stamps:6}  {run['lag_p99_ms']:9.2f} ms   "
                        + "   ".join(
                            f"{run[f'{name}_p50']:6.3f} / {run[f'{name}_p99']:6.3f} / {run[f'{name}_max']:6.2f} ms"
                            for name in ("first", "last")
                        )
                        + f"   {run['cpu_us']:5.0f} us"
                        + (f"   {run['merged']:.1%} of first reads had later tokens" if run["merged"] > 0 else "")
                        + ("   MISSED" if fails else "" if in_time else "   (requests left late)"),
                        flush=True,
                    )
            finally:
                if load == "hog":
                    busy.terminate()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
