"""Two vLLM servers that share the machine, started, compared and stopped by loadgen: run by `make test-vllm`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import loadgen as library
from tests.fakes.cli import unhurried
from tests.vllm.vllm import OURS, ROOT, THEIRS, on, served

pytestmark = pytest.mark.vllm

SETTINGS = """
rate = "1,2"
slo = ["e2e<=60s"]
input = "32"
output = "16"
window = "12s"
warmup = "2s"
runs = 2
min_requests = 5
seed = 11
"""
LOADED = ("PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "VLLM_HOST_IP",
          "VLLM_SERVER_DEV_MODE", "VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")  # fmt: skip


def servers() -> set[int]:
    """Processes of any vLLM: an engine calls itself VLLM::EngineCore."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"VLLM::" in words or b"/bin/vllm" in words:
            found.add(int(path.parent.name))
    return found


@pytest.fixture
def none_left() -> Iterator[None]:
    before = servers()
    yield
    left = servers() - before
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Two variants that differ in how many sequences a step takes; one server is up at a time."""
    tables = ""
    for seats in (2, 16):
        command, variables = served("{port}", "--max-num-seqs", str(seats))
        launch = shlex.join(["taskset", "-c", ",".join(map(str, THEIRS)), *command]).replace("'{port}'", "{port}")
        env = "".join(f"{name} = {variables[name]!r}\n" for name in LOADED)
        tables += f"[[variant]]\nname = 'seqs{seats}'\nlaunch = '''{launch}'''\nready_timeout = '240s'\n"
        tables += f"[variant.env]\n{env}"
    file = tmp_path / "seqs.toml"
    file.write_text(SETTINGS + tables)
    return file


def command(*arguments: str) -> list[str]:
    return [*unhurried(), "compare", *arguments]


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_two_launched_servers_are_compared_and_stopped(scenario: Path, tmp_path: Path, none_left: None) -> None:
    with on(OURS):
        done = subprocess.run(
            command("--scenario", str(scenario), "--out", "r"),
            cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compared = library.load_compared(tmp_path / "r")
    answer = compared.answer
    assert answer.outcome == "COMPLETE"
    assert not answer.lost
    assert {(run.variant, run.rate, run.replicate) for run in answer.runs} == {
        (name, rate, replicate) for name in ("seqs2", "seqs16") for rate in (1.0, 2.0) for replicate in (0, 1)
    }
    assert answer.pairs_sha256
    for name in ("seqs2", "seqs16"):
        log = (tmp_path / "r" / "variants" / f"{name}.log").read_text()
        assert "Application startup complete" in log
        identity = compared.variants[name].manifest.target.identity
        assert identity["0.scheduler.max_num_seqs"] == name.removeprefix("seqs")
    assert "the same schedule and bodies (checked" in done.stdout


def test_ctrl_c_amid_the_load_leaves_no_server(scenario: Path, tmp_path: Path, none_left: None) -> None:
    with (
        on(OURS),
        subprocess.Popen(
            command("--scenario", str(scenario), "--out", "r"),
            cwd=tmp_path, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if "pair 1 of 2: " in line:
                break
        assert servers()
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=60)
    assert process.returncode == 5, rest
    assert "loadgen compare --resume r" in out + rest
