"""How do we know that the answer is right? Everything that can be known is compared with what the product says.

    python -m benchmarks.truth [--quick] [--only queues,drift,...] [--processes N] [--seed N]

All runs go through the product's own plans, records, judge and search. Each line has a measured number; where there is
a target, it stands beside it, and a missed one is said to be missed. The whole takes about an hour on two cores, half
of that in `http`, which runs in real time and needs a machine that does nothing else. `--quick` takes two minutes and
so few samples that it shows how things are done, not how good they are. Another `--seed` repeats everything with fresh
randomness. Exit code 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial

from benchmarks.truth import claims, drift, errors, http, queues, speed, windows
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Crew

SECTIONS = {
    "queues": queues.show,
    **{f"claims-{name}": partial(claims.show, name) for name in claims.SERVERS},
    "drift": drift.show,
    "errors": errors.show,
    "windows": windows.show,
    "speed": speed.show,
    "http": http.show,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, comma-separated (default: all)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := sorted(set(chosen) - set(SECTIONS)):
        parser.error(f"no section is called {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    board = Board()
    with Crew(args.processes, args.seed) as crew:
        for name in chosen:
            began = time.perf_counter()
            SECTIONS[name](board, crew, quick=args.quick)
            board.say(f"({name}: {time.perf_counter() - began:.0f} s)")
    sys.exit(board.close(quick=args.quick))


if __name__ == "__main__":
    main()
