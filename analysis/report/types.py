"""The answer of a sweep: what capacity.json holds, and what tables and sentences are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from analysis.report.buckets import Bucket
from analysis.schema import ANSWER_VERSION
from analysis.search import Kind, OutcomeName, Support
from analysis.verdict import Balance, Finding, JsonFloat, Status

__all__ = ["AdditionalStatistics", "CapacityAnswer", "Conditions", "Proof", "RateRow", "Requirement", "RunRow", "Span"]

Span = tuple[float, float]  # smallest, largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All that a capacity is a property of; comparisons where these differ are refused. Durations in s."""

    target: str
    simulated: bool
    model: str
    slo: str
    slo_clock: str
    placeholder_slo: bool
    attain: str  # an exact fraction, 19/20
    attain_text: str  # as the user wrote it
    max_error_rate: str
    runs: int
    explore: int
    window_s: float | None  # None: the window is a number of requests, `cohort`
    cohort: int | None
    warmup_s: float
    width: float
    seeding: str
    replicates: str  # what a replicate is: replicate, block (of one history) or repeat (of one window)
    arrivals: str
    workload: str
    stop: str
    transport: str
    cache: str
    max_concurrency: int | None
    scenario_sha256: str
    routing: str | None = None  # how requests are spread over the URLs; None: there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Passes of fresh runs at the capacity, and what they prove: `None` where runs are no independent trials."""

    passes: int
    pass_share_lower_bound: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """One rate and the runs that its verdict stands on. Rates in requests/s."""

    rate: float
    check: Literal["PASS", "FAIL", "INCOMPLETE"]
    reason: str
    cause: str
    missed_by: Mapping[str, int]
    runs: int
    invalid_runs: int
    realised_rate: Span | None
    sent_rate: Span | None
    attainment: Span | None
    floor: float | None
    floor_is_bound: bool
    cohort: int
    errors: int
    drift_ratio: float | None
    drift_z: float | None
    goodput: Span | None
    token_goodput: Span | None
    worst: Mapping[str, Mapping[str, JsonFloat | None]]  # s: metric -> percentile
    buckets: tuple[Bucket, ...]
    balance: Balance | None = None  # of a target of several URLs


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionalStatistics:
    """What stands beside the capacity and is never the verdict (method, section 1)."""

    mean_crossing_rate: float | None
    mean_crossing_is_bound: bool
    between_run_sd: float | None
    between_run_sd_at: float | None
    window_to_agree_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A line of the ledger in short."""

    key: str
    variant: str
    kind: Kind
    rate: float
    replicate: int
    block: int
    seed: int
    attempt: int
    status: Status
    attainment: float
    attainment_is_bound: bool
    cohort: int
    misses: int
    missed_by: Mapping[str, int]
    errors: int
    outcomes: Mapping[str, int]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Whether a required rate (requests/s) was proved, refuted by a failure that stands, or neither."""

    rate: float
    verdict: Literal["KEPT", "BROKEN", "CANNOT_TELL"]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAnswer:
    """The answer of a sweep. Rates in requests/s; `bracket`: the largest that passed, the smallest that failed."""

    format: int = ANSWER_VERSION
    outcome: OutcomeName
    reason: str
    capacity: float | None
    proved: float | None
    bracket: tuple[float | None, float | None]
    upper_stands: bool
    support: Support | None
    undecided: float | None
    proof: Proof
    inversions: tuple[tuple[float, float], ...]
    conditions: Conditions
    rates: tuple[RateRow, ...]
    proofs: tuple[RateRow, ...]
    beside: AdditionalStatistics
    diagnosis: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    runs: tuple[RunRow, ...]
    requirement: Requirement | None = None
