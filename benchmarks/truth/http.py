"""Over HTTP in real time: the client's stamps against the server's truth log, and λ* against virtual time."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from analysis.records import derive
from benchmarks.emulator_error import Fixed, offer
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Crew, asked, ready, sweep
from loadgen.common.loop import run_loop
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.experiment.execute import sweep as live_sweep
from loadgen.experiment.prepare import prepare
from loadgen.experiment.progress import Progress
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.plan import make_plan
from loadgen.plan.types import PlanRequest, RequestFormat, RunPlan, Window
from loadgen.scenario.file import load_scenario
from loadgen.send.api import SendOptions

LOW, HIGH = 5.0, 80.0  # requests/s of 128 tokens: idle, and near what two cores carry of client and emulator together
PROFILE = "llama8b-80gb"
# bounds far above what a shared machine is late by: a client that is late by more than 1 % of them refuses a verdict
SWEEP = {
    "slo": ("ttft<=800ms", "tpot<=50ms"), "input": "256", "output": "16", "rate": "12..48", "width": "10%", "runs": 3,
    "cohort": 250, "warmup": "2s",
}  # fmt: skip


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    _stamps(board, quick=quick)
    _capacity(board, crew, quick=quick)


def _stamps(board: Board, *, quick: bool) -> None:
    board.head("Client stamps against the emulator's truth log, and real time against virtual time")
    board.say("8B profile, 16 input and 128 output tokens over HTTP. Stamp error: read by the client − written by the")
    board.say(
        "server. Beside it the same plan in virtual time: real − virtual, which holds the server's lateness too.\n"
    )
    rows = []
    for rate in (LOW, HIGH):
        plan = make_plan(
            PlanRequest(
                rate=rate,
                root_seed=101,
                window=Window(warmup_ns=2 * 10**9, window_ns=(5 if quick else 60) * 10**9, tail_ns=30 * 10**9),
            ),
            arrivals=Arrivals(),
            lengths=Fixed(16, 128),
            format=RequestFormat(),
        )
        rows += _compared(plan)
    board.table(["requests/s", "n", "metric", "stamp error p50, ms", "p99", "real − virtual p50, ms", "p99"], rows)


def _compared(plan: RunPlan) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "truth.jsonl"
        output, t0_ns, _, _ = run_loop(offer(PROFILE, plan, path))
        truth = [json.loads(line) for line in path.read_text().splitlines()]
    real = derive(output.requests)
    real = real[real["outcome"] == "ok"].sort_values("sent_ns", kind="stable")
    # sent and arrived in the same order: one connection a request, and a server that reads them as they come
    truth = sorted(truth, key=lambda row: row["arrived_ns"])[: len(real)]
    wrote = {name: np.array([row[f"{name}_ns"] for row in truth]) - t0_ns for name in ("first", "last")}
    scheduled = real["scheduled_ns"].to_numpy()
    virtual = derive(simulate_run(plan, load_profile(PROFILE), SendOptions(events="none")).requests)
    virtual = virtual.set_index("index").loc[real["index"]]
    known = {
        "TTFT": (real["ttft_s"], (wrote["first"] - scheduled) / 1e9, virtual["ttft_s"]),
        "TPOT": (real["tpot_s"], (wrote["last"] - wrote["first"]) / 1e9 / 127, virtual["tpot_s"]),
        "E2E": (real["e2e_s"], (wrote["last"] - scheduled) / 1e9, virtual["e2e_s"]),
    }
    return [
        [f"{plan.rate:g}", str(len(real)), name, *_ms(client.to_numpy() - server), *_ms(client.to_numpy() - ideal)]
        for name, (client, server, ideal) in known.items()
    ]


def _ms(errors_s: np.ndarray) -> list[str]:
    ordered = np.sort(np.abs(errors_s)) * 1e3
    return [f"{ordered[-(-share * len(ordered) // 100) - 1]:.3f}" for share in (50, 99)]


def _capacity(board: Board, crew: Crew, *, quick: bool) -> None:
    settings: dict[str, Any] = dict(SWEEP)
    if quick:
        settings |= {"width": "100%", "runs": 2, "cohort": 200}
    board.head(f"λ* over HTTP against virtual time: {PROFILE}, {' and '.join(SWEEP['slo'])}, 256 tokens in and 16 out")
    of = asked(PROFILE, **settings)
    grid = ready(of).setup.spec.grid
    virtual = crew.all(sweep, [(of, seed) for seed in crew.seeds("http/virtual", 10 if quick else 200)])
    places = sorted(grid.index(r.outcome.capacity) for r in virtual if r.outcome.capacity is not None)
    median = places[(len(places) - 1) // 2]
    near = statistics.fmean(abs(place - median) <= 2 for place in places)
    board.say(f"{len(virtual)} virtual sweeps: median {grid[median]:.4g}/s; {near:.0%} within two grid points of it.\n")
    rows, within, count = [], 0, 1 if quick else 5
    for seed in crew.seeds("http/live", count):
        twin = sweep(of, seed).outcome.capacity
        found = _over_http(settings, seed)
        if found["outcome"] != "FOUND":
            board.say(f"{found['outcome']}: {found['reason']}\n")
        place = None if found["capacity"] is None else grid.index(found["capacity"])
        within += place is not None and abs(place - median) <= 2
        off = "–" if place is None else f"{place - median:+d}"
        beside = "–" if place is None or twin is None else f"{place - grid.index(twin):+d}"
        invalid = sum(run["status"] == "INVALID" for run in found["runs"])
        rows.append(
            [found["outcome"], "–" if place is None else f"{grid[place]:.4g}", off, beside, str(len(found["runs"])),
             str(invalid)]
        )  # fmt: skip
    board.table(
        ["outcome", "λ* over HTTP", "grid points off the virtual median", "off its virtual twin (same seeds)", "runs",
         "of them INVALID"],
        rows,
    )  # fmt: skip
    board.hold(
        "λ* over HTTP within two grid points of the virtual median",
        f"{within} of {count} sweeps",
        f"≥ {max(1, count - 1)} of {count}",
        within >= max(1, count - 1),
    )


def _over_http(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    scenario = load_scenario(None, {**settings, "target": (f"emulator:{PROFILE}",), "seed": seed})

    async def run(folder: str) -> dict[str, Any]:
        _, answer = await live_sweep(
            prepare(scenario), Path(folder) / "r", resume=False, progress=Progress(), stop=anyio.Event()
        )
        return answer

    with tempfile.TemporaryDirectory() as folder:
        return run_loop(run(folder))
