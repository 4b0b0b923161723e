"""How often a gate against a baseline errs: false alarms of A against A, and planted changes that it catches.

    python -m benchmarks.gate_error [--gates 4000] [--seed 41]

Whole gates (`analysis.compare.gate`) on simulated runs. Paired differences of each endpoint have the standard
deviation `sd`: independent between endpoints in A against A, correlated 0.7 where all endpoints are worse alike.
`skewed` differences are exponential, with their long tail towards "better". Targets: at most 5 % alarms in A against A,
at least 80 % of 10 % worse. No server is measured here: which `sd` a server has is another question.
"""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np
import numpy.typing as npt

from analysis.compare.gate import GATE_ENDPOINTS, gate
from analysis.compare.types import VariantRun

CORRELATION: Final = 0.7
Floats = npt.NDArray[np.float64]


def runs(variant: str, worse: Floats) -> list[VariantRun]:
    """Runs that are `worse`, shape (endpoints, R), than a level that all have in common."""
    return [
        VariantRun(
            variant=variant, label="", rate=1.0, rate_per_gpu=1.0, replicate=r, seed=r, status="PASS",
            attainment=0.9 - attainment, good_requests=1, goodput_per_s=1.0, good_output_tokens=1,
            token_goodput_per_s=100 * (1 - tokens), g_card=1.0, log_ttft=ttft, log_e2e=e2e,
            schedule_sha256="", workload_sha256="", results_sha256=f"{variant}{r}",
        )
        for r, (attainment, tokens, ttft, e2e) in enumerate(worse.T)
    ]  # fmt: skip


def alarms(draw: np.random.Generator, gates: int, *, sd: float, count: int, worse: float, skewed: bool) -> float:
    """Share of `gates` with `count` pairs that alarm."""
    shape, found = (len(GATE_ENDPOINTS), count), 0
    baseline = runs("a", np.zeros(shape))
    shared = np.sqrt(CORRELATION) if worse else 0.0
    for _ in range(gates):
        if skewed:
            noise = 1 - draw.exponential(size=shape)
        else:
            noise = shared * draw.normal(size=(1, count)) + np.sqrt(1 - shared**2) * draw.normal(size=shape)
        found += gate(runs("b", worse + sd * noise), baseline).name == "WORSE"
    return found / gates


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=41)
    asked = parser.parse_args()
    draw = np.random.default_rng(asked.seed)
    print("| paired sd | R | A/A | A/A, skewed | 5 % worse | 10 % worse |")
    print("| --- | --- | --- | --- | --- | --- |")
    for sd in (0.03, 0.05, 0.08):
        for count in (6, 8, 10, 20):
            cells = [(0.0, False), (0.0, True), (0.05, False), (0.10, False)]
            shares = [
                alarms(draw, asked.gates, sd=sd, count=count, worse=worse, skewed=skewed) for worse, skewed in cells
            ]
            print(f"| {sd:.0%} | {count} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")


if __name__ == "__main__":
    main()
