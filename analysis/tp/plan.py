"""What a split over p ranks would cost and save by the screening model (method, section 9), before it is measured.

A plan's times come from two sources: t_proj,1 from a constant a (t_proj,1 = a·T) or from a TP=1 profile by T, τ_AR from
α and B or from nccl-tests. Measured ones hold inside of their range only; outside of it there is no prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from analysis.tp.allreduce import NotMeasured
from analysis.tp.config import Model
from analysis.tp.cost import Shape, collectives_per_step, split_refusal, step_s
from analysis.tp.steptimes import Costs, all_reduce, flops_per_s, projections_s, threshold

__all__ = ["LABEL", "STOP", "Budget", "Costs", "Load", "Plan", "Prediction", "RankMemory", "Split", "make_plan"]

LABEL: Final = "screening model, not a measurement"
STOP: Final = (
    "p does not divide heads, KV heads or MLP width, or p > KV heads",
    "a trace shows not about 2L collectives a step, or payloads not about T·H·e_a (loadgen tp profile compares them)",
    "sequence parallelism, all-to-alls of experts, fused or custom collectives, or cross-node links are in use",
    "contexts are so long that attention dominates",
    "GEMMs get too narrow (t > t_proj,1/p)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory of one card, bytes, and what the KV cache must hold. `usable_bytes` None: not known."""

    usable_bytes: float | None
    runtime_bytes: float
    kv_tokens: int
    kv_element_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """M_rank(p) = weights + KV + runtime, bytes, of the fullest rank."""

    weight_bytes: float
    kv_bytes: float
    runtime_bytes: float
    rank_bytes: float  # the sum, M_rank(p)
    usable_bytes: float | None
    margin_bytes: float | None  # usable less the sum

    @property
    def fits(self) -> bool | None:
        """M_rank(p) ≤ M_usable; `None` where that is not known."""
        return None if self.margin_bytes is None else self.margin_bytes >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One p. `refusal`: it cannot be split so; `stop`: it can, but the model does not hold; "" if all is well.

    `threshold_tokens`: the T above which p ranks are faster than one; `threshold` says up to which T that was measured,
    or why there is none.
    """

    ranks: int
    refusal: str
    stop: str
    notes: tuple[str, ...]
    memory: RankMemory | None
    feasible: bool | None  # None: memory not known
    threshold_tokens: float | None
    threshold: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Step of T tokens on p ranks. Times, seconds, are `None` where `why` says what is missing, () if nothing is."""

    ranks: int
    traffic_bytes: float  # V_step, a rank
    all_reduce_s: float | None  # τ_AR, one
    step_s: float | None
    speedup: float | None
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A step of T tokens: S, FLOPs of one layer, t_proj,1 and what p ranks make of it."""

    tokens: int
    payload_bytes: int
    attention_flops: int
    mlp_flops: int
    projection_flops: int
    projections_s: float | None  # all layers, on one rank
    by_ranks: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `tp plan --json` prints; see `LABEL`."""

    kind: Literal["tp-plan"] = "tp-plan"
    format: int = 1
    label: str = LABEL
    model: Model
    parameters: int
    kv_bytes_per_token: int
    collectives_per_step: int
    alone: RankMemory  # of one rank: a speed-up against one that does not fit is against a larger card
    splits: tuple[Split, ...]
    loads: tuple[Load, ...]
    warnings: tuple[str, ...]  # about the measured times of all-reduces
    stop_when: tuple[str, ...] = STOP


def make_plan(model: Model, *, ranks: Sequence[int], tokens: Sequence[int], costs: Costs, budget: Budget) -> Plan:
    """The plan for every p and T. A p that cannot be split has its `refusal`, and no prediction."""
    shape = model.shape
    splits = tuple(_split(model, one, costs, budget) for one in ranks)
    return Plan(
        model=model,
        parameters=_layer_parameters(shape) + _vocabulary_parameters(model),
        kv_bytes_per_token=shape.kv_bytes_per_token(budget.kv_element_bytes),
        collectives_per_step=collectives_per_step(shape.layers),
        alone=_memory(model, 1, budget),
        splits=splits,
        loads=tuple(
            Load(
                tokens=each,
                payload_bytes=shape.payload_bytes(each),
                attention_flops=shape.attention_flops(each),
                mlp_flops=shape.mlp_flops(each),
                projection_flops=shape.projection_flops(each),
                projections_s=_or_none(shape, costs, each),
                by_ranks=tuple(_predict(shape, costs, split, each) for split in splits if not split.refusal),
            )
            for each in tokens
        ),
        warnings=tuple(
            f"p = {one}: {text}" for one in ranks if one in costs.measured for text in costs.measured[one].warnings
        ),
    )


def _layer_parameters(shape: Shape) -> int:
    return shape.layers * shape.projection_flops(1) // 2


def _vocabulary_parameters(model: Model) -> int:
    return (1 if model.tied else 2) * model.shape.vocab * model.shape.hidden


def _split(model: Model, ranks: int, costs: Costs, budget: Budget) -> Split:
    shape = model.shape
    stop, notes, refusal = "", [], ""
    replicated = ranks > shape.kv_heads and ranks % shape.kv_heads == 0
    if replicated:
        stop = f"p = {ranks} > {shape.kv_heads} KV heads: each is kept on {ranks // shape.kv_heads} ranks"
        refusal = next((f"{ranks} ranks do not divide {what} = {size}" for what, size in
                        (("heads", shape.heads), ("mlp", shape.mlp)) if size % ranks), "")  # fmt: skip
    else:
        refusal = split_refusal(shape, ranks)
    if shape.vocab % ranks:
        notes.append(f"{ranks} ranks do not divide the vocabulary of {shape.vocab}: counted whole on each rank")
    if refusal:
        return Split(ranks=ranks, refusal=refusal, stop=stop, notes=tuple(notes), memory=None, feasible=None,
                     threshold_tokens=None, threshold="")  # fmt: skip
    memory = _memory(model, ranks, budget)
    from_tokens, said = (None, stop) if stop else threshold(shape, costs, ranks)
    return Split(
        ranks=ranks,
        refusal="",
        stop=stop,
        notes=tuple(notes),
        memory=memory,
        feasible=memory.fits,
        threshold_tokens=from_tokens,
        threshold=said,
    )


def _memory(model: Model, ranks: int, budget: Budget) -> RankMemory:
    """The embedding and output matrices are not quantised, and whole on each rank where p does not divide the rows."""
    shape = model.shape
    kv_ranks = min(ranks, shape.kv_heads)
    kv_weights = shape.layers * 2 * shape.hidden * shape.kv_width
    layers = (_layer_parameters(shape) - kv_weights) / ranks + kv_weights / kv_ranks
    vocabulary = _vocabulary_parameters(model) / (ranks if shape.vocab % ranks == 0 else 1)
    weight_bytes = layers * model.weight_bits / 8 + vocabulary * max(model.weight_bits, 16) / 8
    kv_bytes = budget.kv_tokens * shape.kv_bytes_per_token(budget.kv_element_bytes) / kv_ranks
    rank_bytes = weight_bytes + kv_bytes + budget.runtime_bytes
    return RankMemory(
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        runtime_bytes=budget.runtime_bytes,
        rank_bytes=rank_bytes,
        usable_bytes=budget.usable_bytes,
        margin_bytes=None if budget.usable_bytes is None else budget.usable_bytes - rank_bytes,
    )


def _or_none(shape: Shape, costs: Costs, tokens: int) -> float | None:
    try:
        return projections_s(shape, costs, tokens)
    except NotMeasured:
        return None


def _predict(shape: Shape, costs: Costs, split: Split, tokens: int) -> Prediction:
    ranks, link = split.ranks, all_reduce(costs)
    reduce_s = split_s = speedup = None
    why = [split.stop] if split.stop else []
    if not why:
        try:
            if link is not None:
                reduce_s = link.all_reduce_s(shape.payload_bytes(tokens), ranks)
            else:
                why.append("τ_AR is not known: give --alpha and --bandwidth, or --nccl")
        except NotMeasured as error:
            why.append(str(error))
        try:
            reached = flops_per_s(shape, costs, tokens)
        except NotMeasured as error:
            why.append(str(error))
        if link is not None and not why:
            one_s, split_s = (
                step_s(shape, link, tokens=tokens, ranks=p, flops_per_s=reached, other_s=costs.other_s)
                for p in (1, ranks)
            )
            speedup = one_s / split_s
    return Prediction(
        ranks=ranks,
        traffic_bytes=shape.traffic_bytes(tokens, ranks),
        all_reduce_s=reduce_s,
        step_s=split_s,
        speedup=speedup,
        why=tuple(why),
    )
