"""`vllm bench serve` and `loadgen run` on the same server: rate, number and lengths equal, both tables side by side.

    python -m benchmarks.vs_vllm_bench --target http://127.0.0.1:8000 --vllm VENV/bin/vllm --tokenizer MODEL_DIR

Prints Markdown. The server's own sums of both intervals stand beside the two clients' means: it is the same clock for
both. Differences are explained from the numbers of this very run where these can say it, and from the other program's
source (vLLM 0.32, benchmarks/serve.py and lib/endpoint_request_func.py) where they cannot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd

from analysis.cohort import mask, nearest_rank
from analysis.records import itl_s
from analysis.units import parse_duration_s
from loadgen.results.events import read_events

METRICS = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2el"}
SUMS = {"TTFT": "time_to_first_token_seconds", "E2E": "e2e_request_latency_seconds"}
STATISTICS = ("mean", "p50", "p95", "p99")


@dataclass(frozen=True)
class Side:
    """One program's view, milliseconds, and the server's means of the same interval."""

    values: dict[str, dict[str, float]]
    server: dict[str, tuple[float, float]]
    facts: dict[str, str]


def sums(url: str) -> dict[str, tuple[float, float]]:
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=30).text.splitlines()

    def total(name: str) -> float:
        return sum(float(line.rsplit(" ", 1)[1]) for line in text if line.startswith(f"vllm:{name}{{"))

    return {metric: (total(f"{name}_sum"), total(f"{name}_count")) for metric, name in SUMS.items()}


def means(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> dict[str, Any]:
    found = {}
    for metric, (total, count) in after.items():
        n = count - before[metric][1]
        found[metric] = ((total - before[metric][0]) / max(n, 1) * 1e3, n)
    return found


def ran(command: list[str], environment: dict[str, str]) -> None:
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1, 4):  # a FAIL or an INVALID is a result too
        sys.exit(f"{command[0]} ended with {ended.returncode}: {ended.stderr[-2000:]}")


def of_bench(asked: argparse.Namespace, folder: Path) -> Side:
    before = sums(asked.target)
    ran(
        [
            asked.vllm, "bench", "serve", "--backend", "vllm", "--base-url", asked.target, "--endpoint",
            "/v1/completions", "--model", asked.model, "--tokenizer", asked.tokenizer, "--dataset-name", "random",
            "--random-input-len", str(asked.input), "--random-output-len", str(asked.output), "--num-prompts",
            str(asked.requests), "--request-rate", str(asked.rate), "--seed", str(asked.seed), "--ignore-eos",
            "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99",
            "--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "bench.json",
            "--disable-tqdm",
        ],
        {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
    )  # fmt: skip
    told = json.loads((folder / "bench.json").read_text())
    values = {
        metric: {"mean": told[f"mean_{name}_ms"], **{p: told[f"{p}_{name}_ms"] for p in STATISTICS[1:]}}
        for metric, name in METRICS.items()
    }
    starts = np.sort(np.array(told["start_times"]))
    facts = {
        "requests": f"{told['completed']} completed, {told.get('failed', 0)} failed",
        "measured": f"all, {told['duration']:.1f} s until the last answer",
        "requests/s, sent": f"{(len(starts) - 1) / (starts[-1] - starts[0]):.3f}",
        "requests/s, answered": f"{told['request_throughput']:.3f}",
        "output tokens/s": f"{told['output_throughput']:.1f}",
        "input tokens, mean": f"{told['total_input_tokens'] / told['completed']:.2f}",
        "output tokens, mean": f"{told['total_output_tokens'] / told['completed']:.2f}",
        "verdict": "none",
    }
    return Side(values=values, server=means(before, sums(asked.target)), facts=facts)


def of_loadgen(asked: argparse.Namespace, folder: Path) -> tuple[Side, dict[str, Any], pd.DataFrame]:
    code = "from loadgen.cli import main; main()"
    ran(
        [
            sys.executable, "-c", code, "run", "--target", asked.target, "--rate", str(asked.rate), "--cohort",
            str(asked.requests), "--min-requests", str(asked.requests), "--input", str(asked.input), "--output",
            str(asked.output), "--seed", str(asked.seed), "--slo", asked.slo, "--warmup", asked.warmup, "--quiet",
            "--out", str(folder / "run"), *(["--model", asked.model] if asked.model else []),
        ],
        dict(os.environ),
    )  # fmt: skip
    (manifest,) = (folder / "run").glob("runs/main/*/run.json")
    run = json.loads(manifest.read_text())
    requests = pd.read_parquet(manifest.parent / "requests.parquet")
    cohort = requests[mask(requests, warmup_ns=run["window"]["warmup_ns"], window_ns=run["window"]["window_ns"])]
    ok = cohort[cohort["outcome"] == "ok"]
    events = read_events(manifest.parent)
    gaps = itl_s(events[events["index"].isin(ok["index"])])
    seconds = {"TTFT": ok["ttft_s"], "TPOT": ok["tpot_s"].dropna(), "ITL": gaps, "E2E": ok["e2e_s"]}
    values = {metric: statistics(np.asarray(column)) for metric, column in seconds.items()}
    span_s = run["window"]["window_ns"] / 1e9
    facts = {
        "requests": f"{len(ok)} ok, {len(cohort) - len(ok)} not",
        "measured": f"the cohort of a window of {span_s:.1f} s, after warm-up",
        "requests/s, sent": f"{run['verdict']['sent_rate']:.3f}",
        "requests/s, answered": f"{len(ok) / span_s:.3f}",
        "output tokens/s": f"{ok['output_tokens'].sum() / span_s:.1f}",
        "input tokens, mean": f"{ok['input_tokens'].mean():.2f}",
        "output tokens, mean": f"{ok['output_tokens'].mean():.2f}",
        "verdict": f"{run['verdict']['status']} ({asked.slo})",
    }
    told = run["server"]["metrics"]  # of the run alone: the target's warm-up and the probes are not in it
    server = {
        metric: (told[name]["mean"] * 1e3, told[name]["n"]) for metric, name in (("TTFT", "ttft_s"), ("E2E", "e2e_s"))
    }
    return Side(values=values, server=server, facts=facts), run, ok


def statistics(seconds: np.ndarray) -> dict[str, float]:
    ordered = np.sort(seconds) * 1e3
    return {"mean": float(ordered.mean()), **{p: nearest_rank(ordered, int(p[1:]) / 100) for p in STATISTICS[1:]}}


def table(bench: Side, own: Side) -> None:
    print("| | `vllm bench serve` | `loadgen run` |\n| --- | ---: | ---: |")
    for name in bench.facts:
        print(f"| {name} | {bench.facts[name]} | {own.facts[name]} |")
    for metric in METRICS:
        for statistic in STATISTICS:
            row = bench.values[metric][statistic], own.values[metric][statistic]
            print(f"| {metric} {statistic}, ms | {row[0]:.1f} | {row[1]:.1f} |")
    for metric in SUMS:
        cells = [f"{side.server[metric][0]:.1f} (n {side.server[metric][1]:.0f})" for side in (bench, own)]
        print(f"| server's own mean {metric} meanwhile, ms | {cells[0]} | {cells[1]} |")


def explanation(asked: argparse.Namespace, bench: Side, own: Side, run: dict[str, Any], ok: pd.DataFrame) -> None:
    from_sent = float(ok["ttft_from_sent_s"].mean()) * 1e3
    own_ttft = own.values["TTFT"]["mean"]
    interpolated = float(np.percentile(ok["ttft_s"], 99)) * 1e3
    events, tokens = float(ok["token_events"].mean()), float(ok["output_tokens"].mean())
    lag = run["facts"]["sender"]["heartbeat_p99_s"] * 1e3
    referee = {metric: own.server[metric][0] - bench.server[metric][0] for metric in SUMS}
    print(f"""
Why they differ:

- **The load was not the same sample path.** The server itself measured a mean TTFT {referee["TTFT"]:+.1f} ms and E2E
  {referee["E2E"]:+.1f} ms apart (loadgen − bench) in the two intervals: so much of the difference is no client's doing.
- **Arrivals.** bench draws {asked.requests} Poisson gaps and rescales them so that the last falls on
  {asked.requests / asked.rate:.0f} s: its count is fixed and its rate always comes out as asked. loadgen never
  rescales: its window lasts until {asked.requests} requests are in it, and the realised rate is printed.
- **What is measured.** bench takes all its requests, the cold first ones and the emptying end included; loadgen warms
  up, takes the requests scheduled in the window and keeps the load on until the last of them is decided.
- **When the clock starts.** bench starts it when the request's task runs, so what its own event loop is late by is in
  no number. loadgen starts it at the scheduled instant: TTFT mean {own_ttft:.1f} ms, {from_sent:.1f} ms from the send
  (its event loop was late by {lag:.1f} ms at p99; beyond its limit the run is INVALID).
- **When a token is stamped.** bench after parsing JSON in the same loop, loadgen when the socket read returns.
- **TPOT** is (last − first)/(tokens − 1) for both. bench puts 0 for an answer of one token and counts that as good.
- **ITL** is a gap between events for both; {events:.1f} events carried {tokens:.1f} tokens here.
- **Percentiles.** bench interpolates, loadgen takes the nearest rank: TTFT p99 of loadgen's own requests is
  {own.values["TTFT"]["p99"]:.1f} ms by rank and {interpolated:.1f} ms interpolated.
- **Failures.** bench leaves them out of every latency, and takes a stream that ends in an error event for a success;
  for loadgen each is a miss in the denominator.
- **Prompts.** bench sends text made from random ids and counts on the tokenizer to give the same number back
  ({bench.facts["input tokens, mean"]} reported for {asked.input} asked); loadgen sends the ids
  ({own.facts["input tokens, mean"]} reported), under a cache_salt of the run. A second bench with the same seed meets
  its prompts in the prefix cache.
- **The server's means** beside loadgen's are of all {own.server["TTFT"][1]:.0f} requests it saw in the run, warm-up and
  those after the window included; the client's are of the {len(ok)} in the window. `run.json` holds both
  of the same ones.
- **Throughput.** bench divides by the time until the last answer, loadgen by the window.
- **Verdict.** bench has none; its goodput needs thresholds and knows neither failures nor a rising queue.""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="http://127.0.0.1:8000")
    parser.add_argument("--vllm", required=True, help="the vllm command")
    parser.add_argument("--tokenizer", required=True, help="folder of the served model")
    parser.add_argument("--model", help="served name, if there are several")
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slo", default="ttft<=800ms")
    parser.add_argument("--warmup", default="10s")
    asked = parser.parse_args()
    parse_duration_s(asked.warmup)
    if asked.model is None:
        asked.model = httpx.get(f"{asked.target}/v1/models", trust_env=False).json()["data"][0]["id"]
    with tempfile.TemporaryDirectory() as folder:
        bench = of_bench(asked, Path(folder))
        own, run, ok = of_loadgen(asked, Path(folder))
    print(
        f"{asked.rate:g} requests/s, {asked.requests} requests, {asked.input} input and {asked.output} output tokens.\n"
    )
    table(bench, own)
    explanation(asked, bench, own, run, ok)


if __name__ == "__main__":
    main()
