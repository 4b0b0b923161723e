"""Documents of results directories, as small as they can be."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter

from analysis.search import RunRequest, SeedBook
from analysis.verdict import RunFacts, RunVerdict, SenderFacts
from loadgen.common.documents import to_json, widened
from loadgen.plan.types import PlanRecord, RequestFormat, Window
from loadgen.results.types import LedgerLine, Machine, Manifest, RunDocument, SealedRun, TargetRecord

T = TypeVar("T")
WINDOW = Window(warmup_ns=0, window_ns=1, tail_ns=1)


def again(value: T) -> T:
    """What a value is after it was written and read; it needs no version."""
    kind: TypeAdapter[T] = TypeAdapter(type(value))
    return kind.validate_json(to_json(value))


def experiment(**more: Any) -> Manifest:
    target = TargetRecord(
        label="t", simulated=True, model="m", identity={}, environment={}, notes={}, format=RequestFormat(),
        content_unpaired=False, events_per_read=None,
    )  # fmt: skip
    seeds = SeedBook(roots=(1,), blocks=((2,),), spares=(), sentinel=3)
    known: dict[str, Any] = {
        "kind": "sweep", "id": "x", "created": "now", "scenario": {}, "scenario_sha256": "", "seeds": seeds,
        "warmup_s": 1.0, "residence_s": None, "versions": {}, "machine": Machine(system="", processor="", cores=1),
        "target": target, "notes": (),
    }  # fmt: skip
    return Manifest(**(known | more))


def request(key: str, variant: str = "main") -> RunRequest:
    return RunRequest(
        kind="explore", rate=1.0, rate_index=0, replicate=0, block=-1, seed=1, attempt=0, key=key, variant=variant
    )


def sealed(of: RunRequest, **more: Any) -> SealedRun:
    known: dict[str, Any] = {
        "run": of, "verdict": RunVerdict(status="PASS"), "window": WINDOW, "started": "now", "seconds": 1.0,
        "requests": 10, "tokens": 100,
    }  # fmt: skip
    return SealedRun(**(known | more))


def line(of: RunRequest, *, elapsed_s: float = 2.0, **more: Any) -> LedgerLine:
    return widened(sealed(of, **more), LedgerLine, elapsed_s=elapsed_s, schedule_sha256="s", workload_sha256="w")


def document(of: RunRequest) -> RunDocument:
    plan = PlanRecord(
        schedule_sha256="s", workload_sha256="w", requests=10, rate=1.0, root_seed=1, arrival_root=1, workload_root=1,
        content_seed=1, content_version=1, window=WINDOW, format=RequestFormat(), text_sha256=None, origin="",
        numpy="2",
    )  # fmt: skip
    sender = SenderFacts(rate=1.0, warmup_ns=0, window_ns=1, stop_ns=1, due=1, sent=1, cohort_due=1)
    return widened(
        sealed(of),
        RunDocument,
        events="all",
        plan=plan,
        facts=RunFacts(sender=sender),
        identity={},
        looks=(),
        server=None,
    )
