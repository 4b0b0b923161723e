"""From the runs of a comparison to its answer: the same steps for results on the disk and for a rehearsal in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from analysis.compare.answer import Declared, compared
from analysis.compare.lone import lone_counts
from analysis.compare.phase import Job, PairedPhase
from analysis.compare.runs import variant_run
from analysis.compare.types import CapacityPerGpu, Comparison, ComparisonOutcome, VariantRun, VariantSpec
from analysis.search import Outcome, RunRequest, Search
from analysis.units import parse_share
from analysis.verdict import RunVerdict
from loadgen.common.errors import ResultsError
from loadgen.experiment.compare.phases import Measured
from loadgen.experiment.compare.setup import ComparisonSetup, VariantSetup
from loadgen.experiment.run_plan import criteria_of
from loadgen.plan.types import Window
from loadgen.results.answer import conditions, judged_runs, notes
from loadgen.results.comparison import variant_directory
from loadgen.results.store import read_experiment, read_ledger, run_directory
from loadgen.results.types import LedgerLine, Manifest

__all__ = ["assembled", "at_points", "capacities_of", "declared", "ending", "measured_so_far", "numbers_of", "spec_of"]


def declared(setup: ComparisonSetup) -> Declared:
    """What was fixed before the first run."""
    settings = setup.settings
    return Declared(
        variants=tuple(map(spec_of, setup)),
        replicates=len(setup.seeds),
        attain=parse_share(setup.scenario.attain),
        indifference=float(parse_share(settings.indifference)),
        together=setup.together,
        per_gpu=settings.per_gpu,
        price_per_gpu_hour=settings.price_per_gpu_hour,
        too_large_for_one_gpu=settings.too_large_for_one_gpu,
    )


def spec_of(variant: VariantSetup) -> VariantSpec:
    """The variant as the analysis knows it."""
    own = variant.settings
    return VariantSpec(
        name=own.name, gpus=own.gpus, tp=own.tp, pp=own.pp, replicas=own.served_by, alternative_of=own.alternative_of
    )


def numbers_of(
    requests: pd.DataFrame,
    request: RunRequest,
    verdict: RunVerdict,
    variant: VariantSetup,
    *,
    window: Window,
    schedule_sha256: str,
    workload_sha256: str,
) -> VariantRun:
    """The numbers of one paired run, at no point yet: a run may belong to several."""
    return variant_run(
        requests,
        spec_of(variant),
        slo=variant.setup.scenario.objective,
        warmup_ns=window.warmup_ns,
        window_ns=window.window_ns,
        label="",
        rate=request.rate,
        replicate=request.replicate,
        seed=request.seed,
        status=verdict.status,
        schedule_sha256=schedule_sha256,
        workload_sha256=workload_sha256,
    )


def at_points(
    phase: PairedPhase | None, numbers: Callable[[Job, RunRequest, RunVerdict], VariantRun]
) -> list[VariantRun]:
    """The runs that count, once for each point they belong to."""
    if phase is None:
        return []
    known = {job: numbers(job, request, verdict) for job, request, verdict in phase.counting()}
    return [
        replace(run, label=point.label)
        for point in phase.plan.points
        for job, run in known.items()
        if point.rates.get(job.variant) == job.rate
    ]


def ending(measured: Measured) -> tuple[ComparisonOutcome, str]:
    """The outcome of a comparison, and why."""
    if measured.stopped is not None:
        return measured.stopped
    if measured.phase is not None:
        return "COMPLETE", ""
    if measured.lost:
        return "UNSTABLE_TARGET", "fewer than two variants are left to be compared"
    without = [f"{name} {one.name}" for name, one in measured.outcomes.items() if one.capacity is None]
    limited = any(one.name == "CLIENT_LIMITED" for one in measured.outcomes.values())
    why = f"no rate at which two variants can be compared: the searches ended {', '.join(without)}"
    return ("CLIENT_LIMITED" if limited else "UNDECIDED"), why


def measured_so_far(directory: Path, setup: ComparisonSetup) -> Measured:
    """What the sealed runs of a comparison add up to, for one that has not ended or ended elsewhere."""
    measured = Measured()
    for variant in setup if setup.searches else ():
        one = variant.setup
        runs = judged_runs(variant_directory(directory, variant.name))
        search = Search.replay(one.spec, one.seeds, criteria_of(one.scenario, one.workload), runs)
        asked = search.ask()
        measured.outcomes[variant.name] = asked if isinstance(asked, Outcome) else search.stop("UNFINISHED", "")
    go_on = f"go on with: loadgen compare --resume {directory}"
    if any(one.name == "UNFINISHED" for one in measured.outcomes.values()):
        measured.stopped = "UNFINISHED", go_on
        return measured
    plan = setup.plan(measured.outcomes)
    if len(plan.variants) > 1:
        runs = [
            (replace(line.run, variant=name), line.verdict)
            for name in plan.variants
            for line in read_ledger(variant_directory(directory, name))
            if line.run.kind == "paired"
        ]
        measured.phase = PairedPhase.replay(plan, plan.own(runs))
        if isinstance(measured.phase.ask(), RunRequest):
            measured.stopped = "UNFINISHED", go_on
    return measured


def assembled(directory: Path, setup: ComparisonSetup, measured: Measured) -> Comparison:
    """The answer of the comparison in `directory`, from its ledgers and sealed runs. Raises `ResultsError`."""
    ledgers = {one.name: read_ledger(variant_directory(directory, one.name)) for one in setup}
    manifests = {one.name: read_experiment(variant_directory(directory, one.name)) for one in setup}
    lines = {name: {line.run.key: line for line in ledger} for name, ledger in ledgers.items()}

    def numbers(job: Job, request: RunRequest, verdict: RunVerdict) -> VariantRun:
        line = lines[job.variant][request.key]
        return numbers_of(
            _requests(directory, job.variant, line),
            request,
            verdict,
            setup[job.variant],
            window=line.window,
            schedule_sha256=line.schedule_sha256,
            workload_sha256=line.workload_sha256,
        )

    outcome, reason = ending(measured)
    try:
        return compared(
            declared(setup),
            outcome=outcome,
            reason=reason,
            conditions={one.name: conditions(one.setup.scenario, one.setup.spec, manifests[one.name]) for one in setup},
            seeds=setup.seeds if measured.phase is None else measured.phase.seeds,
            lost=measured.lost,
            capacities=capacities_of(setup, measured),
            lone={one.name: _lone(directory, one, ledgers[one.name]) for one in setup},
            runs=at_points(measured.phase, numbers),
            notes=_notes(setup, manifests),
        )
    except ValueError as error:
        raise ResultsError(f"{directory}: {error}: measure again") from None


def capacities_of(setup: ComparisonSetup, measured: Measured) -> list[CapacityPerGpu]:
    """How each search ended, in the order of the variants."""
    ended = measured.outcomes
    return [_capacity(one, ended[one.name]) for one in setup if one.name in ended]


def _capacity(variant: VariantSetup, found: Outcome) -> CapacityPerGpu:
    def per_gpu(rate: float | None) -> float | None:
        return None if rate is None else rate / variant.gpus

    return CapacityPerGpu(
        variant=variant.name,
        gpus=variant.gpus,
        lower=per_gpu(found.capacity),
        upper=per_gpu(found.upper),
        at=found.capacity,
        outcome=found.name,
        reason=found.reason,
    )


def _lone(directory: Path, variant: VariantSetup, ledger: Sequence[LedgerLine]) -> tuple[int, int]:
    """Lone requests and the good ones among them, in the valid runs at the lowest rate."""
    lowest = min((line.run.rate for line in ledger), default=0.0)
    counts = [
        lone_counts(_requests(directory, variant.name, line), variant.setup.scenario.objective)
        for line in ledger
        if line.run.rate == lowest and line.verdict.status != "INVALID"
    ]
    return sum(alone for alone, _ in counts), sum(good for _, good in counts)


def _requests(directory: Path, name: str, line: LedgerLine) -> pd.DataFrame:
    path = run_directory(variant_directory(directory, name), line.run) / "requests.parquet"
    try:
        table: pd.DataFrame = pq.read_table(path).to_pandas()
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {error}: restore the file") from None
    return table


def _notes(setup: ComparisonSetup, manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """A line that all variants have stands once, and another one after the variant's name."""
    found = {one.name: notes(one.setup.scenario, manifests[one.name]) for one in setup}
    counts = Counter(line for lines in found.values() for line in dict.fromkeys(lines))
    said = set()
    for name, lines in found.items():
        for line in dict.fromkeys(lines):
            if counts[line] < len(found):
                yield f"{name}: {line}"
            elif line not in said:
                said.add(line)
                yield line
