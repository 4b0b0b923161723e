"""What records cost: bytes a token event on the disk, and the CPU of a virtual sweep through the command line.

    python benchmarks/record_cost.py [--quick]

Events: the same figures for the simulated queue, for the simulated 8B server, and for the 8B emulator over HTTP, whose
reads jitter as those of a live server do. Sweep: seven rates × 12 replicates × 67,000 requests of the simulated queue,
with 128 output tokens each, from the command line to the answer, with events as `--events` says. CPU time is user and
system time of the process and its children. `--quick` measures a sweep of two rates × two replicates.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from loadgen.results.events import EVENTS, read_events

LOADGEN = [sys.executable, "-c", "from loadgen.cli import main; main()"]
RATES, REPLICATES, COHORT = "2,4,6,8,10,14,18", 12, 67_000
BYTES_AN_EVENT, SWEEP_CPU_S = 2.0, 30.0


def cpu_s(arguments: list[str]) -> float:
    """CPU of one command, s; whatever it answers, it must not fail."""
    before = os.times()
    done = subprocess.run([*LOADGEN, *arguments, "--quiet"], stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1, 4):
        raise SystemExit(f"loadgen {' '.join(arguments)} ended with {done.returncode}")
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def size(folder: Path, name: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob(name))


def mark(good: bool) -> str:
    return "holds" if good else "DOES NOT HOLD"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a sweep of two rates × two replicates")
    quick = parser.parse_args().quick
    queue = ["--input", "16", "--slo", "e2e<=250ms"]
    runs = {
        "simulated queue": ["--target", "virtual:fcfs", "--rate", "4", "--cohort", "20000", *queue],
        "simulated 8B": ["--target", "virtual:llama8b-80gb", "--rate", "6", "--cohort", "20000", "--slo", "e2e<=60s"],
        "8B emulator, HTTP": [
            "--target", "emulator:llama8b-80gb", "--rate", "6", "--window", "30s", "--min-requests", "100",
            "--slo", "e2e<=60s",
        ],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name, asked in runs.items():
            out = Path(folder) / name
            cpu_s(["run", *asked, "--events", "all", "--out", str(out)])
            events = sum(len(read_events(path.parent)) for path in out.rglob(EVENTS))
            each = size(out, EVENTS) / events
            print(
                f"{name:20} {events:>10,} events   {each:6.3f} bytes an event   < {BYTES_AN_EVENT:g}: "
                f"{mark(each < BYTES_AN_EVENT)}",
                flush=True,
            )
        rates, replicates = ("2,18", 2) if quick else (RATES, REPLICATES)
        count = (rates.count(",") + 1) * replicates
        sweep = ["sweep", "--target", "virtual:fcfs", "--rate", rates, "--runs", str(replicates), "--cohort",
                 str(COHORT), *queue]  # fmt: skip
        for events in ("none", "sample", "all"):
            out = Path(folder) / events
            took = cpu_s([*sweep, "--events", events, "--out", str(out)])
            limit = SWEEP_CPU_S * count / 84
            held = f"   < {limit:.3g} s: {mark(took < limit)}" if events == "none" else ""
            of_events, of_requests = size(out, EVENTS) / 1e6, size(out, "requests.parquet") / 1e6
            print(
                f"{count} runs of {COHORT:,}, --events {events:6} {took:6.1f} s of CPU   "
                f"events {of_events:7.1f} MB   requests {of_requests:6.1f} MB{held}",
                flush=True,
            )


if __name__ == "__main__":
    main()
