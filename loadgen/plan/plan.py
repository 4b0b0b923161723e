"""Makes the plan of a run: pure, and whole before the run begins.

The same arguments (and numpy's version, which is stored: its distributions may change between releases) give the same
plan on every machine and for every number of workers. The plan holds what is random in compact columns; bodies follow
from it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from loadgen.plan.arrivals import Arrivals, Modulated, schedule_count, schedule_horizon
from loadgen.plan.bodies import check_format
from loadgen.plan.lengths import DrawnLengths, Lengths
from loadgen.plan.prompts import CONTENT_VERSION
from loadgen.plan.seeds import side_root, stream
from loadgen.plan.types import (
    Int64s,
    PlanRecord,
    PlanRequest,
    RequestFormat,
    RunPlan,
    Schedule,
    SideSeeds,
    Window,
)
from traces.trace import BlockHashes

__all__ = ["content_seed_of", "make_plan", "record_of", "workload_hash"]


def make_plan(
    request: PlanRequest,
    *,
    arrivals: Arrivals | Modulated | Schedule,
    lengths: Lengths,
    format: RequestFormat,  # noqa: A002 - the plan's own word for it
    sides: SideSeeds | None = None,
) -> RunPlan:
    """The plan of one run.

    A ready `Schedule` (a trace) is kept as it is. Raises `ValueError` for arguments out of range.
    """
    sides = sides or SideSeeds()
    rate, window, cohort = request.rate, request.window, request.cohort
    check_format(format)
    arrival_root = side_root(request.root_seed, sides.arrival)
    workload_root = side_root(request.root_seed, sides.workload)
    if isinstance(arrivals, Schedule):
        if cohort is not None:
            raise ValueError("a recorded schedule has the window it has: a cohort count does not apply")
        schedule = arrivals
    elif cohort is not None:
        schedule, end_ns = schedule_count(
            arrivals, rate, warmup_ns=window.warmup_ns, cohort=cohort, tail_ns=window.tail_ns,
            rng=stream(arrival_root, "arrivals"),
        )  # fmt: skip
        window = Window(warmup_ns=window.warmup_ns, window_ns=end_ns - window.warmup_ns, tail_ns=window.tail_ns)
    else:
        schedule = schedule_horizon(arrivals, rate, window.horizon_ns, stream(arrival_root, "arrivals"))
    drawn = lengths.draw(stream(workload_root, "lengths"), len(schedule))
    content_seed = content_seed_of(workload_root, request.content_key)
    for column in (drawn.input_tokens, drawn.output_tokens, drawn.prefix_tokens, drawn.prefix_group):
        column.flags.writeable = False
    return RunPlan(
        schedule=schedule,
        input_tokens=drawn.input_tokens,
        output_tokens=drawn.output_tokens,
        prefix_tokens=drawn.prefix_tokens,
        prefix_group=drawn.prefix_group,
        content_seed=content_seed,
        window=window,
        format=format,
        rate=rate,
        root_seed=request.root_seed,
        workload_sha256=workload_hash(drawn, content_seed, format),
        arrival_root=arrival_root,
        workload_root=workload_root,
    )


def content_seed_of(root: int, content_key: tuple[float, int] | None) -> int:
    """The seed of all content of a run, from its workload root and, where that must differ, (rate, attempt)."""
    extra = "" if content_key is None else f"rate={float(content_key[0])!r} attempt={content_key[1]}"
    return int(stream(root, "content", extra=extra).integers(2**63))


def workload_hash(
    drawn: DrawnLengths,
    content_seed: int,
    form: RequestFormat,
    *,
    blocks: BlockHashes | None = None,
    parent: Int64s | None = None,
) -> str:
    """SHA-256 of what decides all bytes of all requests but the slot's: columns, content seed, format, content version.

    Bodies are a pure function of these, so hashing them instead would add nothing but hours. `model`, `cache_salt` and
    API extras are outside (method, section 4). The turns of recorded sessions belong to it: they may decide who waits.
    """
    header: dict[str, Any] = {
        "content_version": CONTENT_VERSION, "content_seed": content_seed, "format": orjson.Fragment(form.hashed()),
    }  # fmt: skip
    columns = [drawn.input_tokens, drawn.output_tokens, drawn.prefix_tokens, drawn.prefix_group]
    if blocks is not None:
        header["block_tokens"] = blocks.block_tokens
        columns += [blocks.starts, blocks.ids]
    if parent is not None:
        header["turns"] = True
        columns.append(parent)
    digest = hashlib.sha256(orjson.dumps(header, option=orjson.OPT_SORT_KEYS))
    for column in columns:
        digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return digest.hexdigest()


def record_of(plan: RunPlan) -> PlanRecord:
    """What a run's document says of its plan."""
    return PlanRecord(
        schedule_sha256=plan.schedule.sha256,
        workload_sha256=plan.workload_sha256,
        requests=len(plan),
        rate=plan.rate,
        root_seed=plan.root_seed,
        arrival_root=plan.arrival_root,
        workload_root=plan.workload_root,
        content_seed=plan.content_seed,
        content_version=CONTENT_VERSION,
        window=plan.window,
        format=replace(plan.format, text=None),
        text_sha256=None if plan.format.text is None else plan.format.text.sha256,
        origin=plan.origin,
        numpy=np.__version__,
    )
