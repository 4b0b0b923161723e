"""`loadgen tp plan` and `loadgen tp nccl` from files and options to tables, JSON and one line for what is wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RunResult

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from kineto_traces import Maker, decoder
from nccl_outputs import ITERATIONS, ROOT, WRONG

Loadgen = Callable[..., RunResult]
CONFIG = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
          "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "dtype": "bfloat16"}  # fmt: skip
FLAGS = ("--hidden", "8192", "--layers", "80", "--heads", "64", "--kv-heads", "8", "--mlp", "28672")
TIMES = ("--tflops", "120", "--alpha", "8us", "--bandwidth", "150")
NO_PROFILE = {
    "verdict": "", "comparison": {"reasons": [], "facts": [], "unknown": []},
    "profile": {"rank": None, "ranks": None, "on_device": True, "events": 0, "steps": [], "steps_by": "",
                "collectives": [], "gemms": [], "unshaped_gemms": 0, "unshaped_gemm_s": 0},
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tp4.txt").write_text(ROOT)
    (tmp_path / "iterations.txt").write_text(ITERATIONS)
    (tmp_path / "wrong.txt").write_text(WRONG)
    return tmp_path


def test_a_plan_says_what_it_is_and_predicts_by_tokens_and_ranks(loadgen: Loadgen, files: Path) -> None:
    said = loadgen("tp", "plan", "--config", "config.json", *TIMES, "--tokens", "1,32", "--memory", "80").stdout
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[0] == "This is a screening model, not a measurement."
    assert "Speed-up against one GPU (screening model, not a measurement)" in " ".join(lines)
    assert "32 524288 9.664 45.1 54.76 36.51" in lines
    assert "32 83.89 125.8 146.8" in lines
    assert "32 1.82 3.25 5.35" in lines
    assert "TP=4 is faster than one GPU at T > 1.543" in lines
    assert "2 70.55 1.34 2.00 73.89 73.60 -0.29 NO" in lines
    assert "1 141.10 2.68 2.00 145.79 73.60 -72.19 NO" in lines
    assert "It does not fit on one GPU: speed-ups are against a GPU of the same speed with more memory" in lines
    assert "4 35.28 0.67 2.00 37.95 73.60 35.65 yes" in lines
    assert "Stop applying it when - p does not divide heads, KV heads or MLP width, or p > KV heads" in " ".join(lines)


def test_flags_give_the_same_plan_as_a_config(loadgen: Loadgen, files: Path) -> None:
    by_flags = json.loads(loadgen("tp", "plan", *FLAGS, "--vocab", "128256", *TIMES, "--json").stdout)
    by_config = json.loads(loadgen("tp", "plan", "--config", "config.json", *TIMES, "--json").stdout)
    assert by_flags["label"] == "screening model, not a measurement"
    for key in ("splits", "loads", "parameters", "stop_when"):
        assert by_flags[key] == by_config[key]
    assert by_config["splits"][1]["threshold_tokens"] == pytest.approx(1.54324036)


def test_types_of_activations_and_bits_of_weights_are_apart(loadgen: Loadgen, files: Path) -> None:
    asked = ("tp", "plan", "--config", "config.json", "--json")
    plain, other = (
        json.loads(loadgen(*asked, *more).stdout) for more in ((), ("--act-dtype", "float32", "--weight-bits", "4"))
    )
    assert other["loads"][0]["payload_bytes"] == 2 * plain["loads"][0]["payload_bytes"]
    weights = [one["splits"][1]["memory"]["weight_bytes"] for one in (plain, other)]
    assert 0.25 < weights[1] / weights[0] < 0.3
    assert plain["kv_bytes_per_token"] * 2 == other["kv_bytes_per_token"]
    narrow = json.loads(loadgen(*asked, "--kv-dtype", "float8_e4m3fn").stdout)
    assert narrow["kv_bytes_per_token"] * 2 == plain["kv_bytes_per_token"]


def test_nccl_tests_are_shown_and_take_the_place_of_the_model(loadgen: Loadgen, files: Path) -> None:
    said = [" ".join(line.split()) for line in loadgen("tp", "nccl", "iterations.txt").stdout.splitlines()]
    assert said[0] == "iterations.txt: 4 ranks, 3 rows, 4096 to 1048576 B"
    assert "1048576 40.00 42.40 1.5 40.09 +0.2" in said
    assert said[-1].startswith("p = 4: α_p = 9.98 µs, B_p = 52.2 GB/s")
    told = json.loads(loadgen("tp", "nccl", "tp4.txt", "--in-place", "--json").stdout)
    assert told["fits"][0]["measured"]["times"][0] == [4096, pytest.approx(9.5e-6)]
    planned = ("tp", "plan", "--config", "config.json", "--a", "1ms", "--nccl", "tp4.txt", "--tokens", "8,4096")
    lines = loadgen(*planned, "--tp", "2,4").stdout.splitlines()
    assert any(
        "8     –  1.90" in line for line in lines
    )  # 8 ms / (2 ms + 160·(12 µs + (131072 − 65536) B at the slope))
    assert "No speed-up: p = 2: no nccl-tests of 2 ranks, only of 4" in lines
    assert (
        "No speed-up at T = 4096: p = 4: S = 67108864 B is outside of what nccl-tests measured, 4096 to 1048576 B"
        in lines
    )
    (files / "cut.txt").write_text(ROOT.partition("# Out of")[0])
    cut = loadgen(*planned, "--tp", "4", "--nccl", "cut.txt").stdout
    assert "warning: p = 4: the closing lines of nccl-tests are missing: the run, or the copy, ended early" in cut
    assert "warning: " not in "".join(lines)
    diagnosed = loadgen("tp", "diagnose", "--tp", "4", "--nccl", "tp4.txt").stdout
    assert "3 microbenchmark: not checked: give --config FILE" in diagnosed


def test_wrong_results_are_flagged_where_they_are_read_and_refused_where_they_would_count(
    loadgen: Loadgen, files: Path
) -> None:
    said = loadgen("tp", "nccl", "wrong.txt", "tp4.txt").stdout
    assert "WRONG RESULTS in wrong.txt: 50 elements" in said
    assert "warning: wrong.txt: line 3: NCCL WARN socketProgress: Connection closed" in said
    assert "p = 4: α_p" in said
    assert "\x1b" not in said
    for asked in (("plan", "--config", "config.json"), ("diagnose", "--tp", "2")):
        done = loadgen("tp", *asked, "--nccl", "wrong.txt", code=2)
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert "--nccl wrong.txt: line 8: 50 wrong results" in done.stderr


def test_a_p_that_does_not_divide_has_its_line_beside_the_others(loadgen: Loadgen, files: Path) -> None:
    said = loadgen("tp", "plan", *FLAGS, *TIMES, "--tp", "3,4,16").stdout.splitlines()
    assert "TP=3: model does not apply: 3 ranks do not divide heads = 64" in said
    assert "TP=16: model does not apply, memory alone is counted: p = 16 > 8 KV heads: each is kept on 2 ranks" in said


def test_tables_fit_a_narrow_terminal(loadgen: Loadgen, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for asked in (("plan", "--config", "config.json", *TIMES, "--memory", "80"), ("nccl", "iterations.txt")):
        lines = re.sub(r"\x1b\[[0-9;]*m", "", loadgen("tp", *asked).stdout).splitlines()
        assert max(map(len, lines)) <= 60
        assert any("GB/s" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --config FILE, or also --hidden, --layers, --heads, --mlp"),
        (("--config", "missing.json"), "--config missing.json: No such file or directory"),
        (("--config", "tp4.txt"), "--config tp4.txt: not valid JSON"),
        (("--config", "list.json"), "--config list.json: not a JSON object"),
        (("--config", "few.json"), "--config few.json: intermediate_size is missing"),
        (("--config", "experts.json"),
         "--config experts.json: model does not apply: a mixture of experts (num_local_experts = 8)"),
        ((*FLAGS, "--tp", "3"), "--tp 3: model does not apply: 3 ranks do not divide heads = 64"),
        ((*FLAGS, "--tp", "2;4"), "--tp 2;4: write whole numbers from 1 with commas"),
        ((*FLAGS, "--tokens", "0"), "--tokens 0: write whole numbers from 1"),
        ((*FLAGS, "--kv-heads", "7"), "64 heads of 128 cannot share 7 KV heads"),
        ((*FLAGS, "--alpha", "8us"), "--alpha and --bandwidth go together"),
        ((*FLAGS, "--alpha", "8", "--bandwidth", "1"), "--alpha: '8' is not a duration"),
        ((*FLAGS, "--nccl", "tp4.txt", "--alpha", "8us", "--bandwidth", "1"), "--nccl excludes --alpha"),
        ((*FLAGS, "--a", "1us", "--tflops", "1"), "--a, --a-from and --tflops exclude one another"),
        ((*FLAGS, "--a", "0s"), "--a 0s: not between 1e-15 and 1e+06 seconds"),
        ((*FLAGS, "--a-from", "config.json"), "--a-from config.json: pass what loadgen tp profile --json printed"),
        ((*FLAGS, "--act-dtype", "int3"), "--act-dtype: 'int3' is not an element type"),
        ((*FLAGS, "--nccl", "config.json"), "--nccl config.json: JSON (of nccl-tests -J, perhaps): pass the text that"),
        ((*FLAGS, "--nccl", "few.txt"), "--nccl few.txt: no rows of sizes and times in it"),
        ((*FLAGS, "--tflops", "inf"), "--tflops inf: above 1e+12; check the number and its unit"),
        ((*FLAGS, "--memory", "1e300"), "--memory 1e+300: above 1e+12"),
        ((*FLAGS, "--hidden", str(10**30)), f"--hidden {10**30}: no dimension of a model"),
        ((*FLAGS, "--in-place"), "--in-place chooses between the times of --nccl"),
        ((*FLAGS, "--a-from", "none.json"), "--a-from none.json: no projection times in it"),
        ((*FLAGS, "--a-from", "empty.json"), "--a-from empty.json: token_times are not positive pairs"),
        ((*FLAGS, "--a-from", "falling.json"), "--a-from falling.json: token_times are not positive pairs"),
        ((*FLAGS, "--a-from", "zero.json"), "--a-from zero.json: token_times are not positive pairs"),
        ((*FLAGS, "--nccl", "mixed.txt"), "--nccl mixed.txt: runs of 2 and 4 ranks: pass each number of ranks as its"),
        ((*FLAGS, "--nccl", "failed.txt"), "--nccl failed.txt: line 17: box: Test NCCL failure"),
    ],
)  # fmt: skip
def test_input_that_cannot_be_used_gets_one_line(
    loadgen: Loadgen, files: Path, options: tuple[str, ...], said: str
) -> None:
    for name, pairs in (("none", None), ("empty", []), ("falling", [[2, 1], [1, 1]]), ("zero", [[1, 0]])):
        times = None if pairs is None else {"pairs": pairs}
        (files / f"{name}.json").write_text(json.dumps(NO_PROFILE | {"token_times": times}))
    (files / "few.txt").write_text("nothing")
    (files / "list.json").write_text("[]")
    (files / "few.json").write_text(json.dumps({key: CONFIG[key] for key in CONFIG if key != "intermediate_size"}))
    (files / "experts.json").write_text(json.dumps(CONFIG | {"num_local_experts": 8}))
    two = "\n".join(line for line in WRONG.replace(" 25", " 0").splitlines())
    (files / "mixed.txt").write_text(ROOT + two)
    (files / "failed.txt").write_text(ROOT.partition("# Out of")[0] + "\nbox: Test NCCL failure common.cu:1 'x'\n")
    done = loadgen("tp", "plan", *options, code=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert done.stderr.startswith("loadgen: ")
    assert said in done.stderr


def test_times_of_a_profile_are_taken_by_tokens(loadgen: Loadgen, files: Path) -> None:
    alone = Maker(ranks=1)
    for step, tokens in enumerate((16, 64)):
        at = 10_000.0 + 10_000 * step
        alone.event("gpu_user_annotation", f"execute_context_0(0)_generation_{tokens}({tokens})", at - 5, 9_000)
        for call in range(4):
            alone.gemm(at + 2_000 * call, 1_000 + 500 * step, tokens, 256, 64)
    (files / "alone.json").write_bytes(alone.text())
    (files / "times.json").write_text(loadgen("tp", "profile", "alone.json", "--json").stdout)
    asked = ("tp", "plan", *FLAGS, "--alpha", "8us", "--bandwidth", "150", "--a-from", "times.json")
    told = json.loads(loadgen(*asked, "--tokens", "8,16,40", "--json").stdout)
    # 4 ms at T = 16, 6 ms at T = 64, and a straight line in between
    assert [load["projections_s"] for load in told["loads"]] == [None, pytest.approx(4e-3), pytest.approx(5e-3)]
    assert "outside of what the TP=1 profile holds, 16 to 64" in told["loads"][0]["by_ranks"][0]["why"][0]


def test_a_mixture_of_experts_ends_the_model_for_profile_and_diagnose_too(loadgen: Loadgen, files: Path) -> None:
    (files / "experts.json").write_text(json.dumps(CONFIG | {"num_local_experts": 8}))
    (files / "rank0.json").write_bytes(decoder().text())
    why = "a mixture of experts (num_local_experts = 8)"
    said = loadgen("tp", "profile", "rank0.json", "--config", "experts.json").stdout
    assert said.startswith(f"Stop applying the model: {why}")
    said = loadgen("tp", "diagnose", "--tp", "4", "--config", "experts.json").stdout
    assert said.startswith(f"The first link that explains it is shapes: {why}")
