"""Replays of real traces through the sender: instants, order, lengths, and the cache hits that block ids imply."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.cohort import nearest_rank
from tests.fakes.cli import unhurried
from traces.read import read_trace

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces"
AZURE, MOONCAKE = TRACES / "azure_2023_conv.csv", TRACES / "mooncake_conversation.first2000.jsonl"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces beside the repository"),
]
# 8 ms a request: busy for 40 % of the time at 48 requests/s
QUEUE = """kind = "fcfs"
description = "8 ms a request, one at a time"
simulated = true
[service]
times_ms = [8.0]
shares = [1.0]
"""
S = 1_000_000_000


def replay(directory: Path, *arguments: object) -> tuple[dict[str, Any], pd.DataFrame]:
    """The command in a process of its own, ahead of others where that is allowed: the machine may be busy."""
    first = ["chrt", "-f", "20"] if shutil.which("chrt") and os.geteuid() == 0 else []
    command = [*first, *unhurried(), "replay", *map(str, arguments)]
    done = subprocess.run(
        [*command, "--quiet", "--json", "--out", "r"], cwd=directory, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    (path,) = directory.glob("r/runs/main/*/requests.parquet")
    return json.loads(done.stdout), pd.read_parquet(path)


def cache_profile(directory: Path) -> Path:
    """A server whose cache forgets nothing and whose prefill takes next to no time, and that says what was cached."""
    text = (ROOT / "loadgen" / "emulator" / "profiles" / "llama8b-80gb.toml").read_text()
    for key, value in (
        ("max_model_len = 32768", "max_model_len = 131072\nenable_prompt_tokens_details = true\nstream_interval = 16"),
        ("effective_tflops = 187.0", "effective_tflops = 187000.0"),
        ("effective_gb_per_s = 1630.0", "effective_gb_per_s = 163000.0"),
        ("block_size = 16", "block_size = 16\nnum_gpu_blocks_override = 2000000"),
        ("max_num_batched_tokens = 8192", "max_num_batched_tokens = 131072"),
    ):
        assert text.count(key) == 1
        text = text.replace(key, value)
    (directory / "cache.toml").write_text(text)
    return directory / "cache.toml"


def test_ten_minutes_of_azure_leave_in_order_with_their_lengths_and_on_time(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(QUEUE)
    asked = ["--window", "..10m", "--speed", "10", "--warmup", "1s", "--target", "emulator:queue.toml"]
    told, sent = replay(tmp_path, AZURE, *asked)
    trace, _ = read_trace(AZURE)
    n = int(np.searchsorted(trace.at_ns, 600 * S))
    assert n == 2867
    sent = sent.sort_values("index").head(n)
    assert np.abs(sent["scheduled_ns"].to_numpy() - np.rint(trace.at_ns[:n] / 10)).max() <= 1
    assert sent["input_tokens_planned"].tolist() == trace.input_tokens[:n].tolist()
    assert sent["input_tokens"].tolist() == trace.input_tokens[:n].tolist()
    assert sent["output_tokens"].tolist() == trace.output_tokens[:n].tolist()
    assert sent["released_ns"].is_monotonic_increasing
    late_s = np.sort((sent["sent_ns"] - sent["scheduled_ns"]).to_numpy()) / S
    assert nearest_rank(late_s, 0.99) < 0.005
    assert len(told["replay"]["schedule_sha256"]) == 64


def allowed_share(trace: Any, n: int) -> float:
    """Told apart from the code under test: the longest run of leading ids that were all seen before."""
    seen: set[int] = set()
    hits = 0
    for row in range(n):
        ids = trace.hashes.of(row).tolist()
        lead = next((i for i, one in enumerate(ids) if one not in seen), len(ids))
        hits += min(lead * 512, int(trace.input_tokens[row]))
        seen.update(ids)
    return hits / int(trace.input_tokens[:n].sum())


def test_mooncake_reaches_the_hit_rate_of_its_block_ids_in_virtual_time(tmp_path: Path) -> None:
    told, _ = replay(tmp_path, MOONCAKE, "--target", f"virtual:{cache_profile(tmp_path)}", "--warmup", "0s")
    trace, _ = read_trace(MOONCAKE)
    assert told["replay"]["prefix"]["allowed"] == pytest.approx(allowed_share(trace, 2000), abs=1e-12)
    assert told["replay"]["prefix"]["cached"] == pytest.approx(allowed_share(trace, 2000), abs=0.002)


def test_mooncake_reaches_the_hit_rate_of_its_block_ids_over_http(tmp_path: Path) -> None:
    profile = cache_profile(tmp_path)
    asked = ["--window", "..200s", "--speed", "4", "--warmup", "0s", "--target", f"emulator:{profile}"]
    told, sent = replay(tmp_path, MOONCAKE, *asked)
    trace, _ = read_trace(MOONCAKE)
    answered = sent[sent["outcome"] == "ok"]
    n = int(answered["index"].max()) + 1
    assert len(answered) > 590
    cached = answered["cached_tokens"].sum() / answered["input_tokens"].sum()
    assert cached == pytest.approx(allowed_share(trace, n), abs=0.005)
    assert told["replay"]["prefix"]["cached"] == pytest.approx(cached)
