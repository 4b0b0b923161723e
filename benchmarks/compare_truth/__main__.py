"""How do we know that a comparison is right? Simulated variants whose difference is known, compared many times.

    python -m benchmarks.compare_truth [--quick] [--only ranking,aa,power] [--processes N] [--seed N]
                                       [--comparisons N]

Whole comparisons in virtual time (`rehearse_comparison`): a search for each variant, then the paired phase. Each line
has a measured number; where there is a target, it stands beside it, and a missed one is said to be missed. A part takes
ten to thirty minutes of one core; `--quick` takes two in all, and shows how things are done, not how good they are.
Another `--seed` repeats everything with fresh randomness. Exit code 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from benchmarks.compare_truth import aa, power, ranking
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Crew

SECTIONS = ("ranking", "aa", "power")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, comma-separated (default: all)")
    parser.add_argument("--comparisons", type=int, default=40, help="a row of the power tables (default: 40)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := sorted(set(chosen) - set(SECTIONS)):
        parser.error(f"no section is called {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    board = Board()
    show = {"ranking": ranking.show, "aa": aa.show, "power": partial(power.show, count=args.comparisons)}
    with Crew(args.processes, args.seed) as crew:
        for name in chosen:
            began = time.perf_counter()
            show[name](board, crew, quick=args.quick)
            board.say(f"({name}: {time.perf_counter() - began:.0f} s)")
    sys.exit(board.close(quick=args.quick))


if __name__ == "__main__":
    main()
