"""What does a request cost when one process sends, and when several send together?

128-token streams, a token each 10 ms, Poisson arrivals, to server.c. CPU is that of all sending processes and of the
coordinator, from before the order until the run's tables are merged, over the requests of the run; starting the
processes is left out, since that is once an experiment. `lag` is p99 of the client's own send lag. Rounds take turns.

What a request costs a process depends on how busy it is: a busy one reads more at a time, and reads fewer requests
promptly. So several processes are compared with one at the same rate per process (`--rate`), where the ratio of the
medians is the cost of sending together, and at the same rate in all, where it is that and of being less busy.

    python -m benchmarks.workers [--counts 1,2] [--rate 150] [--seconds 10] [--repeat 3]

With `--ceiling` rates rise by a quarter until two in a row fail (send lag p99 above 5 ms, or a stream that did not come
whole), and the highest that holds is printed for each count: it says something on a machine with more cores than
processes and server need.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.client_ceiling import TOKENS, WARMUP_S, lean_server, schedule_s, told
from loadgen.common.loop import run_loop
from loadgen.common.members import JsonMembers
from loadgen.experiment.workers.pool import Workers, opened_workers
from loadgen.plan.bodies import Bodies, BodyRing
from loadgen.plan.types import RequestFormat, RunPlan, Schedule, Window
from loadgen.results.journal import Journal
from loadgen.send.api import Endpoint, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run

SLOT = JsonMembers.of(model="tiny")
LAG_MS = 5.0


def plan_of(rate: float, seconds: float) -> RunPlan:
    at_ns = (schedule_s(rate, seconds) * 1e9).astype(np.int64)
    tokens = np.full(at_ns.size, TOKENS, dtype=np.int64)
    return RunPlan(
        schedule=Schedule(at_ns=at_ns), input_tokens=tokens, output_tokens=tokens, prefix_tokens=tokens * 0,
        prefix_group=tokens * 0 - 1, content_seed=0, format=RequestFormat(stop="natural"), rate=rate, root_seed=0,
        workload_sha256="", window=Window(warmup_ns=0, window_ns=int(at_ns[-1]) + 1, tail_ns=10**10),
    )  # fmt: skip


def cpu_s(pids: tuple[int, ...]) -> float:
    """CPU of this process and of those, user and system, since their starts."""
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def run_once(plan: RunPlan, url: str, workers: Workers | None, path: Path) -> tuple[RunOutput, float]:
    endpoint = Endpoint(urls=(url,), path="/v1/completions", model="tiny")
    options, stop = SendOptions(events="prompt"), asyncio.Event()
    pids = () if workers is None else workers.pids
    before_s = cpu_s(pids)
    with closing(LoopClock()) as clock, Journal(path) as journal:
        if workers is None:
            bodies = BodyRing(Bodies(plan, SLOT))
            output = await send_run(
                plan, bodies, endpoint, options, clock=clock, sink=journal, progress=lambda _: None, stop=stop
            )
        else:
            output = await workers.send(
                plan, SLOT, endpoint, options, clock=clock, sink=journal, progress=lambda _: None, stop=stop
            )
    return output, cpu_s(pids) - before_s


async def measured(count: int, rate: float, seconds: float) -> tuple[float, bool]:
    """µs of CPU a request, and whether the rate held."""
    plan = plan_of(rate, seconds)
    with tempfile.TemporaryDirectory() as folder:
        core = sorted(os.sched_getaffinity(0))[-1]
        server = lean_server(Path(folder), len(plan), core=core)
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            if count == 1:
                output, used_s = await run_once(plan, url, None, Path(folder) / "journal")
            else:
                async with opened_workers(count) as workers:
                    await run_once(plan_of(50, 0.2), url, workers, Path(folder) / "first")  # imports are over by then
                    output, used_s = await run_once(plan, url, workers, Path(folder) / "journal")
        finally:
            told(server)
    requests = output.requests
    lag_ms = np.sort((requests["sent_ns"] - requests["scheduled_ns"]).to_numpy()) / 1e6
    lag_p99_ms = float(lag_ms[-(-99 * lag_ms.size // 100) - 1])
    whole = int((requests["outcome"] == "ok").sum())
    good = whole == len(plan) and lag_p99_ms < LAG_MS
    cost_us = used_s / len(requests) * 1e6
    print(
        f"  {count} processes  {rate:5g}/s  CPU {cost_us:6.0f} us a request  lag p99 {lag_p99_ms:6.2f} ms"
        f"  whole {whole}/{len(plan)}",
        flush=True,
    )
    return cost_us, good


def ceiling(count: int, rate: float, seconds: float) -> float:
    best, failed = 0.0, 0
    while failed < 2:
        _, good = run_loop(measured(count, rate, seconds))
        best, failed = (rate, 0) if good else (best, failed + 1)
        rate = round(rate * 1.25)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="1,2")
    parser.add_argument("--rate", type=float, default=150.0, help="of one process")
    parser.add_argument("--seconds", type=float, default=10.0, help=f"after {WARMUP_S:g} s of warm-up")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ceiling", action="store_true")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.counts.split(",")]
    if arguments.ceiling:
        highest = {count: ceiling(count, arguments.rate, arguments.seconds) for count in counts}
        print(f"highest rate that holds, of {os.cpu_count()} cores: {highest}")
        for count in counts[1:]:
            print(
                f"  {count} / {counts[0]} processes: {highest[count] / max(highest[counts[0]], 1):.2f} times the rate"
            )
        return
    costs: dict[tuple[int, float], list[float]] = {}
    points = [(1, arguments.rate)]
    for count in counts:
        if count > 1:
            points += [(count, arguments.rate * count), (count, arguments.rate)]
    for _ in range(arguments.repeat):
        for point in points:
            costs.setdefault(point, []).append(run_loop(measured(*point, arguments.seconds))[0])
    medians = {point: statistics.median(found) for point, found in costs.items()}
    one = medians[points[0]]
    for (count, rate), cost in medians.items():
        if count > 1:
            alike = (
                "the same rate per process (target 1.10 at most)" if rate > arguments.rate else "the same rate in all"
            )
            print(f"CPU a request, {count} processes over 1: {cost / one:.2f} at {alike}")


if __name__ == "__main__":
    main()
