"""Traces in the form that Kineto writes them, made event by event."""

from __future__ import annotations

from typing import Any

import orjson

AR = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CUSTOM = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals)"


class Maker:
    """A rank's trace on one device; `at` is in µs, ids count up."""

    def __init__(self, *, ranks: int = 4, devices: int = 1) -> None:
        self.events: list[dict[str, Any]] = []
        self.header = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": i, "name": "GPU"} for i in range(devices)],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": ranks},
        }
        self._id = 0

    def event(self, cat: str, name: str, at: float, took: float, tid: int = 7, **args: Any) -> None:
        pid = 0 if cat in ("kernel", "gpu_user_annotation") else 4711
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": took, "args": args}
        )

    def gemm(self, at: float, took: float, m: int, n: int, k: int, op: str = "aten::mm") -> None:
        self._id += 1
        dims = [[m, k], [k, n]] if op != "aten::addmm" else [[n], [m, k], [k, n]]
        types = ["c10::BFloat16"] * len(dims)
        self.event(
            "cpu_op", op, at / 10, 1, tid=1, **{"External id": self._id, "Input Dims": dims, "Input type": types}
        )
        self.kernel("nvjet_tst_128x64_64x6", at, took, external=self._id, host=at / 10)

    def kernel(
        self, name: str, at: float, took: float, *, stream: int = 7, external: int = 0, host: float = 0, **args: Any
    ) -> None:
        number = len(self.events)
        self.event("cuda_runtime", "cudaLaunchKernel", host or at / 10, 1, tid=1, correlation=number)
        given = {"stream": stream, "correlation": number, **({"External id": external} if external else {}), **args}
        self.event("kernel", name, at, took, tid=stream, **given)

    def all_reduce(
        self, at: float, took: float, elements: int, *, stream: int = 7, name: str = AR, ranks: int = 4
    ) -> None:
        told = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
                "Group size": ranks, "dtype": "BFloat16"}  # fmt: skip
        self.kernel(name, at, took, stream=stream, **told)

    def wrapped(self, at: float, took: float, name: str, op: str, dims: list[list[int]]) -> None:
        """A collective without Kineto's own keys, inside an operator with shapes."""
        self._id += 1
        types = ["c10::BFloat16" if one else "Scalar" for one in dims]
        self.event(
            "cpu_op", op, at / 10, 1, tid=1, **{"External id": self._id, "Input Dims": dims, "Input type": types}
        )
        self.kernel(name, at, took, external=self._id)

    def text(self, *, compact: bool = False) -> bytes:
        whole = {**self.header, "traceEvents": self.events, "traceName": "rank0.json"}
        return orjson.dumps(whole, option=0 if compact else orjson.OPT_INDENT_2)


def decoder(
    *, steps: int = 3, layers: int = 2, tokens: int = 16, hidden: int = 64, annotation: str = "gpu_user_annotation"
) -> Maker:
    """Steps of 2L (GEMM 20 µs, all-reduce 10 µs) and the embedding's all-reduce, annotated as vLLM does, 1 ms apart."""
    made = Maker()
    for step in range(steps):
        at = 10_000.0 + 1000 * step
        named = f"execute_context_0(0)_generation_{tokens}({tokens})"
        scale = 1 if annotation == "gpu_user_annotation" else 10
        made.event(annotation, named, (at - 5) / scale, 800 / scale)
        made.all_reduce(at, 10, tokens * hidden)
        for call in range(2 * layers):
            made.gemm(at + 20 + 40 * call, 20, tokens, hidden, hidden)
            made.all_reduce(at + 40 + 40 * call, 10, tokens * hidden)
    return made
