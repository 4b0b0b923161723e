"""One run, from its request to its line in the ledger: plan, offer, judge, seal. Every command is made of these."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import anyio
import numpy as np
import pandas as pd

from analysis.cohort import nearest_rank
from analysis.crosscheck import cold_claim, explained_hits
from analysis.diagnose import diagnose, in_one_line
from analysis.judge import judge_run, misses_allowed
from analysis.readings import observe
from analysis.records import derive, outcome_is
from analysis.search import RunRequest
from analysis.slo import Slo
from analysis.telemetry import ServerView
from analysis.units import format_duration, parse_share
from analysis.verdict import Criteria, RunVerdict
from loadgen import defaults
from loadgen.errors import Aborted, ScenarioError, TargetUnfit, TargetUnreachable
from loadgen.plan.plan import metadata
from loadgen.plan.seeds import derive as derive_seeds
from loadgen.plan.seeds import salt
from loadgen.plan.types import NS, RequestFormat, RunPlan
from loadgen.progress import Progress, RunLabel
from loadgen.record.store import ExperimentStore
from loadgen.scenario import Scenario
from loadgen.send.api import LiveCounts, ProgressHook, RecordSink, RunOutput, SendOptions
from loadgen.workload import Workload

__all__ = [
    "Done",
    "Offering",
    "Runner",
    "criteria_of",
    "options_of",
    "plan_of",
    "run_options",
    "warm_target",
    "warmup_note",
]


class Offering(Protocol):
    """What a plan can be offered to: a live target, or a simulated one in virtual time."""

    @property
    def label(self) -> str:
        """The target as a user knows it."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether no real server is behind it."""
        ...

    @property
    def model(self) -> str:
        """The model requests ask for."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """Tokens that the target's context holds, where it says so."""
        ...

    @property
    def format(self) -> RequestFormat | None:
        """How the target takes requests, where that is not as asked or may not be; None: as asked."""
        ...

    @property
    def content_unpaired(self) -> bool:
        """Whether content must differ between rates, since the cache cannot be proved cold."""
        ...

    @property
    def notes(self) -> list[str]:
        """What every output has to say about this target."""
        ...

    async def settle(self) -> str:
        """Wait until the target is idle and its state is as the policy wants it; what is odd about it, in words.

        Raises `TargetError`.
        """
        ...

    async def identity(self) -> Mapping[str, str]:
        """What the target says of itself. Raises `TargetUnreachable` when it is gone."""
        ...

    async def environment(self) -> Mapping[str, str]:
        """What the target runs on: machine, cards, libraries; what is not measured is named."""
        ...

    def changed(self, before: Mapping[str, str], after: Mapping[str, str], *, between_runs: bool = False) -> str:
        """What differs between two identities that should not, in words; empty if nothing does."""
        ...

    async def offer(
        self,
        plan: RunPlan,
        options: SendOptions,
        *,
        salt: str,
        sink: RecordSink | None,
        progress: ProgressHook,
        stop: anyio.Event,
    ) -> RunOutput:
        """Offer the plan and return what was recorded. `stop` ends it at once."""
        ...


def criteria_of(scenario: Scenario, workload: Workload) -> Criteria:
    """The promise a run is held against."""
    return Criteria(
        slo=scenario.objective,
        attain=parse_share(scenario.attain),
        max_error_rate=parse_share(scenario.max_error_rate),
        min_requests=scenario.min_requests,
        replicates=scenario.runs,
        timeout_s=workload.timeout_s,
        output_tokens_max=workload.lengths.output_max,
        forced=workload.format.stop == "forced",
        exact_inputs=workload.format.exact,
        blocks=scenario.cache == "keep",
    )


def options_of(scenario: Scenario, workload: Workload) -> SendOptions:
    """How the load is offered, without an early end."""
    return SendOptions(
        transport=scenario.transport,
        timeout_s=workload.timeout_s,
        max_concurrency=scenario.max_concurrency,
        closed=scenario.closed,
        dependent=scenario.sessions == "dependent",
        prewarm=scenario.prewarm,
        slo=scenario.objective,
    )


def plan_of(request: RunRequest, workload: Workload, *, warmup_s: float, content_unpaired: bool = False) -> RunPlan:
    """The plan of a run; a confirmation's window is twice as long."""
    factor = defaults.CONFIRM_WINDOW_FACTOR if request.kind == "confirm" else 1
    # sentinels share a seed and must not meet one another's prompts either: their ordinal takes part
    again = request.attempt if request.kind != "sentinel" else 1000 * request.replicate + request.attempt
    key = (request.rate, again) if content_unpaired else None
    cohort = None if workload.cohort is None else workload.cohort * factor
    window = workload.window(warmup_s, factor)
    return workload.plan(
        request.rate,
        request.seed,
        window,
        content_key=key,
        cohort=cohort,
        replicate=0 if request.kind == "sentinel" else request.replicate,
        confirm=request.kind == "confirm",
    )


def run_options(
    request: RunRequest, plan: RunPlan, scenario: Scenario, workload: Workload, *, early_fail: bool
) -> SendOptions:
    """How the load of a run is offered, which with `early_fail` may end once it cannot pass any more."""
    options = options_of(scenario, workload)
    if not early_fail or request.kind == "sentinel":
        return options
    at_ns = plan.schedule.at_ns
    cohort = int(((at_ns >= plan.window.warmup_ns) & (at_ns < plan.window.end_ns)).sum())
    return replace(
        options,
        early_fail_misses=misses_allowed(cohort, parse_share(scenario.attain)),
        early_fail_after_ns=plan.window.warmup_ns + round(plan.window.window_ns * defaults.EARLY_FAIL_SHARE),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A sealed run: its verdict, and what it took."""

    verdict: RunVerdict
    seconds: float
    requests: int
    tokens: int  # planned input and output tokens of the requests sent


@dataclass(slots=True, kw_only=True)
class Runner:
    """Carries out the runs of one experiment against one offering."""

    scenario: Scenario
    workload: Workload
    offering: Offering
    store: ExperimentStore
    progress: Progress
    stop: anyio.Event
    experiment: str  # part of every cache salt
    warmup_s: float
    variant: str = "main"
    early_fail: bool = False
    _identity: dict[str, str] = field(default_factory=dict)

    async def execute(self, request: RunRequest) -> Done:
        """Do the run and seal it; its verdict is in the ledger when this returns.

        Raises `TargetError` when the target is gone before the run could begin, `ResultsError` when the disk refuses,
        and `Aborted` when the user stopped it (what was measured stays in the run's journal).
        """
        plan = self.plan(request)
        _check_fits(plan, self.offering)
        label = self._label(request, plan)
        odd = await self.offering.settle()
        before = dict(await self.offering.identity())
        moved = self.offering.changed(self._identity, before, between_runs=True) if self._identity else ""
        run = self.store.begin(request.key, self.variant)
        started = datetime.datetime.now(datetime.UTC)
        began = time.monotonic()
        self.progress.start(label)
        with ExitStack() as stack:
            journal = stack.enter_context(run.journal())

            def tick(counts: LiveCounts) -> None:
                run.check(journal)
                self.progress.tick(counts)

            output = await self.offering.offer(
                plan,
                run_options(request, plan, self.scenario, self.workload, early_fail=self.early_fail),
                salt=self._salt(request),
                sink=journal,
                progress=tick,
                stop=self.stop,
            )
        if self.stop.is_set():
            raise Aborted(f"stopped by the user during {label.title}; the sealed runs are kept")
        server = _server(output, plan)
        output.facts = await self._with_target_facts(output, before, moved, server)
        output.facts = replace(output.facts, target_odd=odd, cold_claim_broken=self._cold_claim(output, plan, server))
        verdict = judge_run(output.requests, output.facts, criteria_of(self.scenario, self.workload), server)
        sent = len(output.requests)
        done = Done(
            verdict=verdict,
            seconds=round(time.monotonic() - began, 3),
            requests=sent,
            tokens=int(plan.input_tokens[:sent].sum() + plan.output_tokens[:sent].sum()),
        )
        line = {
            "run": request.to_dict(),
            "verdict": verdict.to_dict(),
            "variant": self.variant,
            "window": asdict(plan.window),
            "started": started.isoformat(timespec="seconds"),
            **{name: getattr(done, name) for name in ("seconds", "requests", "tokens")},
        }
        if self.scenario.sessions == "dependent":
            line["blocked"] = blocked(plan, output.requests)
        if server is not None:
            line["not_measured"] = list(server.not_measured)
        if verdict.status == "FAIL":
            line["diagnosis"] = in_one_line(diagnose([verdict], (), self.scenario.objective))
        run.seal(
            derive(output.requests),
            output.events,
            {
                **line,
                "plan": metadata(plan),
                "facts": asdict(output.facts),
                "identity": before,
                **_watched(output, server),
            },
            None if output.observed is None else output.observed.series,
        )
        self.store.record({**line, "schedule_sha256": plan.schedule.sha256, "workload_sha256": plan.workload_sha256})
        run.forget_journal()
        self.progress.verdict(label, verdict)
        return done

    def plan(self, request: RunRequest) -> RunPlan:
        """The plan of a run."""
        unpaired = self.offering.content_unpaired
        return plan_of(request, self.workload, warmup_s=self.warmup_s, content_unpaired=unpaired)

    def _salt(self, request: RunRequest) -> str:
        variant = "/".join((self.variant, request.kind, str(request.block)))
        return salt(self.experiment, variant, request.rate, request.replicate, request.attempt)

    def _label(self, request: RunRequest, plan: RunPlan) -> RunLabel:
        what = {
            "sentinel": "sentinel",
            "search": f"{self.scenario.replicate_word} {request.replicate + 1} of {self.scenario.runs}",
            "confirm": f"confirmation {request.replicate + 1} of {self.scenario.confirmations}",
        }[request.kind]
        again = f", attempt {request.attempt + 1}" if request.attempt else ""
        closed = self.scenario.closed
        title = f"{request.rate:.4g} req/s, {what}{again}" if closed is None else f"closed loop, {closed} in flight"
        hashes = f"schedule {plan.schedule.sha256[:12]}, workload {plan.workload_sha256[:12]}"
        return RunLabel(title=title, horizon_ns=plan.window.end_ns, hashes=hashes)

    def _cold_claim(self, output: RunOutput, plan: RunPlan, server: ServerView | None) -> str:
        """What of the run's prompts was cached that no prefix shared within the run explains; empty under `keep`."""
        if self.scenario.cache == "keep" or output.facts.simulated:
            return ""
        sent = output.requests["index"].to_numpy()
        shared = explained_hits(plan.input_tokens[sent], plan.prefix_tokens[sent], plan.prefix_group[sent])
        if plan.format.text is not None:  # template and opener begin every exact text, and are planned tokens of it
            shared += len(sent) * max(plan.format.text.overhead_tokens, plan.format.text.shared_overhead_tokens)
        return cold_claim(output.requests, server, shared)

    async def _with_target_facts(
        self, output: RunOutput, before: Mapping[str, str], moved: str, server: ServerView | None
    ) -> Any:
        """The run's facts with what became of the target: gone is its failure, changed makes the run INVALID."""
        lost = bool(outcome_is(output.requests, "connection_lost", "connect_error", "stream_error").any())
        try:
            after = dict(await self.offering.identity())
        except TargetUnreachable:
            return replace(output.facts, target_died=True)
        self._identity = after
        restarts = () if server is None else server.restarts
        during = "; ".join(text for text in (self.offering.changed(before, after), *restarts) if text)
        if during and lost:
            return replace(output.facts, target_died=True)
        return replace(output.facts, target_changed="; ".join(text for text in (moved, during) if text))


def _check_fits(plan: RunPlan, offering: Offering) -> None:
    """Raises `ScenarioError`: a server cuts what is too long, and answers as if nothing were wrong."""
    longest = int((plan.input_tokens + plan.output_tokens).max(initial=0))
    if offering.max_model_len is not None and longest > offering.max_model_len:
        raise ScenarioError(
            f"the plan has a request of {longest} tokens (input and output), {offering.label} takes "
            f"{offering.max_model_len} (max_model_len): bound --input and --output, as in lognormal:500,1,1..3000"
        )


def blocked(plan: RunPlan, requests: pd.DataFrame) -> dict[str, float]:
    """How long turns waited for the previous one beyond their recorded instants, seconds (method, section 11).

    `turns` follow another one, `blocked` of them had to wait; nearest-rank percentiles are over those.
    """
    assert plan.parent is not None
    rows = requests["index"].to_numpy()
    waited_ns = requests["scheduled_ns"].to_numpy() - plan.schedule.at_ns[rows]
    turns = int(np.count_nonzero(plan.parent[rows] >= 0))
    waits_s = np.sort(waited_ns[waited_ns > 0]) / NS
    found = {"turns": turns, "blocked": len(waits_s), "total_s": float(waits_s.sum())}
    if len(waits_s):
        found |= {f"p{share * 100:g}_s": nearest_rank(waits_s, share) for share in (0.5, 0.95)}
        found["max_s"] = float(waits_s[-1])
    return found


def _server(output: RunOutput, plan: RunPlan) -> ServerView | None:
    """What the target told while the run was on; `None` where it was not asked."""
    if output.observed is None:
        return None
    return observe(output.observed, start_ns=plan.window.warmup_ns, end_ns=plan.window.end_ns)


def _watched(output: RunOutput, server: ServerView | None) -> dict[str, Any]:
    if server is None or output.observed is None:
        return {"server": None}
    cost = {"interval_s": output.observed.interval_s, "observer_cpu_s": output.observed.cpu_s}
    return {"server": {**server.to_dict(), **cost}}


async def warm_target(
    scenario: Scenario,
    workload: Workload,
    offering: Offering,
    *,
    lowest_rate: float,
    experiment: str,
    stop: anyio.Event,
) -> float:
    """Send the first requests, which are no evidence; the warm-up of every run of the experiment, seconds.

    32 requests at the lowest rate, or what it brings in a minute. The warm-up is the asked one or 3 × p95 E2E seen here
    (method, section 6). Raises `TargetUnfit` with the server's own words where it does not do the work asked, and
    `Aborted`.
    """
    workload = replace(workload, recorded=None)  # nothing that is measured is to be warm
    if workload.closed is not None:  # it has no rate of its own, and is not to be met by a burst
        workload, lowest_rate = replace(workload, closed=None), defaults.CLOSED_WARMUP_RATE
    cohort = max(1, min(defaults.WARMUP_REQUESTS, int(lowest_rate * defaults.WARMUP_MAX_S)))
    seed = derive_seeds(defaults.SEED, "warm-up", 1)[0]
    plan = workload.plan(lowest_rate, seed, workload.window(0.0), cohort=cohort)
    await offering.settle()
    output = await offering.offer(
        plan,
        replace(options_of(scenario, workload), closed=None, slo=Slo()),  # every one is waited for, however slow
        salt=salt(experiment, "warm-up", lowest_rate, 0, 0),
        sink=None,
        progress=lambda _: None,
        stop=stop,
    )
    if stop.is_set():
        raise Aborted("stopped by the user while the target was warmed")
    due = output.requests[output.requests["scheduled_ns"] < plan.window.window_ns]
    good = outcome_is(due, "ok")
    if not good.any():
        first = due[~good].iloc[0]
        status = f"HTTP {first['http_status']}" if first["http_status"] > 0 else first["outcome"]
        said = f": {first['error']}" if first["error"] else ""
        raise TargetUnfit(f"{offering.label}: none of {len(due)} warm-up requests succeeded ({status}{said})")
    e2e_s = derive(due)["e2e_s"].to_numpy(dtype=float)[good]
    return max(scenario.warmup, 3 * nearest_rank(np.sort(e2e_s), 0.95))


def warmup_note(scenario: Scenario, warmup_s: float) -> str:
    """A line for the user where the warm-up is not the one asked for; else an empty string."""
    if warmup_s <= scenario.warmup:
        return ""
    return f"warm-up is {format_duration(warmup_s)}: 3 × the p95 E2E seen while warming the target"
