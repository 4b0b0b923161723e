"""A replay: one run that sends a stretch of a trace at its own instants, and what is said of it afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from analysis.records import outcome_is
from loadgen.common.documents import widened
from loadgen.common.errors import ResultsError, ScenarioError
from loadgen.experiment.prepare import Setup, pinned
from loadgen.plan.types import NS
from loadgen.results.store import read_run, run_directory
from loadgen.results.types import BlockedTurns, LedgerLine
from loadgen.scenario.model import Scenario
from loadgen.workload.trace_arrivals import ReadTrace, read_arrivals
from loadgen.workload.workload import Workload, search_spec, seed_book
from traces.transform import change_rate

__all__ = ["PrefixShares", "ReplayFacts", "ReplayedRun", "prepare_replay", "replayed"]


def prepare_replay(scenario: Scenario) -> Setup:
    """Read the trace and fix rate and window. Raises `ScenarioError` and `TraceError`."""
    asked = "rate" in scenario.model_fields_set
    if asked and scenario.speed is not None:
        raise ScenarioError("--rate and --speed exclude each other: both scale time; --rate has other methods too")
    if not asked and scenario.rate_method != "time":
        raise ScenarioError(f"--rate-method {scenario.rate_method} says how --rate is reached: pass --rate")
    read = read_arrivals(scenario)
    if scenario.sessions == "dependent" and (read.used.parent is None or not (read.used.parent >= 0).any()):
        raise ScenarioError(
            "--sessions dependent: no request of this part of the trace follows another; drop the option"
        )
    rate = _rate(scenario, read, asked=asked)
    speed = rate / read.rate if scenario.rate_method == "time" else 1.0
    # up to the last arrival where the trace has no more, and then beyond it by what rounding may move it
    window_ns = math.ceil((read.end_ns - read.start_ns) / speed) + 2 * (read.end_ns > read.whole.span_ns)
    scenario = scenario.model_copy(
        update={"rate": repr(rate), "window": window_ns / NS, "replicates": "once", "runs": 1}
    )
    spec = search_spec(scenario)
    workload = Workload.of(scenario, read)
    return Setup(scenario=pinned(scenario, workload), workload=workload, spec=spec, seeds=seed_book(scenario, spec))


def _rate(scenario: Scenario, read: ReadTrace, *, asked: bool) -> float:
    if not asked:
        return read.rate * (scenario.speed or 1.0)
    try:
        rate = float(scenario.rate)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ScenarioError(f"--rate {scenario.rate}: a replay has one rate, such as --rate 6, or its own")
    change_rate(read.used, rate / read.rate, method=scenario.rate_method)  # refuses what the method cannot reach
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixShares:
    """Shares of input tokens that the block ids let an infinite cache hold, and that the server said it had cached."""

    allowed: float
    cached: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFacts:
    """What only a replay has to say. `origin`: transforms, and rate, CV and dispersion that result."""

    origin: str
    schedule_sha256: str
    workload_sha256: str
    prefix: PrefixShares | None  # of the ok requests where the server said so
    blocked: BlockedTurns | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun(LedgerLine):
    """The ledger line of a replay with all that is said of it."""

    replay: ReplayFacts


def replayed(directory: Path, line: LedgerLine) -> ReplayedRun:
    """A replay's ledger line and what only a replay has to say, from its sealed run. Raises `ResultsError`."""
    run = run_directory(directory, line.run)
    path = run / "requests.parquet"
    columns = ["outcome", "input_tokens_planned", "prefix_tokens_planned", "input_tokens", "cached_tokens"]
    try:
        requests = pq.read_table(path, columns=columns).to_pandas()
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {error}") from None
    known = requests[outcome_is(requests, "ok") & (requests["cached_tokens"] >= 0).to_numpy()]
    prefix = None
    if (requests["prefix_tokens_planned"] > 0).any():
        among = known if len(known) else requests
        allowed = among["prefix_tokens_planned"].sum() / among["input_tokens_planned"].sum()
        cached = known["cached_tokens"].sum() / known["input_tokens"].sum() if len(known) else None
        prefix = PrefixShares(allowed=float(allowed), cached=None if cached is None else float(cached))
    facts = ReplayFacts(
        origin=read_run(run).plan.origin,
        schedule_sha256=line.schedule_sha256,
        workload_sha256=line.workload_sha256,
        prefix=prefix,
        blocked=line.blocked,
    )
    return widened(line, ReplayedRun, replay=facts)
