"""How many requests a second virtual time simulates on one core, from plan to sealed-ready table.

    python benchmarks/virtual_speed.py

Prints, for each kind of server, requests per second of CPU time of the whole `simulate_run` (server, rules of the run,
request table; no event table) and of the server alone, and the ratio of the batching engine to one that walks every
pass. CPU time of this process, median of three, so that a busy machine disturbs it less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from analysis.slo import Slo
from loadgen.emulator.engine.core import Engine
from loadgen.emulator.engine.profile import BatchingProfile
from loadgen.emulator.engine.types import Sequence
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.plan.types import RequestFormat, RunPlan, Schedule, Window
from loadgen.send.api import SendOptions

OPTIONS = SendOptions(slo=Slo(ttft_s=0.8, tpot_s=0.05), timeout_s=60.0, events="none")


def poisson(rate: float, n: int, *, tokens: tuple[int, int], prefix: int = 0) -> RunPlan:
    rng = np.random.default_rng(1)
    at_ns = np.cumsum(rng.exponential(1e9 / rate, n)).astype(np.int64)
    return RunPlan(
        schedule=Schedule(at_ns=at_ns),
        input_tokens=np.full(n, tokens[0]),
        output_tokens=np.full(n, tokens[1]),
        prefix_tokens=np.full(n, prefix),
        prefix_group=rng.integers(0, 8, n) if prefix else np.full(n, -1),
        content_seed=1,
        window=Window(warmup_ns=0, window_ns=int(at_ns[-1]) + 1, tail_ns=10**10),
        format=RequestFormat(),
        rate=rate,
        root_seed=1,
        workload_sha256="",
    )


def cpu_s(work: Callable[[], object]) -> float:
    took = []
    for _ in range(3):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return statistics.median(took)


def walk(profile: BatchingProfile, plan: RunPlan) -> None:
    """The same engine, one pass at a time."""
    engine = Engine(profile.limits(), profile.cost())
    at_ps = (plan.schedule.at_ns * 1000).tolist()
    inputs, outputs = plan.input_tokens.tolist(), plan.output_tokens.tolist()
    now_ps = head = 0
    while head < len(at_ps) or engine.running or engine.waiting:
        while head < len(at_ps) and at_ps[head] <= now_ps:
            engine.add(Sequence(head, inputs[head], outputs[head]))
            head += 1
        step = engine.step()
        now_ps = now_ps + step.duration_ps if step.steps else at_ps[head]


def main() -> None:
    rows = [
        ("fcfs queue, O = 1", "fcfs", poisson(6, 500_000, tokens=(16, 1))),
        ("8B batching, rate 2/s", "llama8b-80gb", poisson(2, 50_000, tokens=(1024, 128))),
        ("8B batching, rate 8/s", "llama8b-80gb", poisson(8, 50_000, tokens=(1024, 128))),
        ("8B, shared prefixes, rate 3/s", "llama8b-80gb", poisson(3, 20_000, tokens=(1024, 128), prefix=512)),
        ("8B, shared prefixes, rate 10/s", "llama8b-80gb", poisson(10, 20_000, tokens=(1024, 128), prefix=512)),
    ]
    for name, target, plan in rows:
        profile = load_profile(target)
        whole_s = cpu_s(lambda plan=plan, profile=profile: simulate_run(plan, profile, OPTIONS))  # type: ignore[misc]
        line = f"{name:32} {len(plan) / whole_s:>12,.0f} requests/s"
        if isinstance(profile, BatchingProfile):
            serve_s = cpu_s(
                lambda plan=plan, profile=profile: profile.serve(  # type: ignore[misc]
                    plan, plan.output_tokens, timeout_ns=60 * 10**9, until=len(plan)
                )
            )
            line += f"   server alone {len(plan) / serve_s:>12,.0f}"
        print(line, flush=True)
    profile, plan = load_profile("llama8b-80gb"), poisson(8, 50_000, tokens=(1024, 128))
    assert isinstance(profile, BatchingProfile)
    few = 2_000
    short = replace(
        plan,
        schedule=Schedule(at_ns=plan.schedule.at_ns[:few]),
        **{
            name: getattr(plan, name)[:few]
            for name in ("input_tokens", "output_tokens", "prefix_tokens", "prefix_group")
        },
    )
    walked = few / cpu_s(lambda: walk(profile, short))
    served = len(plan) / cpu_s(lambda: profile.serve(plan, plan.output_tokens, timeout_ns=60 * 10**9, until=len(plan)))
    print(
        f"{'8B at 8/s, walking every pass':32} {walked:>12,.0f} requests/s   the jump is {served / walked:.0f}x faster"
    )


if __name__ == "__main__":
    main()
