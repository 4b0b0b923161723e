"""How late does the emulator write what its model says is due, and what does an event cost it?

The embedded server runs as a process of its own on a profile; our sender offers Poisson arrivals. From the truth log:
write error = instant of the write − instant the model gave, of first and last tokens. From the client's records:
client error = first token read − first token written. CPU is the server process's own, over all it did.

    python benchmarks/emulator_error.py [--profile fcfs-fast] [--rate 180] [--seconds 20] [--input 1024] [--output 128]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from loadgen.common.loop import run_loop
from loadgen.common.members import JsonMembers
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.bodies import Bodies, BodyRing
from loadgen.plan.lengths import DrawnLengths
from loadgen.plan.plan import make_plan
from loadgen.plan.types import PlanRequest, RequestFormat, RunPlan, Window
from loadgen.send.api import Endpoint, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from loadgen.target.emulated import launch


class Fixed:
    """Equal lengths."""

    def __init__(self, tokens_in: int, tokens_out: int) -> None:
        self._in, self._out = tokens_in, tokens_out

    def draw(self, rng: np.random.Generator, n: int) -> DrawnLengths:
        column = np.ones(n, dtype=np.int64)
        return DrawnLengths(
            input_tokens=column * self._in, output_tokens=column * self._out, prefix_tokens=column * 0,
            prefix_group=column * 0 - 1,
        )  # fmt: skip


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def offer(profile: str, plan: RunPlan, truth: Path) -> tuple[RunOutput, int, float, str]:
    async with launch(profile, truth_log=truth) as emulated:
        endpoint = Endpoint(urls=(emulated.url,), path="/v1/completions", model="emulator")
        clock = LoopClock()
        before = cpu_s(emulated.pid)
        output = await send_run(
            plan, BodyRing(Bodies(plan, JsonMembers.of(model="emulator"))), endpoint, SendOptions(), clock=clock
        )
        t0_ns = time.monotonic_ns() - clock.now_ns()
        clock.close()
        return output, t0_ns, cpu_s(emulated.pid) - before, emulated.description


def row(name: str, values_s: np.ndarray) -> str:
    ms = np.sort(values_s) * 1e3
    p50, p99 = (ms[-(-share * len(ms) // 100) - 1] for share in (50, 99))
    return f"{name:<26} n {len(ms):>6}   p50 {p50:7.3f} ms   p99 {p99:7.3f} ms   max {ms[-1]:8.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="fcfs-fast")
    parser.add_argument("--rate", type=float, default=180.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--input", type=int, default=1024)
    parser.add_argument("--output", type=int, default=128)
    args = parser.parse_args()
    plan = make_plan(
        PlanRequest(
            rate=args.rate,
            root_seed=101,
            window=Window(warmup_ns=10**9, window_ns=round(args.seconds * 1e9), tail_ns=30 * 10**9),
        ),
        arrivals=Arrivals(),
        lengths=Fixed(args.input, args.output),
        format=RequestFormat(),
    )
    with tempfile.TemporaryDirectory() as folder:
        truth = Path(folder) / "truth.jsonl"
        output, t0_ns, used_s, description = run_loop(offer(args.profile, plan, truth))
        rows = [json.loads(line) for line in truth.read_text().splitlines()]
    ok = output.requests[output.requests["outcome"] == "ok"]
    print(f"{args.profile}: {description}; {args.rate:g} requests/s, {args.input}/{args.output} tokens")
    print(row("write error, first token", np.array([(r["first_ns"] - r["first_due_ns"]) / 1e9 for r in rows])))
    print(row("write error, last token", np.array([(r["last_ns"] - r["last_due_ns"]) / 1e9 for r in rows])))
    # requests arrive in schedule order, but for ties within the sender's lag: matched by rank
    wrote = np.sort([r["first_ns"] for r in rows])[: len(ok)] - t0_ns
    read = np.sort(ok["first_token_ns"].to_numpy())
    print(row("client error, first token", (read - wrote[: len(read)]) / 1e9))
    reads = int(ok["token_reads"].sum())
    print(f"server CPU {used_s:.2f} s: {used_s / max(len(rows), 1) * 1e3:.2f} ms a request, {reads} writes read, "
          f"{used_s / max(reads, 1) * 1e6:.0f} us a write with all else")  # fmt: skip


if __name__ == "__main__":
    main()
