"""Times of a step on p ranks, of constants or of measurements, and the T from which p ranks are faster than one.

Measured times hold inside of their range only; outside of it there is none, and `NotMeasured` says which range that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from analysis.tp.allreduce import Microbenchmark, NotMeasured
from analysis.tp.cost import AllReduce, Fabric, Shape, break_even_tokens, collectives_per_step
from analysis.tp.types import TokenTimes

__all__ = ["Costs", "all_reduce", "flops_per_s", "projections_s", "threshold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Where times come from; `None`: not known. `flops_per_s`: L·F_proj(1)/a, for a constant a."""

    flops_per_s: float | None = None
    projections: TokenTimes | None = None  # in place of a constant a
    fabric: Fabric | None = None
    measured: Mapping[int, Microbenchmark] = field(default_factory=dict)  # by p, in place of the fabric
    other_s: float = 0.0  # t_other, the same for one rank and for p


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


def all_reduce(costs: Costs) -> AllReduce | None:
    """What tells τ_AR: measured times before α and B. `None`: nothing does."""
    return _Measured(costs.measured) if costs.measured else costs.fabric


def flops_per_s(shape: Shape, costs: Costs, tokens: float) -> float:
    """What one rank's projections reach at T. Raises `NotMeasured`."""
    if costs.projections is None:
        if costs.flops_per_s is None:
            raise NotMeasured("t_proj,1 is not known: give --a, --a-from or --tflops")
        return costs.flops_per_s
    return shape.layers * shape.projection_flops(1) * tokens / costs.projections.projections_s(tokens)


def projections_s(shape: Shape, costs: Costs, tokens: float) -> float:
    """t_proj,1 of all layers at T. Raises `NotMeasured`."""
    return shape.layers * shape.projection_flops(1) * tokens / flops_per_s(shape, costs, tokens)


def threshold(shape: Shape, costs: Costs, ranks: int) -> tuple[float | None, str]:
    """The T from which p ranks are faster, or why there is none; by measured times, only inside of their range."""
    link = all_reduce(costs)
    if ranks == 1:
        return None, "one rank"
    if link is None or (costs.flops_per_s is None and costs.projections is None):
        return None, "not known: it needs a and τ_AR"
    if isinstance(link, Fabric) and costs.flops_per_s is not None:
        tokens = break_even_tokens(shape, link, ranks=ranks, flops_per_s=costs.flops_per_s)
        return tokens, "" if tokens is not None else "never: the bandwidth eats what the split saves"
    if costs.measured and ranks not in costs.measured:
        return None, f"not known: no nccl-tests of {ranks} ranks"
    knots = _knots(shape, costs, ranks)
    if not knots:
        return None, "the measured ranges of T do not overlap"

    def saved_s(tokens: float) -> float:
        """(1 − 1/p)·t_proj,1 − 2L·τ_AR."""
        payload = tokens * shape.hidden * shape.activation_bytes
        if ranks in costs.measured:  # a knot that is a measured size may have been rounded out of the range
            times = costs.measured[ranks].times
            payload = min(max(payload, times[0][0]), times[-1][0])
        saved = (1 - 1 / ranks) * projections_s(shape, costs, tokens)
        return saved - collectives_per_step(shape.layers) * link.all_reduce_s(payload, ranks)

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
        per_token = shape.hidden * shape.activation_bytes
        series.append([size / per_token for size, _ in costs.measured[ranks].times])
    low, high = max(one[0] for one in series), min(one[-1] for one in series)
    inside = {tokens for one in series for tokens in one if low <= tokens <= high}
    return sorted(inside)
