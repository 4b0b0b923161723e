"""The judge's inputs and verdicts, and the search's inputs: plain frozen values.

`RunFacts` is what sender and target showed; `Criteria` is what the user promised; `RunVerdict` is the outcome of one
run and all that the search and the report need of it, small enough for one line of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import Annotated, Any, Literal

from analysis.slo import Slo

__all__ = [
    "Balance",
    "Blame",
    "Criteria",
    "Finding",
    "JsonFloat",
    "RateVerdict",
    "Replica",
    "RunFacts",
    "RunVerdict",
    "SenderFacts",
    "Status",
    "TargetFacts",
]


class _InfinityAsText:
    """To pydantic: JSON has no infinity, so it is written as the string "inf" (and read back as any float is)."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        write = core_schema.plain_serializer_function_ser_schema(lambda v: "inf" if v == inf else v, when_used="json")
        return {**handler(source), "serialization": write}


JsonFloat = Annotated[float, _InfinityAsText()]
Status = Literal["PASS", "FAIL", "INVALID"]
Blame = Literal["client", "workload", "target", "evidence", "server"]  # server: a criterion of the verdict itself
Severity = Literal["info", "warning", "block"]  # block: it decided (or for evidence: forbade) the verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's result: which check, whose fault, the value against its limit (same unit), and a sentence."""

    check: str
    blame: Blame
    severity: Severity
    value: float | None = None
    limit: float | None = None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """The promise a rate is held against (method, sections 6 and 13)."""

    slo: Slo
    attain: Fraction = Fraction(95, 100)  # q
    max_error_rate: Fraction = Fraction(1, 100)  # ε
    min_requests: int = 200
    replicates: int = 10  # R; a run of one replicate is held against what several are held against together
    residence_s: float | None = None  # E[S²]/E[S] at the lowest rate, before any overload; None: as of each run
    timeout_s: float = 60.0
    output_tokens_max: int = 128
    forced: bool = True  # outputs have exactly the planned tokens; else they end where the model ends them
    exact_inputs: bool = False  # prompts were made to have exactly the planned tokens
    blocks: bool = False  # runs are stretches of one history, and must each outlast its correlation


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderFacts:
    """What the sender observed about itself, its clock and its connections during one run."""

    rate: float  # nominal offered rate, 1/s; 0 for a closed loop
    warmup_ns: int
    window_ns: int  # the cohort is scheduled in [warmup, warmup + window)
    stop_ns: int  # the load stopped: nothing scheduled later was sent
    due: int  # requests scheduled before stop_ns
    sent: int  # of those, handed to a socket or refused by the network before they could be
    cohort_due: int  # requests the whole schedule has in the window (known before the run)
    open_loop: bool = True
    simulated: bool = False  # virtual time: no client to gate
    stopped_early: bool = False  # early FAIL: the cohort was not sent to its end
    stamps: Literal["kernel", "user"] = "user"  # who says when an answer came: the kernel, or this process as it reads
    stamps_moved_s: float = 0.0  # the most that the clock of the kernel's stamps was set by against the run's
    stamps_by_reading: float = 0.0  # share of reads that the kernel gave no usable stamp for
    heartbeat_p99_s: float = 0.0
    heartbeat_max_s: float = 0.0
    live_area_s: float | None = None  # ∫N(t)dt over [0, stop], request-seconds, counted live by the dispatcher
    peak_in_flight: int = 0
    connection_limit: int | None = None  # the smallest of pool, file-descriptor and port limits; None: none known
    concurrency_cap: int | None = None  # the user's own gateway model, never a hidden one
    encode_starved: int = 0  # requests whose body was not ready in time
    workers_lost: int = 0
    suspended_s: float = 0.0  # BOOTTIME - MONOTONIC moved by
    clock_ratio_error: float = 0.0  # |MONOTONIC / MONOTONIC_RAW - 1|
    wall_step_s: float = 0.0
    connections_refused: str = ""  # how the operating system came to give the client no more connections, in words
    urls: tuple[str, ...] = ()  # of a target of several, in the order of the column `target`
    routing: str = ""  # how requests were spread over those
    target_died: bool = False  # connections broke with requests in flight, and new ones were refused


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What was seen of the target before, during and after one run. By default: nothing amiss."""

    died: bool = False  # requests were lost with it
    changed: str = ""  # what changed between before and after, in words
    disturbance: str = ""  # what disturbed the idle target before or after the run, in words
    foreign_requests: int = 0  # that the server finished during the run beyond those sent to it
    cold_claim_broken: str = ""  # why the run was not as cold as claimed, in words
    survey_events_per_read: float | None = None  # token events a read of a lone request before the load; None: not seen
    not_asked: str = ""  # why this machine could not ask it after the run, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the judge needs to know of one run beside its requests."""

    sender: SenderFacts
    target: TargetFacts = TargetFacts()

    @property
    def target_died(self) -> bool:
        """Whether the target died under the load, as the sender saw it or as it was found afterwards."""
        return self.sender.target_died or self.target.died


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What one URL of a target had of a run, or of the runs at a rate (see `analysis.replicas`); latencies in s.

    Each metric has `p50`, `p95`, `p99` over ok requests and, with suffix `_all`, over all, where `None` is a failure's
    infinity.
    """

    url: str
    requests: int  # of the cohort
    share: float  # of the requests of all replicas
    attainment: float | None  # None: it had no request
    errors: int
    in_flight_mean: float  # over time
    in_flight_max: int
    ttft_s: Mapping[str, float | None]
    tpot_s: Mapping[str, float | None]
    e2e_s: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """How the load fell on the URLs of a target. An imbalance is the largest replica over the mean; `None`: no load."""

    routing: str
    replicas: tuple[Replica, ...]  # in the order of the column `target`
    attainment_is_bound: bool
    request_imbalance: float | None
    in_flight_imbalance: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The verdict on one run and the numbers it stands on."""

    status: Status
    findings: tuple[Finding, ...] = ()
    rate: float = 0.0
    cohort: int = 0  # N: the denominator
    misses: int = 0
    missed_by: Mapping[str, int] = field(default_factory=dict)  # requests that break each bound, or `failed`
    errors: int = 0
    error_words: str = ""  # of the most frequent error, as the server or the network put it, at most 200 characters
    unresolved: int = 0  # never answered: in flight when the load stopped
    attainment: float = 0.0  # (N - misses)/N
    attainment_is_bound: bool = False  # early FAIL: the true attainment is ≤ this
    drift_ratio: float | None = None  # d = slope of N(t)/λ, this run
    drift_z: float | None = None  # the slope over its standard deviation if N(t) wandered without trend
    drift_state: Literal["ok", "rising", "undecided"] = "undecided"
    waiting_ratio: float | None = None  # slope of the server's waiting gauge/λ, where it was scraped
    waiting_z: float | None = None
    waiting_state: Literal["ok", "rising", "undecided"] = "undecided"
    e2e_error_s: float | None = None  # standard error of the mean E2E, from batches: requests are not independent
    realised_rate: float | None = None
    sent_rate: float | None = None
    goodput: float | None = None  # joint-good requests/s of window
    token_goodput: float | None = None  # output tokens of joint-good requests/s of window
    # metric -> {"p50", "p95", "p99", "max", "mean"} (ok) and the same suffixed "_all" (a failure is +inf)
    summary: Mapping[str, Mapping[str, JsonFloat]] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)  # of the cohort
    server: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # ServerView.metrics, where it was scraped
    balance: Balance | None = None  # of a target of several URLs

    @property
    def blame(self) -> Blame | None:
        """Who made the run INVALID; `None` for a valid run. `evidence`: it would pass, on too little to say so."""
        if self.status != "INVALID":
            return None
        order: tuple[Blame, ...] = ("client", "workload", "target", "evidence")
        blocking = {f.blame for f in self.findings if f.severity == "block"}
        return next((blame for blame in order if blame in blocking), None)

    @property
    def reason(self) -> str:
        """The sentence of the finding that decided, or an empty string."""
        return next((f.text for f in self.findings if f.severity == "block"), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateVerdict:
    """All that is known at one rate: the min-envelope over its valid runs, and their drift together."""

    rate: float
    status: Literal["PASS", "FAIL", "INCOMPLETE"]  # INCOMPLETE: no failure, but fewer valid passes than R
    runs: int
    attain_min: float | None
    attain_max: float | None
    drift_ratio: float | None = None  # mean of the runs' slopes over λ
    drift_z: float | None = None  # Σz/√R
    waiting_ratio: float | None = None  # likewise of the server's waiting gauge
    waiting_z: float | None = None
    reason: str = ""
    keys: tuple[str, ...] = ()  # of the runs it stands on, without those that a spare or a new block took over
