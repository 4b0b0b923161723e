"""One run, from its request to its line in the ledger: plan, offer, judge, seal. Every command is made of these."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import anyio
import numpy as np
import pandas as pd

from analysis.cohort import nearest_rank
from analysis.diagnose import diagnose, in_lines
from analysis.judge import judge_run
from analysis.records import derive
from analysis.search import RunRequest
from analysis.server_metrics.readings import observe
from analysis.server_metrics.types import ServerView
from analysis.verdict import Criteria, RunFacts, RunVerdict
from loadgen.common.documents import widened
from loadgen.common.errors import Aborted, ScenarioError
from loadgen.common.stopping import unless_stopped
from loadgen.experiment.preparation import Preparation
from loadgen.experiment.progress import Progress, RunLabel
from loadgen.experiment.run_plan import criteria_of, plan_of, run_options
from loadgen.experiment.sut import Sut
from loadgen.experiment.target_facts import BeforeRun, target_facts
from loadgen.plan.plan import record_of
from loadgen.plan.seeds import salt
from loadgen.plan.types import NS, RunPlan
from loadgen.results.store import ExperimentStore
from loadgen.results.types import BlockedTurns, LedgerLine, RunDocument, SealedRun, ServerRecord
from loadgen.scenario.model import Scenario
from loadgen.send.api import LiveCounts, RunOutput

__all__ = ["RunResult", "Runner", "blocked"]

_KEPT: Final = "the sealed runs are kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A sealed run: its verdict, and what it took."""

    verdict: RunVerdict
    seconds: float
    requests: int
    tokens: int  # planned input and output tokens of the requests sent


@dataclass(slots=True, kw_only=True)
class Runner:
    """Carries out the runs of one experiment against one sut."""

    scenario: Scenario
    ready: Preparation
    sut: Sut
    store: ExperimentStore
    progress: Progress
    stop: anyio.Event
    early_fail: bool = False
    booked_s: float = field(default_factory=time.monotonic)  # until when time is in the ledger; the command's start
    identity: Mapping[str, str]  # of the target when it was last seen

    async def execute(self, request: RunRequest) -> RunResult:
        """Do the run and seal it; its verdict is in the ledger when this returns.

        Raises `TargetError` when the target is gone before the run could begin, `ResultsError` when the disk refuses,
        and `Aborted` when the user stopped it (what was measured stays in the run's journal).
        """
        plan = self.plan(request)
        _check_fits(plan, self.sut)
        label = self._label(request, plan)
        before = await unless_stopped(self.stop, self._settle, f"before {label.title}; {_KEPT}")
        run = self.store.begin(request)
        started = datetime.datetime.now(datetime.UTC)
        began = time.monotonic()
        self.progress.start(label)
        with ExitStack() as stack:
            journal = stack.enter_context(run.journal())

            def tick(counts: LiveCounts) -> None:
                run.check(journal)
                self.progress.tick(counts)

            output = await self.sut.send_load(
                plan,
                run_options(request, plan, self.scenario, self.ready.workload, early_fail=self.early_fail),
                salt=self._salt(request),
                sink=journal,
                progress=tick,
                stop=self.stop,
            )
        if self.stop.is_set():
            raise Aborted(f"stopped by the user during {label.title}; {_KEPT}")
        server = _server(output, plan)
        target, self.identity = await unless_stopped(
            self.stop,
            lambda: target_facts(
                self.sut, self.ready, output, plan, before, server, cold=self.scenario.cache != "keep"
            ),
            f"after {label.title}, before it was sealed; {_KEPT}",
        )
        facts = RunFacts(sender=output.facts, target=target)
        verdict = judge_run(output.requests, facts, self._criteria(request), server)
        sent = len(output.requests)
        done = RunResult(
            verdict=verdict,
            seconds=round(time.monotonic() - began, 3),
            requests=sent,
            tokens=int(plan.input_tokens[:sent].sum() + plan.output_tokens[:sent].sum()),
        )
        sealed = SealedRun(
            run=request,
            verdict=verdict,
            window=plan.window,
            started=started.isoformat(timespec="seconds"),
            seconds=done.seconds,
            requests=done.requests,
            tokens=done.tokens,
            blocked=blocked(plan, output.requests) if self.scenario.sessions == "dependent" else None,
            not_measured=None if server is None else server.not_measured,
            diagnosis=in_lines(diagnose([verdict], (), self.scenario.objective)) if verdict.status == "FAIL" else "",
        )
        observed = output.observed
        run.seal(
            derive(output.requests),
            None if self.scenario.kept_events == "none" else output.events,
            widened(
                sealed,
                RunDocument,
                events=self.scenario.kept_events,
                plan=record_of(plan),
                facts=facts,
                identity=before.identity,
                looks=self.sut.looks(),
                server=None if server is None or observed is None else ServerRecord.of(server, observed),
            ),
            None if observed is None else observed.series,
        )
        now_s = time.monotonic()
        elapsed_s, self.booked_s = round(now_s - self.booked_s, 3), now_s
        self.store.record(
            widened(
                sealed,
                LedgerLine,
                elapsed_s=elapsed_s,
                schedule_sha256=plan.schedule.sha256,
                workload_sha256=plan.workload_sha256,
            )
        )
        run.forget_journal()
        self.progress.verdict(label, verdict)
        return done

    async def _settle(self) -> BeforeRun:
        odd = await self.sut.settle()
        identity = dict(await self.sut.identity())
        changed = self.sut.changed(self.identity, identity, between_runs=True)
        return BeforeRun(
            identity=identity,
            changed=changed or self.sut.changed(self.ready.identity, identity, restarted=True),
            disturbance=odd,
        )

    def plan(self, request: RunRequest) -> RunPlan:
        """The plan of a run."""
        unpaired = self.ready.terms.content_unpaired
        return plan_of(request, self.ready.workload, warmup_s=self.ready.warmup_s, content_unpaired=unpaired)

    def _criteria(self, request: RunRequest) -> Criteria:
        return criteria_of(self.scenario, self.ready.workload, self.ready.residence_s, kind=request.kind)

    def _salt(self, request: RunRequest) -> str:
        variant = "/".join((request.variant, request.kind, str(request.block)))
        return salt(self.ready.part, variant, request.rate, request.replicate, request.attempt)

    def _label(self, request: RunRequest, plan: RunPlan) -> RunLabel:
        what = {
            "sentinel": "sentinel",
            "explore": f"exploring with {self.scenario.replicate_word} {request.replicate + 1}",
            "prove": f"fresh {self.scenario.replicate_word} {request.replicate + 1} of {self.scenario.runs}",
            "recheck": f"the failed {self.scenario.replicate_word} {request.replicate + 1} again",
            "paired": f"pair {request.replicate + 1} of {self.scenario.runs}",
        }[request.kind]
        again = f", attempt {request.attempt + 1}" if request.attempt else ""
        closed = self.scenario.closed
        title = f"{request.rate:.4g} req/s, {what}{again}" if closed is None else f"closed loop, {closed} in flight"
        hashes = f"schedule {plan.schedule.sha256[:12]}, workload {plan.workload_sha256[:12]}"
        return RunLabel(title=title, horizon_ns=plan.window.end_ns, hashes=hashes)


def _check_fits(plan: RunPlan, sut: Sut) -> None:
    """Raises `ScenarioError`: a server cuts what is too long, and answers as if nothing were wrong."""
    longest = int((plan.input_tokens + plan.output_tokens).max(initial=0))
    if sut.max_model_len is not None and longest > sut.max_model_len:
        raise ScenarioError(
            f"the plan has a request of {longest} tokens (input and output), {sut.label} takes "
            f"{sut.max_model_len} (max_model_len): bound --input and --output, as in lognormal:500,1,1..3000"
        )


def blocked(plan: RunPlan, requests: pd.DataFrame) -> BlockedTurns:
    """How long turns waited for the previous one beyond their recorded instants."""
    assert plan.parent is not None
    rows = requests["index"].to_numpy()
    waited_ns = requests["scheduled_ns"].to_numpy() - plan.schedule.at_ns[rows]
    turns = int(np.count_nonzero(plan.parent[rows] >= 0))
    waits_s = np.sort(waited_ns[waited_ns > 0]) / NS
    some = len(waits_s) > 0
    return BlockedTurns(
        turns=turns,
        blocked=len(waits_s),
        total_s=float(waits_s.sum()),
        p50_s=float(nearest_rank(waits_s, 0.5)) if some else None,
        p95_s=float(nearest_rank(waits_s, 0.95)) if some else None,
        max_s=float(waits_s[-1]) if some else None,
    )


def _server(output: RunOutput, plan: RunPlan) -> ServerView | None:
    """What the target reported while the run was on; `None` where it was not asked."""
    if output.observed is None:
        return None
    return observe(output.observed, start_ns=plan.window.warmup_ns, end_ns=plan.window.end_ns)
