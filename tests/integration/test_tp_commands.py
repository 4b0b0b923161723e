"""`loadgen tp` from files to lines, and what is no such file."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RunResult

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from kineto_traces import Maker, decoder

Loadgen = Callable[..., RunResult]
CONFIG = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
          "num_key_value_heads": 4, "vocab_size": 32000, "torch_dtype": "bfloat16"}  # fmt: skip
TOPO = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "".join(
    f"GPU{i}\t" + "\t".join("X" if i == j else "SYS" for j in range(4)) + "\n" for i in range(4)
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "topo.txt").write_text(TOPO)
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(decoder().text()))
    alone = Maker(ranks=1)
    for step in range(3):
        at = 10_000.0 + 1000 * step
        alone.event("gpu_user_annotation", "execute_context_0(0)_generation_16(16)", at - 5, 900)
        for call in range(4):
            alone.gemm(at + 100 * call, 80, 16, 256, 64)
    (tmp_path / "alone.json").write_bytes(alone.text())
    return tmp_path


def test_a_profile_is_compared_with_the_model(loadgen: Loadgen, files: Path) -> None:
    said = loadgen("tp", "profile", "rank0.json.gz", "--config", "config.json").stdout
    assert said.startswith("The model applies: 5 all-reduces a step, 2L = 4; payload 2048 B = T·H·e_a at T = 16.")
    assert "3 by device annotations execute_…, T = 16" in said
    other = loadgen("tp", "profile", "rank0.json.gz", "--config", "config.json", "--act-dtype", "float32").stdout
    assert other.startswith("Stop applying the model: payload 2048 B, T·H·e_a = 16·64·4 = 4096 B")


def test_times_of_one_rank_go_from_a_profile_to_the_diagnosis(loadgen: Loadgen, files: Path) -> None:
    written = loadgen("tp", "profile", "alone.json", "--config", "config.json", "--json").stdout
    (files / "times.json").write_text(written)
    document = json.loads(written)
    assert (document["kind"], document["format"]) == ("tp-profile", 1)
    ((tokens, seconds),) = document["token_times"]["pairs"]
    assert (tokens, seconds) == (16.0, pytest.approx(320e-6))
    asked = ("tp", "diagnose", "--tp", "4", "--config", "config.json", "--profile", "rank0.json.gz")
    said = loadgen(*asked, "--a-from", "times.json").stdout.splitlines()
    assert said[0].startswith("No checked link explains it; not checked: path, microbenchmark, load")
    assert "projections take 1.00 times t_proj,1/p" in said[5]
    slow = loadgen(*asked, "--a-from", "times.json", "--topo", "topo.txt").stdout.splitlines()
    assert slow[0].startswith("The first link that explains it is path: 6 pairs SYS")
    assert [line.split(": ")[1] for line in slow[1:]] == ["holds", "explains", *["not reached"] * 4]
    told = json.loads(loadgen(*asked, "--json").stdout)
    assert [link["state"] for link in told["links"]] == [
        "holds",
        "not checked",
        "not checked",
        "holds",
        "holds",
        "not checked",
    ]


def test_a_stored_run_tells_the_tokens_of_its_steps(loadgen: Loadgen, files: Path) -> None:
    loadgen(
        "run",
        "--target",
        "virtual:fcfs",
        "--rate",
        "4",
        "--cohort",
        "200",
        "--slo",
        "e2e<=60s",
        "--out",
        "mine",
        code=None,
    )
    said = loadgen("tp", "diagnose", "--tp", "2", "--results", "mine").stdout
    assert "6 load: holds: at 4/s, T not measured" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"hello", "not JSON"),
        (gzip.compress(decoder(steps=40).text())[:1500], "damaged or ends early"),
        (decoder().text()[:-500], "ends inside the trace"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}]}', "neither collectives nor GEMMs"),
        (b'{"a": "\x1b[31m"', "not valid JSON"),
    ],
)
def test_what_is_no_profile_gets_one_line(loadgen: Loadgen, files: Path, content: bytes, said: str) -> None:
    (files / "bad").write_bytes(content)
    done = loadgen("tp", "profile", "bad", code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("loadgen: bad: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("option", ["--config", "--topo", "--nccl-log", "--nccl", "--profile", "--a-from", "--results"])
def test_an_input_of_another_form_gets_one_line(loadgen: Loadgen, files: Path, option: str) -> None:
    (files / "bad").write_text("hello")
    for name in ("bad", "missing"):
        done = loadgen("tp", "diagnose", "--tp", "2", option, name, code=2)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert name in done.stderr
