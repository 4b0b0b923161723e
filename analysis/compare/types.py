"""Runs, paired differences and verdicts of a comparison: plain frozen values (method, section 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from analysis.report.types import Conditions
from analysis.search import OutcomeName
from analysis.verdict import Status

__all__ = [
    "NAMES",
    "OWN",
    "SCALE",
    "TUNED",
    "WORSE_SIGN",
    "CapacityPerGpu",
    "Comparison",
    "ComparisonOutcome",
    "Endpoint",
    "FrontierPoint",
    "LoneRequests",
    "PairedDifference",
    "PrimaryVerdict",
    "Scale",
    "VariantRun",
    "VariantSpec",
]

Endpoint = Literal[
    "g_card", "lambda_per_gpu", "attainment", "request_goodput", "token_goodput", "log_ttft", "log_e2e",
    "backlog",
]  # fmt: skip
ComparisonOutcome = Literal[
    "COMPLETE", "ABORTED", "BUDGET_EXHAUSTED", "CLIENT_LIMITED", "UNDECIDED", "UNSTABLE_TARGET", "UNFINISHED"
]  # fmt: skip
OWN, TUNED = "own λ*", "own λ*, tuned"  # the points of the primary endpoint
# relative: a share of the mean level of both variants; points: a difference of shares; log: of mean logarithms
Scale = Literal["relative", "points", "log"]
SCALE: Final[dict[Endpoint, Scale]] = {
    "g_card": "relative",
    "lambda_per_gpu": "relative",
    "attainment": "points",
    "request_goodput": "relative",
    "token_goodput": "relative",
    "log_ttft": "log",
    "log_e2e": "log",
    "backlog": "points",
}
NAMES: Final[dict[Endpoint, str]] = {
    "g_card": "G_card",
    "lambda_per_gpu": "λ* per GPU",
    "attainment": "attainment",
    "request_goodput": "request goodput",
    "token_goodput": "token goodput",
    "log_ttft": "TTFT (geometric mean)",
    "log_e2e": "E2E (geometric mean)",
    "backlog": "growth of the backlog",
}
# by what a difference is multiplied so that above 0 is worse
WORSE_SIGN: Final[dict[Endpoint, int]] = {
    name: 1 if name.startswith("log_") or name == "backlog" else -1 for name in SCALE
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSpec:
    """A configuration: its GPUs, ranks of tensor and stages of pipeline parallelism, and servers behind its name."""

    name: str
    gpus: int = 1
    tp: int | None = None  # None: not said
    pp: int | None = None
    replicas: int = 1
    alternative_of: str | None = None  # the variant that this one tunes


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRun:
    """One run of the paired phase. `rate` in requests/s in all; logarithms are of seconds, over ok requests.

    `results_sha256` covers what the server did to each request of the cohort: two runs with one hash are bit-identical.
    """

    variant: str
    label: str  # of the point at which variants are paired
    rate: float
    rate_per_gpu: float
    replicate: int
    seed: int
    status: Status
    attainment: float
    good_requests: int
    goodput_per_s: float
    good_output_tokens: int
    token_goodput_per_s: float
    g_card: float  # output tokens of joint-good requests / (window, s × GPUs)
    log_ttft: float | None  # None: no request is ok
    log_e2e: float | None
    backlog: float = 0.0  # outstanding at the window's end less at its start, per request of the cohort
    schedule_sha256: str
    workload_sha256: str
    results_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """A − B of one endpoint at one point over n pairs of runs, in the endpoint's scale.

    `lo` and `hi` are the 95 % t interval, `p` the two-sided t test, `p_holm` adjusted over the exploratory ones (`None`
    for the primary), `sign_p` the exact sign test. `None`: not tested, for want of pairs or because all are identical.
    """

    a: str
    b: str
    endpoint: Endpoint
    scale: Scale
    label: str
    n: int
    identical_pairs: int
    identical: bool
    mean: float
    sd: float | None
    lo: float | None
    hi: float | None
    p: float | None
    p_holm: float | None
    sign_p: float | None
    values: tuple[float, ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryVerdict:
    """Which variant is better on the primary endpoint: `winner` is "A" (`a`) or "B" (`b`).

    `same_rate` are differences at one rate per GPU, where `difference` is of two, each variant's own λ*.
    `replicates_needed`: pairs that would show the difference seen to lie outside the zone in four of five comparisons.
    """

    a: str
    b: str
    winner: Literal["A", "B", "no difference", "cannot tell"]
    indifference: float
    difference: PairedDifference
    same_rate: tuple[PairedDifference, ...] = ()
    replicates_needed: int | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPerGpu:
    """λ* of one variant's search, requests/s per GPU, as a bracket: largest proved and smallest failing rate.

    `outcome` and `reason` are the search's; `at` is λ* in all, requests/s (`None`: the search found none).
    """

    variant: str
    gpus: int
    lower: float | None
    upper: float | None
    at: float | None = None
    outcome: OutcomeName = "FOUND"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """Means over the replicates of one variant at one rate; `configuration` is the alternative that reached it."""

    variant: str
    configuration: str
    rate: float
    rate_per_gpu: float
    runs: int
    g_card: float
    g_card_min: float
    g_card_max: float
    attainment: float
    attainment_min: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneRequests:
    """The requests of a variant that met no other one, in its runs at the lowest rate.

    `meets` says whether the required share of them keeps the SLO; `None`: fewer than LONE_MIN of them.
    """

    variant: str
    requests: int
    good: int
    meets: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer of a comparison (answer.json): what was declared, the runs that count, and what they show.

    `outcome` is COMPLETE only if every run of the paired phase counts; else `reason` says why it ended. `pairs_sha256`
    covers seed, schedule and workload of every pair; `lost` says why a variant's target is gone.
    """

    format: int = 1
    outcome: ComparisonOutcome
    reason: str
    variants: tuple[VariantSpec, ...]
    conditions: Mapping[str, Conditions]  # of each variant
    together: bool  # all variants were up at once, and their runs interleaved
    per_gpu: bool
    indifference: float
    replicates: int
    seeds: tuple[int, ...]  # that the replicates ran with
    pairs_sha256: str
    lost: Mapping[str, str]
    capacities: tuple[CapacityPerGpu, ...]
    capacity_words: tuple[str, ...]
    lone: tuple[LoneRequests, ...]
    runs: tuple[VariantRun, ...]
    primary: tuple[PrimaryVerdict, ...]
    exploratory: tuple[PairedDifference, ...]
    frontier: tuple[FrontierPoint, ...]
    envelope: tuple[FrontierPoint, ...]
    decision: tuple[str, ...]
    costs: tuple[str, ...]
    notes: tuple[str, ...] = ()
