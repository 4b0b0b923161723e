"""Tensor-parallel accounting of a Megatron-style dense decoder (method, sections 9 and 10).

Symbols, as in the method: T tokens in a step, H hidden, I the MLP's width, H_KV the KV width (KV heads × head size),
L layers, e_a bytes per *activation* element (independent of the weights' bits), p ranks. A multiply-add is 2 FLOPs. The
screening model of an all-reduce stands in until measured collective times replace it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "AllReduce",
    "Fabric",
    "Shape",
    "attention_products",
    "break_even_tokens",
    "collectives_per_step",
    "split_refusal",
    "step_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A dense decoder's dimensions; `heads` and `kv_heads` are query and KV heads, KV width is derived from them."""

    hidden: int  # H
    mlp: int  # I
    layers: int  # L
    heads: int
    kv_heads: int
    head_size: int
    vocab: int = 0  # 0: embedding and output matrices are left out
    activation_bytes: int = 2  # e_a
    mlp_matrices: int = 3  # gate, up and down; 2 for an MLP without a gate

    @property
    def query_width(self) -> int:
        """Elements of one layer's queries per token: H, unless heads have a size of their own."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """H_KV: elements of one layer's keys (and again of its values) per token."""
        return self.kv_heads * self.head_size

    def attention_flops(self, tokens: int) -> int:
        """F_attn = 4T(H·H_Q + H·H_KV): the four attention projections of one layer; H_Q is H in most models."""
        return 4 * tokens * self.hidden * (self.query_width + self.kv_width)

    def mlp_flops(self, tokens: int) -> int:
        """F_mlp = 6THI: gate, up and down projection of one layer; 4THI without a gate."""
        return 2 * self.mlp_matrices * tokens * self.hidden * self.mlp

    def projection_flops(self, tokens: int) -> int:
        """F_proj = F_attn + F_mlp of one layer."""
        return self.attention_flops(tokens) + self.mlp_flops(tokens)

    @property
    def parameters(self) -> int:
        """Weights of all layers, of the embedding and of the output matrix; norms are left out (< 0.01 %)."""
        per_layer = self.projection_flops(1) // 2
        return self.layers * per_layer + 2 * self.vocab * self.hidden

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.layers * self.kv_width * element_bytes

    def payload_bytes(self, tokens: int) -> int:
        """S = T·H·e_a: payload of one all-reduce."""
        return tokens * self.hidden * self.activation_bytes

    def traffic_bytes(self, tokens: int, ranks: int) -> float:
        """V_step = 4L·(p−1)/p·T·H·e_a: per-rank bus traffic of a step (two all-reduces a layer)."""
        return collectives_per_step(self.layers) * all_reduce_traffic_bytes(self.payload_bytes(tokens), ranks)


class AllReduce(Protocol):
    """What tells the time of an all-reduce."""

    def all_reduce_s(self, payload_bytes: float, ranks: int) -> float:
        """τ_AR(S, p), seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What links the ranks: start-up time of an all-reduce, and bus bandwidth as nccl-tests counts it."""

    alpha_s: float
    bus_bytes_per_s: float

    def all_reduce_s(self, payload_bytes: float, ranks: int) -> float:
        """τ_AR(S, p) ≈ α_p + 2(p−1)S/(p·B_p); nothing for one rank."""
        if ranks == 1:
            return 0.0
        return self.alpha_s + all_reduce_traffic_bytes(payload_bytes, ranks) / self.bus_bytes_per_s


def collectives_per_step(layers: int) -> int:
    """All-reduces of one step: 2L, after attention and after the MLP."""
    return 2 * layers


def all_reduce_traffic_bytes(payload_bytes: float, ranks: int) -> float:
    """V_AR = 2(p−1)/p·S: what each rank sends for one all-reduce."""
    return 2 * (ranks - 1) * payload_bytes / ranks


def step_s(
    shape: Shape,
    fabric: AllReduce,
    *,
    tokens: int,
    ranks: int,
    flops_per_s: float,
    other_s: float = 0.0,
) -> float:
    """t_p ≈ t_proj,1/p + 2L·τ_AR + t_other,p, seconds; `flops_per_s` is what one rank's projections reach."""
    projections_s = shape.layers * shape.projection_flops(tokens) / flops_per_s
    reduce_s = fabric.all_reduce_s(shape.payload_bytes(tokens), ranks)
    return projections_s / ranks + collectives_per_step(shape.layers) * reduce_s + other_s


def break_even_tokens(shape: Shape, fabric: Fabric, *, ranks: int, flops_per_s: float) -> float | None:
    """The T above which p ranks beat one: T > 2L·α_p / [a(1 − 1/p) − 4L·(p−1)/p·H·e_a/B_p], a = t_proj,1/T.

    `None` where there is no such T: the denominator is not above 0 (or there is but one rank).
    """
    per_token_s = step_s(shape, fabric, tokens=1, ranks=1, flops_per_s=flops_per_s)
    saved_s = per_token_s * (1 - 1 / ranks) - shape.traffic_bytes(1, ranks) / fabric.bus_bytes_per_s
    if saved_s <= 0:
        return None
    return collectives_per_step(shape.layers) * fabric.alpha_s / saved_s


def split_refusal(shape: Shape, ranks: int) -> str:
    """Why the model does not hold for p ranks, in words, or "": p must divide heads, KV heads and I."""
    for what, size in (("heads", shape.heads), ("kv_heads", shape.kv_heads), ("mlp", shape.mlp)):
        if size % ranks:
            return f"{ranks} ranks do not divide {what} = {size}"
    return ""


def attention_products(input_tokens: int, output_tokens: int) -> tuple[int, int]:
    """Query-key products of one head and layer, (prefill, decode): A(L, O)/h = L(L+1)/2 + [(O−1)L + O(O−1)/2]."""
    prefill = input_tokens * (input_tokens + 1) // 2
    decode = (output_tokens - 1) * input_tokens + output_tokens * (output_tokens - 1) // 2
    return prefill, decode
