"""What operators and kernels of a PyTorch trace are, by their names.

Names are those of NCCL and RCCL (`ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, `ncclKernel_…`, `ncclSymkDevKernel_…`),
of vLLM's, SGLang's and FlashInfer's own all-reduces, of PyTorch's symmetric memory, and of gloo.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

__all__ = [
    "ELEMENT_BYTES",
    "Named",
    "collective_kernel",
    "collective_kind",
    "gemm_shape",
    "is_gemm_kernel",
    "is_gemm_op",
    "step_tokens",
]

ELEMENT_BYTES: Final = {
    "bfloat16": 2, "bf16": 2, "half": 2, "float16": 2, "f16": 2, "float": 4, "float32": 4, "f32": 4, "double": 8,
    "char": 1, "byte": 1, "int": 4, "long": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
"""Bytes of an element, by the lower-case name of its type without `c10::`."""
_KINDS: Final = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "broadcast": "broadcast", "sendrecv": "send_recv", "gather": "all_gather", "barrier": "barrier",
}  # fmt: skip
_NCCL: Final = re.compile(r"nccl(?:Symk?)?(?:Dev)?Kernel_([A-Za-z]+)")
_NCCL_TYPE: Final = re.compile(r"_(bf16|f16|f32|f64|f8e4m3|f8e5m2|half|float|double)(?:_|\b)")
_OWN: Final = re.compile(
    r"cross_device_reduce_[12]stage|(?:one|two)_?shot_(?:all_?reduce|push)|all_?reduce_(?:one|two)_?shot"
    r"|multimem_all_reduce|custom_all_?reduce|allreduce_prototype|quick_?reduce",
    re.IGNORECASE,
)
_OWN_TYPE: Final = re.compile(r"<\s*(?:__nv_|__|c10::)?(bfloat16|half|float|BFloat16|Half)\s*,\s*(?:\(int\))?(\d+)")
_FUSED: Final = re.compile(r"all_?reduce\w*(?:fusion|norm)|fused\w*all_?reduce", re.IGNORECASE)
_EXPERTS: Final = re.compile(r"deep_?ep::|moe\w*all_?to_?all|internode::|intranode::", re.IGNORECASE)
_GEMM_OP: Final = re.compile(r"(?:^|::)(?:mm|addmm|_scaled_mm|linear|matmul|mm_out|_int_mm)$|gemm|scaled_mm")
_GEMM_KERNEL: Final = re.compile(
    r"gemm|nvjet|cutlass.*(?:Kernel|tensorop)|xmma|Cijk_|marlin|s16816|splitKreduce|matmul|gemv", re.IGNORECASE
)
_TOKENS: Final = re.compile(r"execute_context_\d+\((\d+)\)_generation_\d+\((\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a kernel's name says of a collective; `element` and `ranks` are "" and 0 where it does not."""

    kind: str  # all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv; unknown
    by: str  # nccl, custom, fused or gloo
    element: str = ""
    ranks: int = 0


def collective_kernel(name: str) -> Named | None:
    """What a device kernel of this name reduces or moves between ranks; `None` for a kernel that computes."""
    if (nccl := _NCCL.search(name)) is not None:
        element = _NCCL_TYPE.search(name)
        kind = _KINDS.get(nccl[1].lower(), "unknown")
        return Named(kind=kind, by="nccl", element="" if element is None else element[1])
    if _FUSED.search(name):
        return Named(kind="all_reduce", by="fused")
    if _OWN.search(name):
        typed = _OWN_TYPE.search(name)
        if typed is None:
            return Named(kind="all_reduce", by="custom")
        return Named(kind="all_reduce", by="custom", element=typed[1].lower(), ranks=int(typed[2]))
    if _EXPERTS.search(name):
        return Named(kind="all_to_all", by="custom")
    return None


def collective_kind(name: str) -> str:
    """The kind of a collective operator (`c10d::allreduce_`, `gloo:all_reduce`, `_allgather_base`), or ""."""
    plain = name.lower().replace("_", "")
    return next((kind for stem, kind in _KINDS.items() if stem in plain), "")


def is_gemm_op(name: str) -> bool:
    """Whether an operator multiplies a matrix of tokens by one of weights."""
    return _GEMM_OP.search(name) is not None


def is_gemm_kernel(name: str) -> bool:
    """Whether a device kernel seems to be one, by its name."""
    return _GEMM_KERNEL.search(name) is not None


def gemm_shape(name: str, dims: Sequence[tuple[int, ...]]) -> tuple[int, int, int] | None:
    """(rows, N, K) of a GEMM from the sizes of its operands; `None` where no two of them are factors."""
    matrices = [one for one in dims if len(one) >= 2 and min(one) > 0]
    for left, right in pairwise(matrices):
        rows, depth = prod(left[:-1]), left[-1]
        if len(right) != 2:
            continue
        if right[1] == depth and (name.endswith("linear") or right[0] != depth):
            return rows, right[0], depth
        if right[0] == depth:
            return rows, right[1], depth
    return None


def step_tokens(name: str) -> int | None:
    """Tokens of a step by vLLM's annotation of it, `execute_context_1(128)_generation_2(2)`; `None` by another name."""
    found = _TOKENS.match(name)
    return None if found is None else int(found[1]) + int(found[2])
