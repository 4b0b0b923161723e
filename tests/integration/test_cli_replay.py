"""`loadgen replay` from end to end, in virtual time and over real HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loadgen.cli import main  # noqa: F401 - imported before anything is timed
from traces.read import read_trace
from traces.trace import BlockHashes, Trace
from traces.write import write_trace

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
S = 1_000_000_000
VIRTUAL = ["--target", "virtual:llama8b-80gb", "--quiet", "--warmup", "2s"]


def poisson(n: int, *, rate: float, tokens: int = 80) -> Trace:
    """Requests of two shared blocks of 32 tokens and an end of their own."""
    rng = np.random.default_rng(5)
    at = np.concatenate(([0], np.cumsum(rng.exponential(S / rate, size=n - 1)).astype(np.int64)))
    shared = np.repeat(rng.integers(0, 8, size=n // 2), 2)
    ids = np.stack([shared, 100 + np.arange(n) // 2], axis=1)
    return Trace(
        at_ns=at,
        input_tokens=np.full(n, tokens),
        output_tokens=rng.integers(2, 6, size=n),
        line=np.arange(n) + 1,
        outcome=np.zeros(n),
        hashes=BlockHashes(ids=ids.ravel(), starts=np.arange(n + 1) * 2, block_tokens=tokens * 2 // 5),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_trace(poisson(1200, rate=10.0), tmp_path / "t.parquet", "parquet")
    return tmp_path / "t.parquet"


def requests_of(directory: Path) -> pd.DataFrame:
    (path,) = directory.glob("runs/main/*/requests.parquet")
    return pd.read_parquet(path)


def test_a_replay_sends_every_request_at_its_own_instant_with_its_own_lengths(loadgen: Any, file: Path) -> None:
    done = loadgen("replay", str(file), *VIRTUAL, "--out", "r", "--slo", "e2e<=5s", "--json")
    told, trace = json.loads(done.stdout), read_trace(file)[0]
    sent = requests_of(file.parent / "r")
    assert sent["scheduled_ns"].tolist() == trace.at_ns.tolist()
    assert sent["input_tokens_planned"].tolist() == trace.input_tokens.tolist()
    assert sent["output_tokens_planned"].tolist() == trace.output_tokens.tolist()
    # the first two seconds are the warm-up, all that follows is measured
    assert told["verdict"]["cohort"] == int((trace.at_ns >= 2 * S).sum())
    assert told["replay"]["prefix"]["cached"] == pytest.approx(told["replay"]["prefix"]["allowed"], abs=0.02)
    assert ", as recorded; in the window" in told["replay"]["origin"]
    shown = loadgen("show", "r").stdout
    assert f"schedule sha256 {told['replay']['schedule_sha256']}" in shown
    assert f"of input tokens to be cached; {told['replay']['prefix']['cached']:.2%} were" in shown


def test_the_same_trace_gives_the_same_hashes_and_another_seed_other_content(loadgen: Any, file: Path) -> None:
    hashes = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        told = json.loads(loadgen("replay", str(file), *VIRTUAL, "--out", name, "--seed", seed, "--json").stdout)
        hashes.append((told["replay"]["schedule_sha256"], told["replay"]["workload_sha256"]))
    assert hashes[0] == hashes[1]
    assert hashes[0][0] == hashes[2][0]
    assert hashes[0][1] != hashes[2][1]


def test_a_window_is_measured_with_the_trace_around_it_as_warm_up_and_tail(loadgen: Any, file: Path) -> None:
    told = json.loads(
        loadgen("replay", str(file), *VIRTUAL, "--window", "20s..80s", "--speed", "2", "--out", "r", "--json").stdout
    )
    trace, sent = read_trace(file)[0], requests_of(file.parent / "r")
    inside = (trace.at_ns >= 20 * S) & (trace.at_ns < 80 * S)
    assert told["verdict"]["cohort"] == int(inside.sum())
    assert told["window"]["window_ns"] == 30 * S
    # the warm-up of 2 s is 4 s of the trace, twice as fast
    first = int(np.searchsorted(trace.at_ns, 16 * S))
    expected = np.rint((trace.at_ns[first:] - 16 * S) / 2)
    assert np.abs(sent["scheduled_ns"].to_numpy() - expected[: len(sent)]).max() <= 1
    assert "time scaled by 1/2" in told["replay"]["origin"]
    assert told["verdict"]["rate"] == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize(("method", "rate", "name"), [("thin", "5", "thinned to"), ("superpose", "25", "3 rotated")])
def test_a_rate_is_reached_by_a_named_transform(loadgen: Any, file: Path, method: str, rate: str, name: str) -> None:
    asked = ["--rate", rate, "--rate-method", method]
    told = json.loads(loadgen("replay", str(file), *VIRTUAL, *asked, "--out", "r", "--json").stdout)
    assert name in told["replay"]["origin"]
    assert "dispersion" in told["replay"]["origin"]
    assert told["verdict"]["realised_rate"] == pytest.approx(float(rate), rel=0.15)


def test_ties_are_spread_only_when_asked(loadgen: Any, file: Path, tmp_path: Path) -> None:
    rows = "".join(f"{second},8,2\n" for second in range(120) for _ in range(5))
    (tmp_path / "coarse.csv").write_text("t,i,o\n" + rows)
    asked = ["--map", "timestamp=t,input=i,output=o", "--unit", "s", *VIRTUAL]
    loadgen("replay", "coarse.csv", *asked, "--out", "a")
    loadgen("replay", "coarse.csv", *asked, "--out", "b", "--jitter-within-tick")
    assert requests_of(tmp_path / "a")["scheduled_ns"].nunique() == 120
    assert requests_of(tmp_path / "b")["scheduled_ns"].nunique() == 600


def test_exit_codes_are_those_of_run(loadgen: Any, file: Path) -> None:
    loadgen("replay", str(file), *VIRTUAL, "--slo", "e2e<=10s", "--out", "a", code=0)
    loadgen("replay", str(file), *VIRTUAL, "--slo", "ttft<=1ms", "--out", "b", code=1)
    loadgen(
        "replay", str(file), *VIRTUAL, "--slo", "e2e<=10s", "--window", "20s..30s", "--out", "c", code=4
    )  # too few requests


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rate", "5", "--speed", "2"], "--rate and --speed exclude each other"),
        (["--rate-method", "thin"], "pass --rate"),
        (["--rate", "2..8"], "a replay has one rate"),
        (["--rate", "50", "--rate-method", "thin"], "thinning cannot raise the rate"),
        (["--window", "5m..6m"], "no request between 300 s and 360 s"),
        (["--window", "60s"], "is not a window of a trace"),
        (["--sessions", "dependent"], "no request of this part of the trace follows another"),
        (["--share-content"], "needs cache = keep"),
        (["--warmup", "10m"], "leaves nothing of a replay"),
        (["--format", "azure"], "t.parquet"),
        (["--speed", "0"], "--speed"),
        (["--max-model-len", "20"], "over_long"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(loadgen: Any, file: Path, more: list[str], says: str) -> None:
    done = loadgen("replay", str(file), *VIRTUAL, *more, "--out", "r", code=2)
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_requests_beyond_the_targets_context_are_named_before_anything_is_sent(loadgen: Any, tmp_path: Path) -> None:
    write_trace(poisson(50, rate=5.0, tokens=40_000), tmp_path / "long.parquet", "parquet")
    done = loadgen("replay", "long.parquet", *VIRTUAL, code=2)
    assert "takes 32768: pass --max-model-len 32768 --on-invalid drop" in done.stderr


@pytest.mark.slow
@pytest.mark.realtime
@pytest.mark.usefixtures("unhurried")
def test_over_http_turns_wait_for_answers_and_prefixes_are_found_again(loadgen: Any, file: Path) -> None:
    profile = file.with_name("told.toml")
    shipped = Path(__file__).parents[2] / "loadgen" / "emulator" / "profiles" / "llama8b-80gb.toml"
    profile.write_text(shipped.read_text().replace("[server]", "[server]\nenable_prompt_tokens_details = true"))
    http = ["--target", f"emulator:{profile}", "--quiet", "--window", "10s..40s", "--warmup", "2s"]
    told = json.loads(loadgen("replay", str(file), *http, "--out", "h", "--json").stdout)
    assert told["replay"]["prefix"]["cached"] == pytest.approx(told["replay"]["prefix"]["allowed"], abs=0.02)
    virtual = json.loads(loadgen("replay", str(file), *VIRTUAL, "--window", "10s..40s", "--out", "v", "--json").stdout)
    assert virtual["replay"]["schedule_sha256"] == told["replay"]["schedule_sha256"]
    assert virtual["replay"]["workload_sha256"] == told["replay"]["workload_sha256"]

    waits = ["--sessions", "dependent", "--warmup", "0s", "--min-requests", "5", "--target", f"emulator:{profile}"]
    done = loadgen("replay", str(SAMPLES / "turns.csv"), *waits, "--speed", "20", "--quiet", "--out", "d")
    assert "SEMI-OPEN" in done.stdout
    assert "blocked: " in done.stdout
    assert "in all" in done.stdout


def test_a_replayed_window_counts_its_silence(loadgen: Any, tmp_path: Path) -> None:
    rows = [*range(30), *(60 + i / 10 for i in range(30)), *range(131, 200)]
    (tmp_path / "gap.csv").write_text("t,i,o\n" + "".join(f"{at},100,10\n" for at in rows))
    options = ["--map", "timestamp=t,input=i,output=o", "--unit", "s", "--window", "30s..130s", "--warmup", "0s"]
    options += ["--target", "virtual:fcfs-fast", "--min-requests", "10", "--json"]
    told = json.loads(loadgen("replay", "gap.csv", *options).stdout)
    assert told["verdict"]["cohort"] == 30
    assert told["verdict"]["realised_rate"] == pytest.approx(0.3)
    assert told["verdict"]["sent_rate"] == pytest.approx(0.3)
    assert told["verdict"]["rate"] == pytest.approx(0.3)
    assert "30 requests, rate 0.3000/s over 100.000 s" in told["replay"]["origin"]
