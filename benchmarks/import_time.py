"""How long a new process takes until it is of use: the medians of so many starts, of wall time and of processor time.

    python benchmarks/import_time.py [--repeats 15]

Run it on an idle machine; on a busy one only processor time says something. Targets on an idle core: `import loadgen`
0.15 s, `loadgen --help` 0.4 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

WHAT = {
    "python -c pass": ["-c", "pass"],
    "import loadgen": ["-c", "import loadgen"],
    "from loadgen import Scenario": ["-c", "from loadgen.scenario import Scenario"],
    "loadgen --help": ["-m", "loadgen", "--help"],
    "loadgen sweep --help": ["-m", "loadgen", "sweep", "--help"],
    "the metrics process": ["-c", "import loadgen.target.scraper"],
}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Wall and processor time of one start."""
    began, used = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    return time.perf_counter() - began, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    for name, arguments in WHAT.items():
        wall, cpu = zip(*(seconds(arguments) for _ in range(repeats)), strict=True)
        print(f"{name:<30} wall {statistics.median(wall):.3f} s, processor {statistics.median(cpu):.3f} s")


if __name__ == "__main__":
    main()
