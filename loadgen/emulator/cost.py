"""What one engine step of a pretended server takes, and what its memory holds.

Theory of operation. A step that carries T tokens takes

    max(weights read once, T tokens' projections) + attention + 2L all-reduces of T·H·e_a bytes + fixed overhead

with projections, payload and all-reduce from `analysis.tp.cost` (method, section 9), each rank doing 1/p of the work.
Attention reads the keys and values of every context in the step, and a prompt's own products (method, section 10)
come on top as FLOPs (4H a product and layer: QKᵀ and PV, a multiply-add being 2).

Times are integers, picoseconds. With T fixed, a decode step is affine in the summed context, so a stretch of n steps in
which nothing else changes has the exact integer sum n·base + slope·(...): the engine may jump it, and lands on the same
picosecond as one that walks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis.tp.cost import Fabric, Shape, collectives_per_step

__all__ = ["Card", "StepCost", "kv_blocks", "weight_bytes"]

PS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One accelerator: what it holds, and the rates that real kernels reach, not the data sheet's."""

    memory_bytes: float
    usable_share: float  # of the memory, for weights, KV and workspace together
    runtime_bytes: float  # workspace, graphs and context: taken before the KV blocks
    flops_per_s: float
    memory_bytes_per_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class StepCost:
    """Step times in integer ps. `base_ps(T)` is remembered: an engine asks for the same few T again and again."""

    shape: Shape
    card: Card
    fabric: Fabric
    ranks: int
    weight_bits: int
    kv_element_bytes: int
    overhead_s: float  # scheduler, launch and sampling of one step
    context_ps: int = field(init=False)  # of one token of context read by one sequence
    product_ps: int = field(init=False)  # of one query-key product of every head and layer
    _base_ps: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shape, card = self.shape, self.card
        kv_bytes = shape.kv_bytes_per_token(self.kv_element_bytes) / self.ranks
        products_flops = 4 * shape.heads * shape.head_size * shape.layers / self.ranks
        self.context_ps = max(round(kv_bytes / card.memory_bytes_per_s * PS), 1)
        self.product_ps = round(products_flops / card.flops_per_s * PS)

    def base_ps(self, tokens: int) -> int:
        """A step of `tokens` tokens without its attention: what does not depend on the contexts."""
        known = self._base_ps.get(tokens)
        if known is None:
            known = self._base_ps[tokens] = round(self._base_s(tokens) * PS)
        return known

    def _base_s(self, tokens: int) -> float:
        read_s = weight_bytes(self.shape, self.weight_bits) / self.ranks / self.card.memory_bytes_per_s
        projections_s = self.shape.layers * self.shape.projection_flops(tokens) / self.card.flops_per_s / self.ranks
        reduce_s = self.fabric.all_reduce_s(self.shape.payload_bytes(tokens), self.ranks)
        return max(read_s, projections_s) + collectives_per_step(self.shape.layers) * reduce_s + self.overhead_s


def weight_bytes(shape: Shape, weight_bits: int) -> float:
    """Bytes of all weights, over all ranks."""
    return shape.parameters * weight_bits / 8


def kv_blocks(card: Card, shape: Shape, *, ranks: int, weight_bits: int, kv_element_bytes: int, block_size: int) -> int:
    """KV blocks that fit beside weights and workspace: M_rank = M_weight + M_KV + M_runtime ≤ M_usable.

    Not above 0 where they do not fit (method, section 9). Weights and KV shrink by p; the workspace does not.
    """
    free = card.memory_bytes * card.usable_share - card.runtime_bytes - weight_bytes(shape, weight_bits) / ranks
    return int(free // (block_size * shape.kv_bytes_per_token(kv_element_bytes) / ranks))
