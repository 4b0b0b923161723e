"""What `loadgen tp profile` costs on a large trace: MB of text per second of CPU, and peak memory.

    python benchmarks/profile_read.py [MB …]   (default: 250 and 1000)

Writes traces of that size, in the layout of Kineto (8 events a GEMM: operators, a launch, kernels, an all-reduce), and
reads each in a process of its own, plain and as gzip.
"""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

EVENT = """  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      {args}
    }}
  }},
"""
HEAD = """{
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "GPU"}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4},
    "traceEvents": [
"""
TAIL = """  {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1.0}
  ],"traceName": "rank0.json" }"""
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CALLS, TOKENS, HIDDEN = 64, 256, 4096


def event(cat: str, name: str, ts: float, dur: float, args: str, *, pid: int = 4711, tid: int = 1) -> str:
    return EVENT.format(cat=cat, name=name, ts=ts, dur=dur, args=args, pid=pid, tid=tid)


def step(number: int) -> str:
    """One step of 64 GEMMs and all-reduces, annotated as vLLM does."""
    base = 5_232_426_000_000.0 + 30_000 * number
    named = f"execute_context_0(0)_generation_{TOKENS}({TOKENS})"
    made = [event("gpu_user_annotation", named, base, 29_000, '"External id": 1', pid=0, tid=7)]
    shapes = (
        f'"Input Dims": [[{TOKENS}, {HIDDEN}], [{HIDDEN}, {HIDDEN}]], '
        '"Input type": ["c10::BFloat16", "c10::BFloat16"], '
        f'"Input Strides": [[{HIDDEN}, 1], [1, {HIDDEN}]], "Concrete Inputs": ["", ""], "Ev Idx": 1'
    )
    for call in range(CALLS):
        ident = (number * CALLS + call) * 10 + 2
        at = base + 400 * call
        for name in ("aten::linear", "aten::matmul", "aten::mm"):
            made.append(event("cpu_op", name, at - 9, 9, f'"External id": {ident}, "Record function id": 0, {shapes}'))
            ident += 1
        for name, took, extra in (
            ("nvjet_tst_128x64_64x6_2x1_v_bz_TNT", 90, ""),
            ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int> >", 5, ""),
            (NCCL, 40, f', "Collective name": "allreduce", "In msg nelems": {TOKENS * HIDDEN}, "Group size": 4, '
                       '"dtype": "BFloat16"'),
        ):  # fmt: skip
            ident += 1
            made.append(
                event("cuda_runtime", "cudaLaunchKernel", at, 4, f'"External id": {ident}, "correlation": {ident}')
            )
            args = (
                f'"External id": {ident - 2 if took == 90 else ident}, "queued": 0, "device": 0, "context": 1, '
                '"stream": 7, '
                f'"correlation": {ident}, "registers per thread": 128, "shared memory": 0, "blocks per SM": 1.9, '
                f'"grid": [2, 132, 1], "block": [384, 1, 1], "est. achieved occupancy %": 18{extra}'
            )
            made.append(event("kernel", name, at + 100 + ident % 7, took, args, pid=0, tid=7))
    return "".join(made)


def write(path: Path, size: int) -> int:
    number = 0
    with path.open("w", encoding="utf-8") as out:
        out.write(HEAD)
        while out.tell() < size:
            out.write("".join(step(number + more) for more in range(20)))
            number += 20
        out.write(TAIL)
    return number


def measure(path: Path) -> None:
    """In a process of its own: read it, print CPU seconds, memory and what was found."""
    from loadgen.cli.tpprofile import read_profile

    before = resource.getrusage(resource.RUSAGE_SELF)
    found = read_profile(str(path), None)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(cpu_s, before.ru_maxrss / 1024, after.ru_maxrss / 1024, len(found.steps), found.events)


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
        return
    inside = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with tempfile.TemporaryDirectory() as folder:
        for size in [int(text) for text in sys.argv[1:]] or [250, 1000]:
            plain, packed = Path(folder) / "rank0.json", Path(folder) / "rank0.json.gz"
            steps = write(plain, size * 1_000_000)
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as out:
                while piece := source.read(1 << 20):
                    out.write(piece)
            mb = os.path.getsize(plain) / 1e6  # noqa: PTH202
            for path in (plain, packed):
                asked = [sys.executable, __file__, "--measure", str(path)]
                done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | inside)
                cpu_s, idle, peak, seen, events = map(float, done.stdout.split())
                if seen != steps:
                    raise SystemExit(f"{seen:.0f} of {steps} steps were found")
                print(
                    f"{mb:6.0f} MB {path.suffix:5} {events:>11,.0f} events {mb / cpu_s:5.0f} MB/s of CPU",
                    f"({cpu_s:.1f} s), peak {peak:.0f} MiB, of which {idle:.0f} before",
                    flush=True,
                )


if __name__ == "__main__":
    main()
