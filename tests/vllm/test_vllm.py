"""What loadgen claims about vLLM, on a real one: run by `make test-vllm`."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pandas as pd
import pytest

from loadgen.common.errors import TargetUnfit
from loadgen.common.members import JsonMembers
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.bodies import Bodies
from loadgen.plan.lengths import Lengths, parse_law
from loadgen.plan.plan import make_plan
from loadgen.plan.types import NS, PlanRequest, RequestFormat, Window
from loadgen.target.identity import changed
from loadgen.target.target import open_target
from loadgen.target.tokenizer import token_count
from tests.vllm.vllm import serving

pytestmark = pytest.mark.vllm

MEANS_S, MEANS_SHARE = 0.010, 0.05  # client against server: what lies between two processes
LIGHT = ("--input", "64", "--output", "16", "--slo", "e2e<=30s", "--min-requests", "10", "--warmup", "1s")
Loadgen = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that tells of every request; a running one where LOADGEN_VLLM names it."""
    if url := os.environ.get("LOADGEN_VLLM"):
        yield url
        return
    told = ("--enable-prompt-tokens-details", "--enable-per-request-metrics", "--enable-server-load-tracking")
    with serving(tmp_path_factory.mktemp("vllm"), *told) as started:
        yield started.url


def run_of(out: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Manifest and requests of the only run in a results directory."""
    (manifest,) = out.glob("runs/main/*/run.json")
    return json.loads(manifest.read_text()), pd.read_parquet(manifest.parent / "requests.parquet")


def findings(run: Mapping[str, Any]) -> dict[str, str]:
    return {f["check"]: f["severity"] for f in run["verdict"]["findings"]}


def test_a_sweep_finds_where_a_server_stops_keeping_its_promise(loadgen: Loadgen, tmp_path: Path) -> None:
    asked = ("--rate", "1..16", "--width", "100%", "--runs", "2", "--confirm", "1", "--window", "25s", "--warmup", "5s",
             "--input", "16", "--output", "16", "--slo", "ttft<=2s", "--slo", "tpot<=250ms", "--min-requests", "20",
             "--seed", "3", "--out", "s", "--json")  # fmt: skip
    with serving(tmp_path, model="small") as server:
        answer = json.loads(loadgen("sweep", "--target", server.url, *asked).stdout)
    assert answer["outcome"] == "FOUND"
    assert 1 <= answer["bracket"][0] < answer["bracket"][1] <= 16
    experiment = json.loads((tmp_path / "s" / "experiment.json").read_text())
    identity = experiment["target"]["identity"]
    assert identity["0.version"].startswith("0.")
    assert int(identity["0.max_model_len"]) > 0
    assert "0.scheduler.max_num_seqs" in identity
    assert "0.cache.block_size" in identity
    assert identity["0.parallel.tensor_parallel_size"] == "1"
    assert experiment["target"]["environment"]["0.gpu"].startswith("not measured")


def test_client_means_agree_with_the_server_s_sums(server: str, loadgen: Loadgen, tmp_path: Path) -> None:
    arguments = ("--rate", "2", "--window", "15s", "--out", "r")
    loadgen("run", "--target", server, *LIGHT, *arguments, code=None)
    run, requests = run_of(tmp_path / "r")
    ok = requests[requests["outcome"] == "ok"]
    others = len(requests) - len(ok)  # under way when the load stopped
    assert others < 0.1 * len(ok)
    for side, stamp in (("ttft_s", "first_token_ns"), ("e2e_s", "last_token_ns")):
        theirs = run["server"]["metrics"][side]
        assert abs(theirs["n"] - len(ok)) <= others
        ours = float((ok[stamp] - ok["sent_ns"]).mean()) / NS
        assert abs(ours - theirs["mean"]) <= max(MEANS_S, MEANS_SHARE * theirs["mean"]), (side, ours, theirs)
    assert "server_means" in findings(run)


def test_every_request_s_own_times_and_tokens_are_recorded(server: str, loadgen: Loadgen, tmp_path: Path) -> None:
    loadgen("run", "--target", server, *LIGHT, "--rate", "3", "--window", "6s", "--out", "r", code=None)
    _, requests = run_of(tmp_path / "r")
    ok = requests[requests["outcome"] == "ok"]
    assert (ok["input_tokens"] == 64).all()
    assert (ok["output_tokens"] == 16).all()
    assert (ok["finish_reason"] == "length").all()
    if (ok["server_queue_ns"] < 0).all():
        pytest.skip("the server was started without --enable-per-request-metrics")
    assert (ok["cached_tokens"] == 0).all()
    inside_ns = ok["server_queue_ns"] + ok["server_prefill_ns"] + ok["server_decode_ns"]
    assert (inside_ns > 0).all()
    assert (inside_ns <= ok["ended_ns"] - ok["sent_ns"]).all()


def test_a_cold_claim_that_is_none_is_invalid(
    server: str, loadgen: Loadgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # prompts of four blocks as vLLM has them on processors: 128 tokens
    asked = ("run", "--target", server, *LIGHT, "--input", "512", "--rate", "3", "--window", "8s", "--seed", "77")
    monkeypatch.setattr("loadgen.experiment.runner.salt", lambda *_: "0123456789abcdef")
    loadgen(*asked, "--out", "first", code=None)
    assert "cold_claim" not in findings(run_of(tmp_path / "first")[0])
    done = loadgen(*asked, "--out", "again", code=4)
    run, _ = run_of(tmp_path / "again")
    assert run["verdict"]["status"] == "INVALID"
    assert findings(run)["cold_claim"] == "block"
    assert "prefix cache" in done.stdout


def test_what_does_not_fit_is_refused_before_anything_is_sent(server: str, loadgen: Loadgen, tmp_path: Path) -> None:
    done = loadgen("run", "--target", server, "--rate", "2", "--input", "4000", "--output", "200", "--out", "r", code=2)
    assert "4200 tokens (input and output) do not fit into the 4096" in done.stderr
    assert not (tmp_path / "r").exists()


async def test_a_reset_with_requests_running_is_not_believed(server: str) -> None:
    async with open_target(server) as target:
        await target.wait_idle()
        body = {"model": target.model, "prompt": [1000] * 64, "max_tokens": 2000, "min_tokens": 2000,
                "ignore_eos": True}  # fmt: skip
        sent = JsonMembers.of(**body)
        async with anyio.create_task_group() as group:

            async def generate() -> None:
                await target.https[0].post("/v1/completions", sent, timeout_s=120)

            group.start_soon(generate)
            while (await target.wait_idle(0)).idle is True:  # noqa: ASYNC110 - the server is another process
                await anyio.sleep(0.02)
            with pytest.raises(TargetUnfit, match=r'"success":false'):
                await target.reset_cache(timeout_s=0.2)
            group.cancel_scope.cancel()
        await target.reset_cache(timeout_s=60)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_a_thousand_text_prompts_of_exact_lengths(server: str, endpoint: Any) -> None:
    async with open_target(server) as target:
        began_s = time.monotonic()
        form, told = await target.exact_text(RequestFormat(endpoint=endpoint, prompt="text"), JsonMembers())
        assert form.text is not None, told
        assert time.monotonic() - began_s < 60  # some hundred small requests, once an experiment
        plan = make_plan(
            PlanRequest(rate=8.0, root_seed=9, window=Window(warmup_ns=0, window_ns=160 * NS, tail_ns=0)),
            arrivals=Arrivals(),
            lengths=Lengths(input=parse_law("uniform:64..1024"), output=parse_law("1"), shared_prefix=40),
            format=form,
        )
        bodies = Bodies(plan, JsonMembers())
        counts = []
        for index in range(1000):
            body = json.loads(bodies.encode(index))
            content = {key: body[key] for key in ("prompt", "messages") if key in body}
            counts.append(await token_count(target.https[0], target.model, JsonMembers.of(**content)))
        assert np.array_equal(counts, plan.input_tokens[:1000])


def test_text_prompts_are_as_long_in_the_answers_too(server: str, loadgen: Loadgen, tmp_path: Path) -> None:
    arguments = ("--endpoint", "chat", "--rate", "3", "--window", "6s", "--out", "r")
    loadgen("run", "--target", server, *LIGHT, *arguments, code=None)
    run, requests = run_of(tmp_path / "r")
    ok = requests[requests["outcome"] == "ok"]
    assert len(ok) > 10
    assert (ok["input_tokens"] == ok["input_tokens_planned"]).all()
    assert "input_lengths" not in findings(run)


# --- servers that have to misbehave ----------------------------------------------------------------------------------


def test_a_queue_and_its_limit_are_seen(loadgen: Loadgen, tmp_path: Path) -> None:
    with serving(tmp_path, "--max-num-seqs", "4", "--max-num-queued-reqs", "8") as server:
        arguments = ("--input", "64", "--output", "128", "--rate", "60", "--window", "6s", "--warmup", "1s")
        loadgen("run", "--target", server.url, *arguments, "--slo", "ttft<=1s", "--out", "r", "--timeout", "20s",
                "--min-requests", "10", code=None)  # fmt: skip
    run, requests = run_of(tmp_path / "r")
    assert (requests["outcome"] == "rejected").sum() > 10
    rejected = requests[requests["outcome"] == "rejected"]
    assert (rejected["http_status"] == 503).all()
    # the engine may find itself full after the API server has answered 200 already
    late = requests[requests["outcome"] == "stream_error"]
    assert late["error"].str.contains("busy").all()
    metrics = run["server"]["metrics"]
    assert metrics["running"]["max"] == 4
    assert metrics["waiting"]["max"] >= 4  # the limit of 8 holds for those running and waiting together, about
    assert run["verdict"]["status"] != "PASS"


def test_preemptions_are_seen(loadgen: Loadgen, tmp_path: Path) -> None:
    settings = ("--max-num-seqs", "32", "--num-gpu-blocks-override", "64", "--block-size", "32")
    with serving(tmp_path, *settings, max_model_len=1024) as server:
        arguments = ("--input", "200", "--output", "200", "--closed", "24", "--window", "8s", "--warmup", "1s")
        loadgen("run", "--target", server.url, *arguments, "--slo", "e2e<=60s", "--out", "r", "--timeout", "60s",
                "--min-requests", "10", code=None)  # fmt: skip
    run, _ = run_of(tmp_path / "r")
    assert run["server"]["metrics"]["preemptions"]["n"] > 0
    assert "cold_claim" not in findings(run)  # a preempted request may find its own tokens again


def amid(action: Callable[[], None], url: str, loadgen: Loadgen, out: Path) -> None:
    """A run with long answers, and the action once some of its own (not of the target's warm-up) are under way."""

    def running() -> float:
        try:
            text = httpx.get(f"{url}/metrics", trust_env=False, timeout=5).text
        except httpx.HTTPError:
            return 0.0
        rows = [row for row in text.splitlines() if row.startswith("vllm:num_requests_running{")]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    def act() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (list(out.glob("runs/main/*")) and running() >= 1):
            time.sleep(0.1)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    loadgen("run", "--target", url, "--input", "64", "--output", "500", "--rate", "2", "--window", "10s", "--warmup",
            "1s", "--slo", "e2e<=60s", "--min-requests", "10", "--out", str(out), code=None)  # fmt: skip
    thread.join()


def test_sigterm_mid_stream_is_a_failure_of_the_server_and_a_restart_is_noticed(
    loadgen: Loadgen, tmp_path: Path
) -> None:
    with serving(tmp_path) as server:

        async def identity() -> dict[str, str]:
            async with open_target(server.url) as target:
                return await target.identity()

        before = anyio.run(identity)
        amid(server.terminate, server.url, loadgen, tmp_path / "r")
        server.stop()
        server.start()
        assert "the server restarted" in changed(before, anyio.run(identity))
    run, requests = run_of(tmp_path / "r")
    aborted = requests[requests["error"] == "finish_reason abort"]
    assert len(aborted) > 0  # [DONE] came with them, and a 200
    assert (aborted["outcome"] == "stream_error").all()
    assert (aborted["http_status"] == 200).all()
    assert run["verdict"]["status"] == "FAIL"
    assert "target_died" in findings(run)


def test_an_engine_that_dies_mid_stream_is_a_failure_although_done_came(loadgen: Loadgen, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        amid(server.kill_engine, server.url, loadgen, tmp_path / "r")
    run, requests = run_of(tmp_path / "r")
    failed = requests[(requests["outcome"] == "stream_error") & (requests["http_status"] == 200)]
    assert len(failed) > 0
    assert not (requests["outcome"] == "ok").all()
    assert run["verdict"]["status"] == "FAIL"
    assert "target_died" in findings(run)
