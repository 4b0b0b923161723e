"""How long a plan takes: 10^7 Poisson arrivals, and the encoding of request bodies.

    python benchmarks/plan_speed.py

Budget: 10^7 Poisson arrivals in less than one second on one core. Bodies are encoded in the gaps between sends, so
their cost bounds the rate at which a client can keep up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from loadgen.common.members import JsonMembers
from loadgen.plan.arrivals import Arrivals, schedule_horizon
from loadgen.plan.bodies import Bodies
from loadgen.plan.lengths import Lengths, parse_law
from loadgen.plan.plan import make_plan
from loadgen.plan.seeds import stream
from loadgen.plan.types import NS, PlanRequest, RequestFormat, RunPlan, Window

COUNT = 10_000_000
COUNTED = 1500  # bodies
SLOT = JsonMembers.of(model="m", cache_salt="0" * 16)


def best_s(work: Callable[[], object], repeat: int = 3) -> float:
    times = []
    for _ in range(repeat):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def plan(tokens: int, form: RequestFormat) -> RunPlan:
    return make_plan(
        PlanRequest(rate=100.0, root_seed=1, window=Window(warmup_ns=0, window_ns=20 * NS, tail_ns=0)),
        arrivals=Arrivals(),
        lengths=Lengths(input=parse_law(str(tokens))),
        format=form,
    )


def main() -> None:
    print(f"numpy {np.__version__}")
    raw_s = best_s(lambda: stream(1, "arrivals").standard_exponential(COUNT))
    for name, arrivals in (
        ("poisson", Arrivals()),
        ("gamma k=0.25", Arrivals.gamma(shape=0.25)),
        ("gamma k=4", Arrivals.gamma(shape=4)),
        ("constant", Arrivals(kind="constant")),
    ):
        took_s = best_s(lambda a=arrivals: schedule_horizon(a, 1000.0, COUNT // 1000 * NS, stream(1, "arrivals")))
        print(f"{name:13} 1e7 arrivals with hash  {took_s:6.3f} s  ({took_s / raw_s:.1f} x the bare exponential draws)")
    for name, form in (
        ("ids", RequestFormat()),
        ("text", RequestFormat(prompt="text")),
        ("chat", RequestFormat(endpoint="chat", prompt="text")),
    ):
        for tokens in (128, 1024):
            made = plan(tokens, form)
            values = list(range(1000, 1000 + tokens))
            took_s = best_s(lambda b=Bodies(made, SLOT): [b.encode(i) for i in range(COUNTED)]) / COUNTED  # noqa: B008
            plain_s = best_s(lambda v=values: [json.dumps({"prompt": v}) for _ in range(COUNTED)]) / COUNTED
            print(
                f"{name:4} body of {tokens:4} tokens {took_s * 1e6:6.1f} us (json.dumps of ids {plain_s * 1e6:.1f} us)"
            )


if __name__ == "__main__":
    main()
