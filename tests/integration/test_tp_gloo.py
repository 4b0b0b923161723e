"""A trace that PyTorch itself writes: two processes on the CPU, gloo's all-reduce (the extra `torch`)."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.cli.tpprofile import read_profile

# another environment's Python, or this one
PYTHON = os.environ.get("LOADGEN_TORCH_PYTHON", sys.executable)
LAYERS, TOKENS, HIDDEN, STEPS = 3, 16, 64, 4
RANK = f"""
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

rank, port, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{{port}}", rank=rank, world_size=2)
weights = [torch.randn({HIDDEN}, {HIDDEN}, dtype=torch.bfloat16) for _ in range({2 * LAYERS})]
with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
    for step in range({STEPS}):
        with record_function(f"ProfilerStep#{{step}}"):
            x = torch.randn({TOKENS}, {HIDDEN}, dtype=torch.bfloat16)
            for weight in weights:
                x = torch.nn.functional.linear(x, weight)
                dist.all_reduce(x)
profiled.export_chrome_trace(out)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_trace_of_two_processes_is_read(tmp_path: Path) -> None:
    if subprocess.run([PYTHON, "-c", "import torch.distributed"], capture_output=True, check=False).returncode:
        pytest.skip("no torch: pip install -e '.[torch]', or name a Python that has it in LOADGEN_TORCH_PYTHON")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    ranks = [
        subprocess.Popen(
            [PYTHON, "-W", "ignore", "-c", RANK, str(rank), str(port), str(file)], stderr=subprocess.DEVNULL
        )
        for rank, file in enumerate(files)
    ]
    try:
        assert [one.wait(timeout=120) for one in ranks] == [0, 0]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    packed = tmp_path / "rank1.json.gz"
    with files[1].open("rb") as plain, gzip.open(packed, "wb") as out:
        shutil.copyfileobj(plain, out)
    for rank, file in enumerate((files[0], packed)):
        profile = read_profile(str(file), None)
        assert (profile.rank, profile.ranks, profile.on_device) == (rank, 2, False)
        assert [step.all_reduces for step in profile.steps] == [2 * LAYERS] * STEPS
        assert {(step.tokens, step.payload_bytes) for step in profile.steps} == {(TOKENS, TOKENS * HIDDEN * 2)}
        (reduces,) = profile.collectives
        assert (reduces.by, reduces.element, reduces.calls) == ("gloo", "bfloat16", 2 * LAYERS * STEPS)
        (gemm,) = profile.gemms
        assert (gemm.rows, gemm.columns, gemm.depth, gemm.calls) == (TOKENS, HIDDEN, HIDDEN, 2 * LAYERS * STEPS)
        for step in profile.steps:
            assert 0 < step.exposed_s <= step.collective_s < step.took_s  # the next GEMM waits for each all-reduce
            assert 0 < step.projection_s < step.took_s
