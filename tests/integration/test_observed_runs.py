"""Runs that are watched: what is stored and judged of the target's own word, against the emulator over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pandas as pd
import pytest
from anyio.from_thread import start_blocking_portal

from loadgen.target.emulated import launch
from tests.fakes.pages import TEXT, paged
from tests.fakes.server import in_thread

pytestmark = [pytest.mark.realtime, pytest.mark.usefixtures("unhurried")]

SHORT = ("--input", "64", "--output", "4", "--slo", "e2e<=10s", "--window", "1s", "--warmup", "200ms",
         "--min-requests", "20", "--rate", "80", "--scrape-interval", "200ms", "--quiet")  # fmt: skip
Loadgen = Callable[..., Any]


@pytest.fixture(scope="module")
def batching() -> Iterator[str]:
    """The continuous-batching emulator, whose prefix cache is real."""

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(launch("llama8b-80gb")) as emulated:
        yield emulated.url


def run_json(out: Path) -> dict[str, Any]:
    (path,) = out.glob("runs/main/*/run.json")
    return dict(json.loads(path.read_text()))


def test_a_run_keeps_what_the_target_told_and_agrees_with_it(loadgen: Loadgen, batching: str, tmp_path: Path) -> None:
    told = json.loads(loadgen("run", "--target", batching, *SHORT, "--json", "--out", "r").stdout)
    run = run_json(tmp_path / "r")
    server = run["server"]
    metrics = server["metrics"]
    assert metrics == told["verdict"]["server"]
    assert told["verdict"]["cohort"] <= metrics["e2e_s"]["n"] <= metrics["ttft_s"]["n"] <= run["requests"]
    assert metrics["prefix_hits"]["n"] == 0
    assert metrics["client_cpu_s"]["n"] > 0
    findings = {finding["check"]: finding for finding in told["verdict"]["findings"]}
    assert "TTFT" in findings["server_means"]["text"]
    assert any("GPU memory bandwidth" in text for text in told["not_measured"])
    (path,) = (tmp_path / "r").glob("runs/main/*/target.parquet")
    series = pd.read_parquet(path)
    assert list(series.columns) == ["at_ns", "source", "metric", "labels", "value"]
    own = series[series["metric"] == "vllm:num_requests_running"]
    assert (own["at_ns"] < 0).any()  # before the first request
    assert len(own) >= 4
    assert set(series["source"]) == {batching, "client"}


def test_other_clients_of_the_server_make_the_run_invalid(loadgen: Loadgen, batching: str, tmp_path: Path) -> None:
    over = threading.Event()

    def other_client() -> None:
        with httpx.Client() as client:
            while not over.wait(0.05):
                client.post(f"{batching}/v1/completions", json={"model": "emulator", "prompt": [1], "max_tokens": 1})

    thread = threading.Thread(target=other_client, daemon=True)
    thread.start()
    try:
        loadgen("run", "--target", batching, *SHORT, "--out", "r", code=4)
    finally:
        over.set()
        thread.join()
    verdict = run_json(tmp_path / "r")["verdict"]
    found = {finding["check"]: finding for finding in verdict["findings"]}
    assert verdict["status"] == "INVALID"
    assert (found["other_clients"]["blame"], found["other_clients"]["severity"]) == ("target", "block")
    assert found["other_clients"]["value"] > 0.05


def test_a_salt_used_before_breaks_the_cold_claim(
    loadgen: Loadgen, batching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one_name = SimpleNamespace(token_hex=lambda n: "47" * n)
    monkeypatch.setattr("loadgen.experiment.preparation.secrets", of_one_name)
    seeded = ("run", "--target", batching, *SHORT, "--seed", "77")
    loadgen(*seeded, "--out", "first")
    again = loadgen(*seeded, "--out", "second", code=4)

    assert "prompt tokens were found in the prefix cache, prefixes shared within the run explain 0" in again.stdout
    facts = run_json(tmp_path / "second")["facts"]["target"]
    assert facts["cold_claim_broken"]


@pytest.mark.slow
def test_prefixes_shared_within_a_run_are_explained(loadgen: Loadgen, batching: str, tmp_path: Path) -> None:
    loadgen("run", "--target", batching, *SHORT, "--seed", "5", "--shared-prefix", "48", "--prefix-groups", "3",
            "--out", "r")  # fmt: skip
    server = run_json(tmp_path / "r")["server"]["metrics"]
    assert server["prefix_hits"]["n"] > 0.5 * server["prefix_queries"]["n"]


@pytest.mark.slow
def test_nothing_is_read_where_the_user_wants_none(loadgen: Loadgen, batching: str, tmp_path: Path) -> None:
    loadgen("run", "--target", batching, *SHORT, "--seed", "6", "--scrape-interval", "off", "--cache", "keep",
                   "--out", "r")  # fmt: skip
    assert run_json(tmp_path / "r")["server"] is None
    assert not list((tmp_path / "r").glob("runs/main/*/target.parquet"))


@pytest.mark.slow
def test_a_further_source_that_refuses_is_named_and_disturbs_nothing(
    loadgen: Loadgen, batching: str, tmp_path: Path
) -> None:
    with in_thread(paged({"/metrics": (401, TEXT, b"")})) as locked:
        url = f"gpu={locked}/metrics"
        told = loadgen("run", "--target", batching, *SHORT, "--seed", "8", "--metrics-url", url, "--out", "r", "--json")
    assert json.loads(told.stdout)["not_measured"][0] == "gpu: answers 401 (a key is wanted)"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--metrics-url", "http://h/metrics"), "is not of the form NAME=URL"),
        (("--metrics-url", "gpu=http://u:secret@h/m"), "holds a user or a password"),
        (("--metrics-url", "client=http://h/m"), "none client"),
        (("--scrape-interval", "10ms"), "is not between 200ms and 60s"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(loadgen: Loadgen, options: tuple[str, ...], said: str) -> None:
    told = loadgen("run", "--target", "virtual", "--rate", "2", *options, code=2)
    assert said in told.stderr
    assert "secret" not in told.stderr
