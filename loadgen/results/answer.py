"""An experiment's results directory, read back: the answer that its ledger gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from analysis.cohort import mask
from analysis.report.buckets import by_length
from analysis.report.capacity import answer
from analysis.search import Outcome, RunRequest, SearchSpec
from analysis.slo import Slo
from analysis.units import parse_share
from analysis.verdict import RunVerdict
from loadgen.common.errors import ResultsError
from loadgen.results.store import read_json, read_ledger
from loadgen.scenario.model import Scenario
from loadgen.workload.workload import Workload

__all__ = ["JudgedRun", "assemble", "conditions", "judged_runs", "notes"]

JudgedRun = tuple[RunRequest, RunVerdict]

_BUCKET_COLUMNS = [
    "scheduled_ns",
    "sent_ns",
    "first_token_ns",
    "last_token_ns",
    "outcome",
    "certain_miss",
    "input_tokens_planned",
    "output_tokens_planned",
    "input_tokens",
    "output_tokens",
    "first_read_tokens",
    "token_events",
    "token_reads",
    "client_queue_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "ttft_from_sent_s",
    "e2e_from_sent_s",
]


def judged_runs(directory: Path) -> list[JudgedRun]:
    """The ledger as (request, verdict) pairs. Raises `ResultsError`."""
    lines = read_ledger(directory)
    try:
        return [(RunRequest.from_dict(line["run"]), RunVerdict.from_dict(line["verdict"])) for line in lines]
    except (KeyError, TypeError) as error:
        raise ResultsError(f"{directory}: its ledger was written by another version of loadgen ({error})") from None


def conditions(scenario: Scenario, workload: Workload, spec: SearchSpec, experiment: dict[str, Any]) -> dict[str, Any]:
    """All that a capacity is a property of; comparisons where these differ are refused."""
    slo = scenario.objective
    return {
        "target": experiment["target"]["label"],
        "simulated": experiment["target"]["simulated"],
        "model": experiment["target"]["model"],
        "slo": str(slo),
        "slo_clock": slo.clock,
        "placeholder_slo": slo.placeholder,
        "attain": str(parse_share(scenario.attain)),  # exact: 19/20
        "attain_text": scenario.attain,
        "max_error_rate": scenario.max_error_rate,
        "runs": spec.runs,
        "explore": spec.explore,
        "window_s": None if scenario.cohort is not None else scenario.window,
        "cohort": scenario.cohort,
        "warmup_s": experiment["warmup_s"],
        "width": float(parse_share(scenario.width)),
        "seeding": scenario.seeding,
        "replicates": scenario.replicate_word,
        "arrivals": _arrivals(scenario),
        "workload": _workload(scenario, _prompts(workload, experiment)),
        "stop": scenario.stop,
        "transport": scenario.transport,
        "cache": scenario.cache,
        "max_concurrency": scenario.max_concurrency,
        "scenario_sha256": scenario.sha256,
    }


def notes(scenario: Scenario, experiment: dict[str, Any]) -> list[str]:
    """Lines that every output of the experiment carries."""
    found = list(experiment.get("notes", ()))
    if scenario.objective.placeholder:
        found.insert(0, "placeholder SLO: set --slo")
    return found


def assemble(
    directory: Path, scenario: Scenario, workload: Workload, spec: SearchSpec, outcome: Outcome
) -> dict[str, Any]:
    """The answer of the experiment in `directory`, from its ledger and its sealed runs. Raises `ResultsError`."""
    experiment = read_json(directory / "experiment.json")
    lines = read_ledger(directory)

    def buckets(keys: Sequence[str]) -> list[dict[str, Any]]:
        own = [line for line in lines if line["run"]["key"] in keys]
        valid = [line for line in own if line["verdict"]["status"] != "INVALID"]
        return _buckets(directory, valid, scenario.objective)

    return answer(
        conditions=conditions(scenario, workload, spec, experiment),
        outcome=outcome,
        runs=[(request.to_dict(), verdict) for request, verdict in judged_runs(directory)],
        buckets=buckets,
        notes=notes(scenario, experiment),
        slo=scenario.objective,
    )


def _buckets(directory: Path, lines: Sequence[dict[str, Any]], slo: Slo) -> list[dict[str, Any]]:
    cohorts = []
    for line in lines:
        path = directory / "runs" / line["variant"] / line["run"]["key"] / "requests.parquet"
        try:
            requests = pq.read_table(path, columns=_BUCKET_COLUMNS).to_pandas()
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path}: {error}") from None
        window = line["window"]
        cohorts.append(requests[mask(requests, warmup_ns=window["warmup_ns"], window_ns=window["window_ns"])])
    return by_length(pd.concat(cohorts, ignore_index=True), slo) if cohorts else []


def _arrivals(scenario: Scenario) -> str:
    if scenario.arrivals_file is not None:
        kind, _, file = scenario.arrivals.partition(":")
        what = {"trace": "recorded", "fit-gamma": "gamma, fitted to", "fit-mmpp": "Markov-modulated, fitted to"}[kind]
        method = f", rate by {scenario.rate_method}" if kind == "trace" else ""
        return f"{what} {Path(file).name}{method} (trace {(scenario.trace_sha256 or '')[:12]})"
    if scenario.arrivals != "gamma":
        return scenario.arrivals.capitalize() if scenario.arrivals == "poisson" else scenario.arrivals
    shape = f"CV {scenario.cv:g}" if scenario.cv is not None else f"burstiness {scenario.burstiness:g}"
    return f"gamma ({shape})"


def _prompts(workload: Workload, experiment: dict[str, Any]) -> str:
    """What the prompts were: the target may not have taken what was planned."""
    return str(experiment["target"].get("format", {}).get("prompt", workload.format.prompt))


def _workload(scenario: Scenario, prompts: str) -> str:
    file = scenario.lengths or (scenario.arrivals if scenario.recorded else None)
    lengths = f"lengths from {Path(file.removeprefix('trace:')).name}" if file else f"{scenario.input} input tokens"
    output = "" if file else f", {scenario.output} output tokens"
    prefix = f", {scenario.shared_prefix} of them shared by groups" if scenario.shared_prefix else ""
    kind = "as token ids" if prompts == "ids" else "as text"
    return f"{lengths} {kind}{prefix}{output}, {scenario.stop} stop"
