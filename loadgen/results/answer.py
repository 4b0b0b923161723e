"""An experiment's results directory, read back: the answer that its ledger gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from analysis.cohort import mask
from analysis.report.buckets import Bucket, by_length
from analysis.report.capacity import answer
from analysis.report.types import CapacityAnswer, Conditions
from analysis.search import VARIANT, Outcome, RunRequest, SearchSpec
from analysis.slo import Slo
from analysis.units import parse_share
from analysis.verdict import RunVerdict
from loadgen.common.errors import ResultsError
from loadgen.results.store import read_experiment, read_ledger, run_directory
from loadgen.results.types import LedgerLine, Manifest
from loadgen.scenario.model import Scenario

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


def judged_runs(directory: Path, variant: str = VARIANT) -> list[JudgedRun]:
    """The ledger's runs of a variant's search as (request, verdict) pairs. Raises `ResultsError`."""
    return [(line.run, line.verdict) for line in _searched(directory, variant)]


def conditions(scenario: Scenario, spec: SearchSpec, experiment: Manifest) -> Conditions:
    """All that a capacity is a property of."""
    slo = scenario.objective
    return Conditions(
        target=experiment.target.label,
        simulated=experiment.target.simulated,
        model=experiment.target.model,
        slo=str(slo),
        slo_clock=slo.clock,
        placeholder_slo=slo.placeholder,
        attain=str(parse_share(scenario.attain)),  # exact: 19/20
        attain_text=scenario.attain,
        max_error_rate=scenario.max_error_rate,
        runs=spec.runs,
        explore=spec.explore,
        window_s=None if scenario.cohort is not None else scenario.window,
        cohort=scenario.cohort,
        warmup_s=experiment.warmup_s,
        width=float(parse_share(scenario.width)),
        seeding=scenario.seeding,
        replicates=scenario.replicate_word,
        arrivals=_arrivals(scenario),
        workload=_workload(scenario, experiment.target.format.prompt),
        stop=scenario.stop,
        transport=scenario.transport,
        cache=scenario.cache,
        max_concurrency=scenario.max_concurrency,
        scenario_sha256=scenario.sha256,
        routing=scenario.routing if len(scenario.target) > 1 else None,
    )


def notes(scenario: Scenario, experiment: Manifest) -> list[str]:
    """Lines that every output of the experiment carries."""
    found = list(experiment.notes)
    if scenario.objective.placeholder:
        found.insert(0, "placeholder SLO: set --slo")
    return found


def assemble(
    directory: Path,
    scenario: Scenario,
    spec: SearchSpec,
    outcome: Outcome,
    variant: str = VARIANT,
) -> CapacityAnswer:
    """The answer of a variant of the experiment in `directory`, from its ledger and its sealed runs.

    Raises `ResultsError`.
    """
    experiment = read_experiment(directory)
    lines = _searched(directory, variant)

    def buckets(keys: Sequence[str]) -> list[Bucket]:
        valid = [line for line in lines if line.run.key in keys and line.verdict.status != "INVALID"]
        return _buckets(directory, valid, scenario.objective)

    return answer(
        conditions=conditions(scenario, spec, experiment),
        outcome=outcome,
        runs=[(line.run, line.verdict) for line in lines],
        buckets=buckets,
        notes=notes(scenario, experiment),
        slo=scenario.objective,
        require=spec.require,
    )


def _searched(directory: Path, variant: str) -> list[LedgerLine]:
    """What a search asked for: runs of a paired phase are no evidence for a rate."""
    return [line for line in read_ledger(directory) if line.run.variant == variant and line.run.kind != "paired"]


def _buckets(directory: Path, lines: Sequence[LedgerLine], slo: Slo) -> list[Bucket]:
    cohorts = []
    for line in lines:
        path = run_directory(directory, line.run) / "requests.parquet"
        try:
            requests = pq.read_table(path, columns=_BUCKET_COLUMNS).to_pandas()
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path}: {error}") from None
        window = line.window
        cohorts.append(requests[mask(requests, warmup_ns=window.warmup_ns, window_ns=window.window_ns)])
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


def _workload(scenario: Scenario, prompts: str) -> str:
    file = scenario.lengths or (scenario.arrivals if scenario.recorded else None)
    lengths = f"lengths from {Path(file.removeprefix('trace:')).name}" if file else f"{scenario.input} input tokens"
    output = "" if file else f", {scenario.output} output tokens"
    prefix = f", {scenario.shared_prefix} of them shared by groups" if scenario.shared_prefix else ""
    kind = "as token ids" if prompts == "ids" else "as text"
    return f"{lengths} {kind}{prefix}{output}, {scenario.stop} stop"
