"""How long a new process takes until it is of use: the median of so many starts, seconds, less those of Python itself.

    python benchmarks/import_time.py [--repeats 15]

Run it on an idle machine. Targets on an idle core: `import loadgen` 0.15 s, `loadgen --help` 0.4 s.
"""

from __future__ import annotations

import argparse
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


def seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    for name, arguments in WHAT.items():
        took = sorted(seconds(arguments) for _ in range(repeats))
        print(f"{name:<30} median {statistics.median(took):.3f} s, fastest {took[0]:.3f} s")


if __name__ == "__main__":
    main()
