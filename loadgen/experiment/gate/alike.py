"""What the runs of a gate must have in common with those of its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from loadgen.common.errors import ResultsError
from loadgen.experiment.execute import Prepared
from loadgen.experiment.gate.baseline import Stored
from loadgen.experiment.run_plan import plan_of
from loadgen.results.regression import BaselineRecord

__all__ = ["check_same", "other_conditions"]


def check_same(stored: Stored, record: BaselineRecord, prepared: Prepared) -> None:
    """Raise `ResultsError` naming all that the target changes of what the baseline's runs were."""
    before, sut, format_now = stored.manifest.target, prepared.sut, prepared.ready.workload.format
    pairs = [("model", before.model, sut.model), ("simulated", before.simulated, sut.simulated)]
    pairs += [(one.name, getattr(before.format, one.name), getattr(format_now, one.name)) for one in fields(format_now)]
    differing = [f"{name}: {old} → {new}" for name, old, new in pairs if old != new]
    if differing := differing or _other_hashes(record, prepared):
        raise other_conditions(stored, differing)


def other_conditions(stored: Stored, differing: Sequence[str]) -> ResultsError:
    """The refusal that names what differs."""
    return ResultsError(
        f"--baseline {stored.directory}: measured under other conditions ({'; '.join(differing)}): drop what differs, "
        "or measure a new baseline"
    )


def _other_hashes(record: BaselineRecord, prepared: Prepared) -> list[str]:
    """What differs in the first run whose schedule or workload is not the baseline's, as of another version."""
    ready = prepared.ready
    for run in record.runs:
        plan = plan_of(run.request, ready.workload, warmup_s=ready.warmup_s, content_unpaired=record.content_unpaired)
        pairs = (
            ("schedule", run.numbers.schedule_sha256, plan.schedule.sha256),
            ("workload", run.numbers.workload_sha256, plan.workload_sha256),
        )
        seed = run.request.seed
        if found := [f"{name} of seed {seed}: {old[:12]} → {new[:12]}" for name, old, new in pairs if old != new]:
            return found
    return []
