"""What an experiment leaves on the disk beside its tables: manifest, ledger lines and run documents.

Each has its version in `format`; files of another one are refused (`loadgen.common.documents`). capacity.json is
`analysis.report.types.CapacityAnswer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from analysis.search import RunRequest, SeedBook
from analysis.server_metrics.types import Observation, ServerView, SourceReport
from analysis.verdict import RunFacts, RunVerdict
from loadgen.plan.types import PlanRecord, RequestFormat, Window
from loadgen.results.look import Look
from loadgen.send.api import Events

__all__ = [
    "LEDGER_VERSION",
    "MANIFEST_VERSION",
    "RUN_VERSION",
    "BlockedTurns",
    "ExperimentKind",
    "LedgerLine",
    "Machine",
    "Manifest",
    "RunDocument",
    "SealedRun",
    "ServerRecord",
    "TargetRecord",
]

# gate: one required rate; regression: runs against a baseline's
ExperimentKind = Literal["sweep", "run", "replay", "gate", "regression"]
MANIFEST_VERSION: Final = 2  # of experiment.json
LEDGER_VERSION: Final = 2  # of a line of verdicts.jsonl; 1 had the variant outside of the run's key
RUN_VERSION: Final = 2  # of run.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The client machine. Not its name: results are passed around."""

    system: str
    processor: str
    cores: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    """The target as it was when the experiment began. `notes` are the user's own."""

    label: str
    simulated: bool
    model: str
    identity: Mapping[str, str]
    environment: Mapping[str, str]
    notes: Mapping[str, str]
    format: RequestFormat  # how it takes requests
    content_unpaired: bool  # content must differ between rates: the cache cannot be proved cold
    events_per_read: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """experiment.json: what is constant in an experiment. Durations in s."""

    format: int = MANIFEST_VERSION
    kind: ExperimentKind
    id: str  # part of every cache salt
    created: str  # UTC, ISO 8601
    scenario: Mapping[str, Any]  # the settings that differ from the defaults: `Scenario.restore` reads them
    scenario_sha256: str
    seeds: SeedBook
    warmup_s: float
    residence_s: float | None
    versions: Mapping[str, str]
    machine: Machine
    target: TargetRecord
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedTurns:
    """How long turns waited for the previous one beyond their recorded instants, seconds (method, section 11).

    `turns` follow another one, `blocked` of them had to wait; nearest-rank percentiles are over those.
    """

    turns: int
    blocked: int
    total_s: float
    p50_s: float | None = None
    p95_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRun:
    """What the ledger and the run's own document both say of a run."""

    run: RunRequest
    verdict: RunVerdict
    window: Window
    started: str  # UTC, ISO 8601
    seconds: float  # wall time from there to the verdict; in virtual time, of the simulation
    requests: int  # released
    tokens: int  # planned input and output tokens of those
    blocked: BlockedTurns | None = None  # of sessions whose turns wait
    not_measured: tuple[str, ...] | None = None  # what no source reported; None: the target was not watched
    diagnosis: str = ""  # why a FAIL failed


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine(SealedRun):
    """A line of verdicts.jsonl."""

    format: int = LEDGER_VERSION
    elapsed_s: float  # since the line before was written, or the command began
    schedule_sha256: str
    workload_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """What the target reported during a run, without the samples, which are in target.parquet."""

    metrics: Mapping[str, Mapping[str, float]]
    sources: tuple[SourceReport, ...]
    restarts: tuple[str, ...]
    not_measured: tuple[str, ...]
    engines: int
    span_s: float
    interval_s: float
    observer_cpu_s: float

    @staticmethod
    def of(view: ServerView, observation: Observation) -> ServerRecord:
        """The record of a run as its sources saw it."""
        return ServerRecord(
            metrics=view.metrics,
            sources=view.sources,
            restarts=view.restarts,
            not_measured=view.not_measured,
            engines=view.engines,
            span_s=view.span_s,
            interval_s=observation.interval_s,
            observer_cpu_s=observation.cpu_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument(SealedRun):
    """run.json: one sealed run."""

    format: int = RUN_VERSION
    events: Events
    plan: PlanRecord
    facts: RunFacts
    identity: Mapping[str, str]
    looks: tuple[Look, ...]
    server: ServerRecord | None
