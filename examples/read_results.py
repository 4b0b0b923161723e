"""Read the results of a sweep: a table of its rates, and what the requests at the capacity waited for.

python examples/read_results.py results/from-python
"""

from __future__ import annotations

import sys

import loadgen


def main(directory: str) -> None:
    experiment = loadgen.load(directory)
    print(experiment.rates[["kind", "rate", "status", "attainment_min", "ttft_s_p95", "tpot_s_p95"]].to_string())
    capacity = experiment.answer["capacity"]
    if capacity is None:
        sys.exit(f"no capacity: {experiment.answer['reason']}")
    requests = experiment.requests(rate=capacity, cohort=True, columns=["input_tokens", "ttft_s", "tpot_s"])
    print(f"{len(requests)} requests at {capacity:.3g} requests/s")
    print(requests[["ttft_s", "tpot_s"]].quantile([0.5, 0.95, 0.99]).to_string())


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except loadgen.LoadgenError as error:
        sys.exit(f"read_results: {error}")
