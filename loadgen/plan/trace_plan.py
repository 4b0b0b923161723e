"""The plan of a recorded workload: a stretch of a trace, with its own instants, lengths, prefix blocks and turns.

Only the content is drawn, as everywhere from the content stream: a trace says which prompts begin alike, not what they
say. A trace without block ids shares nothing, even within sessions: their texts were not recorded.
"""

from __future__ import annotations

import numpy as np

from loadgen.plan.bodies import check_format
from loadgen.plan.lengths import DrawnLengths
from loadgen.plan.plan import content_seed_of, workload_hash
from loadgen.plan.seeds import side_root
from loadgen.plan.types import Int64s, PlanRequest, RequestFormat, RunPlan, Schedule, SideSeeds
from traces.prefix import cached_tokens
from traces.trace import Trace

__all__ = ["recorded_plan"]


def recorded_plan(
    request: PlanRequest,
    piece: Trace,
    at_ns: Int64s,
    *,
    format: RequestFormat,  # noqa: A002 - the plan's own word for it
    sides: SideSeeds | None = None,
    content_root: int | None = None,
    origin: str = "",
) -> RunPlan:
    """The plan that sends the requests of `piece` at `at_ns`, int64 (n,) sorted ns from t0.

    `content_root` takes the place of the replicate's root for the content alone: runs that are given the same one send
    the same tokens for the same block id. Raises `ValueError`.
    """
    sides = sides or SideSeeds()
    check_format(format)
    workload_root = side_root(request.root_seed, sides.workload)
    content_seed = content_seed_of(workload_root if content_root is None else content_root, request.content_key)
    drawn = DrawnLengths(
        input_tokens=piece.input_tokens.astype(np.int64),
        output_tokens=piece.output_tokens.astype(np.int64),
        prefix_tokens=cached_tokens(piece).astype(np.int64),
        prefix_group=np.full(len(piece), -1, dtype=np.int64),
    )
    parent = None if piece.parent is None else piece.parent.astype(np.int64)
    for column in (drawn.input_tokens, drawn.output_tokens, drawn.prefix_tokens, drawn.prefix_group, parent):
        if column is not None:
            column.flags.writeable = False
    return RunPlan(
        schedule=Schedule(at_ns=at_ns),
        input_tokens=drawn.input_tokens,
        output_tokens=drawn.output_tokens,
        prefix_tokens=drawn.prefix_tokens,
        prefix_group=drawn.prefix_group,
        content_seed=content_seed,
        window=request.window,
        format=format,
        rate=request.rate,
        root_seed=request.root_seed,
        workload_sha256=workload_hash(drawn, content_seed, format, blocks=piece.hashes, parent=parent),
        arrival_root=side_root(request.root_seed, sides.arrival),
        workload_root=workload_root,
        blocks=piece.hashes,
        parent=parent,
        origin=origin,
    )
