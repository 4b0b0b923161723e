"""What a split over p ranks would cost and save by the screening model (method, section 9), before it is measured.

A plan's times come from two sources: t_proj,1 from a constant a (t_proj,1 = a·T) or from a TP=1 profile by T, τ_AR from
α and B or from nccl-tests. Measured ones hold inside of their range only; outside of it there is no prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from analysis.tp.allreduce import Microbenchmark, NotMeasured
from analysis.tp.config import Model
from analysis.tp.cost import Fabric, Shape, break_even_tokens, collectives_per_step, split_refusal, step_s
from analysis.tp.types import TokenTimes

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
class Costs:
    """Where times come from; `None`: not known. `flops_per_s`: L·F_proj(1)/a, for a constant a."""

    flops_per_s: float | None = None
    projections: TokenTimes | None = None  # in place of a constant a
    fabric: Fabric | None = None
    measured: Mapping[int, Microbenchmark] = field(default_factory=dict)  # by p, in place of the fabric
    other_s: float = 0.0  # t_other, the same for one rank and for p


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """M_rank(p) = weights + KV + runtime, bytes, of the fullest rank."""

    weight_bytes: float
    kv_bytes: float
    runtime_bytes: float
    rank_bytes: float  # the sum, M_rank(p)
    usable_bytes: float | None
    margin_bytes: float | None  # usable less the sum


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
    """Step of T tokens on p ranks. Times, seconds, are `None` where `why` says what is missing."""

    ranks: int
    traffic_bytes: float  # V_step, a rank
    all_reduce_s: float | None  # τ_AR, one
    step_s: float | None
    speedup: float | None
    why: str


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
    splits: tuple[Split, ...]
    loads: tuple[Load, ...]
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
    threshold, said = (None, stop) if stop else _threshold(shape, costs, ranks)
    margin = memory.margin_bytes
    return Split(
        ranks=ranks,
        refusal="",
        stop=stop,
        notes=tuple(notes),
        memory=memory,
        feasible=None if margin is None else margin >= 0,
        threshold_tokens=threshold,
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


@dataclass(frozen=True, slots=True)
class _Measured:
    """`AllReduce` of measured times: none is made up outside of them."""

    by_ranks: Mapping[int, Microbenchmark]

    def all_reduce_s(self, payload_bytes: float, ranks: int) -> float:
        if ranks == 1:
            return 0.0
        if (bench := self.by_ranks.get(ranks)) is None:
            measured = ", ".join(map(str, sorted(self.by_ranks)))
            raise NotMeasured(f"p = {ranks}: no nccl-tests of {ranks} ranks, only of {measured}")
        took = bench.all_reduce_s(payload_bytes)
        if took is None:
            low, high = bench.times[0][0], bench.times[-1][0]
            raise NotMeasured(
                f"p = {ranks}: S = {payload_bytes:.0f} B is outside of what nccl-tests measured, {low} to {high} B"
            )
        return took


def _all_reduce(costs: Costs) -> Fabric | _Measured | None:
    return _Measured(costs.measured) if costs.measured else costs.fabric


def _flops_per_s(shape: Shape, costs: Costs, tokens: float) -> float:
    """What one rank's projections reach at T. Raises `NotMeasured`."""
    if costs.projections is None:
        if costs.flops_per_s is None:
            raise NotMeasured("t_proj,1 is not known: give --a, --a-from or --tflops")
        return costs.flops_per_s
    return shape.layers * shape.projection_flops(1) * tokens / costs.projections.projections_s(tokens)


def _or_none(shape: Shape, costs: Costs, tokens: int) -> float | None:
    try:
        return shape.layers * shape.projection_flops(tokens) / _flops_per_s(shape, costs, tokens)
    except NotMeasured:
        return None


def _predict(shape: Shape, costs: Costs, split: Split, tokens: int) -> Prediction:
    ranks, link = split.ranks, _all_reduce(costs)
    reduce_s = split_s = speedup = None
    why = split.stop
    if not why:
        try:
            if link is None:
                raise NotMeasured("τ_AR is not known: give --alpha and --bandwidth, or --nccl")
            reduce_s = link.all_reduce_s(shape.payload_bytes(tokens), ranks)
            flops_per_s = _flops_per_s(shape, costs, tokens)
            one_s, split_s = (
                step_s(shape, link, tokens=tokens, ranks=p, flops_per_s=flops_per_s, other_s=costs.other_s)
                for p in (1, ranks)
            )
            speedup = one_s / split_s
        except NotMeasured as error:
            why = str(error)
    return Prediction(
        ranks=ranks,
        traffic_bytes=shape.traffic_bytes(tokens, ranks),
        all_reduce_s=reduce_s,
        step_s=split_s,
        speedup=speedup,
        why=why,
    )


def _threshold(shape: Shape, costs: Costs, ranks: int) -> tuple[float | None, str]:
    """The T from which p ranks are faster, or why there is none; by measured times, only inside of their range."""
    link = _all_reduce(costs)
    if ranks == 1:
        return None, "one rank"
    if link is None or (costs.flops_per_s is None and costs.projections is None):
        return None, "not known: it needs a and τ_AR"
    if isinstance(link, Fabric) and costs.flops_per_s is not None:
        tokens = break_even_tokens(shape, link, ranks=ranks, flops_per_s=costs.flops_per_s)
        return tokens, "" if tokens is not None else "never: the bandwidth eats what the split saves"
    knots = _knots(shape, costs, ranks)
    if not knots:
        return None, "the measured ranges of T do not overlap"

    def saved_s(tokens: float) -> float:
        """(1 − 1/p)·t_proj,1 − 2L·τ_AR."""
        projections_s = shape.layers * shape.projection_flops(1) * tokens / _flops_per_s(shape, costs, tokens)
        payload = tokens * shape.hidden * shape.activation_bytes
        if ranks in costs.measured:  # a knot that is a measured size may have been rounded out of the range
            times = costs.measured[ranks].times
            payload = min(max(payload, times[0][0]), times[-1][0])
        return (1 - 1 / ranks) * projections_s - collectives_per_step(shape.layers) * link.all_reduce_s(payload, ranks)

    saved = [(tokens, saved_s(tokens)) for tokens in knots]
    low, high = knots[0], knots[-1]
    if saved[-1][1] <= 0:
        return None, f"not up to T = {high:.4g}, the largest that was measured"
    for (left, below), (right, above) in reversed(list(pairwise(saved))):
        if below <= 0:  # saved_s is a straight line between knots
            return left + (right - left) * -below / (above - below), f"up to T = {high:.4g}, the largest measured"
    return None, f"faster at all measured T, {low:.4g} to {high:.4g}"


def _knots(shape: Shape, costs: Costs, ranks: int) -> list[float]:
    """The T inside of all measured ranges between which times are straight lines; [] where ranges do not overlap."""
    series: list[list[float]] = []
    if costs.projections is not None:
        series.append([tokens for tokens, _ in costs.projections.pairs])
    if costs.measured:
        if ranks not in costs.measured:
            return []
        per_token = shape.hidden * shape.activation_bytes
        series.append([size / per_token for size, _ in costs.measured[ranks].times])
    low, high = max(one[0] for one in series), min(one[-1] for one in series)
    inside = {tokens for one in series for tokens in one if low <= tokens <= high}
    return sorted(inside)
