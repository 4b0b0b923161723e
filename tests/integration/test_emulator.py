"""The embedded emulator as a process over real HTTP, held against a real vLLM's captures field by field."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.from_thread
import anyio.lowlevel
import httpx
import pytest

from loadgen.emulator.fcfs import FcfsModel
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.serve import main
from loadgen.emulator.service import prompt_uniform
from loadgen.errors import TargetUnreachable, UsageError
from loadgen.target.emulated import Emulated, launch
from loadgen.target.metrics import parse

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures" / "vllm_0.32.0"
captured = pytest.mark.skipif(not CAPTURES.exists(), reason="the captures are not on this machine")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Emulated, Path]]:
    truth = tmp_path_factory.mktemp("truth") / "truth.jsonl"
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(launch("fcfs-fast", truth_log=truth)) as emulated,
    ):
        yield emulated, truth


@pytest.fixture
def url(running: tuple[Emulated, Path]) -> str:
    return running[0].url


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "emulator", "prompt": [300, 301, 302], "max_tokens": 4, "ignore_eos": True, **more}


def events(text: str) -> list[Any]:
    """The data of each event, JSON but for [DONE]."""
    data = [line.split("data: ", 1)[1] for line in text.splitlines() if "data: " in line]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def shape(value: Any) -> Any:
    """Keys in their order, with the types of what they hold."""
    if isinstance(value, dict):
        return [(key, shape(member)) for key, member in value.items()]
    if isinstance(value, list):
        return [shape(member) for member in value[:1]]
    return type(value).__name__


@captured
@pytest.mark.parametrize(
    "name",
    [
        "comp_stream_max1",
        "comp_stream_plain",
        "comp_stream_ids_usage_cont",
        "comp_stream_return_token_ids",
        "chat_stream_max1",
        "chat_stream_plain",
        "chat_stream_usage_continuous",
    ],
)
def test_streams_have_vllms_fields(url: str, name: str) -> None:
    capture = (CAPTURES / f"{name}.txt").read_text()
    path = re.search(r"^# POST (\S+)", capture, re.MULTILINE)
    body = re.search(r"^# request body \(\d+ bytes\): (.*)$", capture, re.MULTILINE)
    assert path is not None
    assert body is not None
    request = {**json.loads(body[1]), "model": "emulator", "ignore_eos": True}
    answer = httpx.post(url + path[1], json=request)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    theirs, ours = events(capture[body.end() :]), events(answer.text)
    assert shape(ours[0]) == shape(theirs[0])
    assert [shape(event) for event in ours[-3:]] == [shape(event) for event in theirs[-3:]]
    assert len({json.dumps(shape(event)) for event in ours}) == len({json.dumps(shape(event)) for event in theirs})
    last_choice = [event for event in ours if event != "[DONE]" and event["choices"]][-1]
    assert last_choice["choices"][0]["finish_reason"] == "length"


@captured
def test_a_whole_answer_and_the_model_list_have_vllms_fields(url: str) -> None:
    def body(name: str) -> Any:
        return json.loads(re.findall(r"\{.*\}$", (CAPTURES / name).read_text(), re.MULTILINE)[-1])

    assert shape(httpx.post(url + "/v1/completions", json=completion()).json()) == shape(body("comp_nonstream.txt"))
    assert shape(httpx.get(url + "/v1/models").json()) == shape(body("dev1_models.txt"))


@captured
def test_metrics_are_vllms_names_and_types(url: str) -> None:
    def types(text: str) -> dict[str, str]:
        return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))

    theirs, ours = (
        types((CAPTURES / "metrics_after_overload_full.txt").read_text()),
        types(httpx.get(url + "/metrics").text),
    )
    assert {name: kind for name, kind in ours.items() if theirs.get(name) != kind} == {}
    assert {
        "vllm:num_requests_running",
        "vllm:e2e_request_latency_seconds",
        "process_start_time_seconds",
    } <= ours.keys()


def test_usage_counts_tokens_and_forced_lengths_are_kept(url: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = events(httpx.post(url + "/v1/completions", json=completion(stream=True, stream_options=options)).text)
    assert [event["usage"]["completion_tokens"] for event in seen[:-1]] == [1, 2, 3, 4, 4]
    assert seen[-2]["usage"] == {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}
    assert seen[-1] == "[DONE]"


def test_a_natural_stop_ends_with_an_empty_text_and_depends_on_the_prompt(url: str) -> None:
    body = {"model": "emulator", "prompt": "tell me", "max_tokens": 4000}
    first, second = (httpx.post(url + "/v1/completions", json=body).json() for _ in range(2))
    assert first["usage"] == second["usage"]
    assert first["choices"][0]["finish_reason"] == "stop"
    streamed = events(httpx.post(url + "/v1/completions", json={**body, "stream": True}).text)
    tokens = [event["choices"][0] for event in streamed[:-1]]
    assert len(tokens) == first["usage"]["completion_tokens"]
    assert (tokens[-1]["text"], tokens[-1]["finish_reason"]) == ("", "stop")
    long = httpx.post(url + "/v1/completions", json={**body, "min_tokens": 1000}).json()
    assert long["usage"]["completion_tokens"] == 1000


def test_the_other_routes(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/version").json() == {"version": "0.32.0+loadgen-emulator"}
        assert client.get("/load").json() == {"server_load": 0}
        assert client.post("/reset_prefix_cache").json() == {"success": True}
        for path in ("/v1/nope", "/", "/v1/v1/completions"):
            assert (client.get(path).status_code, client.get(path).text) == (404, '{"detail":"Not Found"}')
        assert client.get("/v1/completions").status_code == 405
        assert client.post("/v1/models").status_code == 405
        assert client.post("/v1/completions", content=b"{").status_code == 400
        assert client.post("/v1/completions", json=completion(model="nope")).status_code == 404


async def test_a_client_that_leaves_is_counted_and_its_work_stays(tmp_path: Path) -> None:
    profile = tmp_path / "slow.toml"
    profile.write_text('kind = "fcfs"\ndescription = "half a second each"\n[service]\ntimes_ms = [500]\nshares = [1]\n')
    async with launch(str(profile)) as emulated, httpx.AsyncClient(base_url=emulated.url) as client:

        async def reading() -> tuple[float | None, float]:
            scraped = parse((await client.get("/metrics")).text)
            assert scraped is not None
            rows = scraped.samples["vllm:request_success_total"]
            return scraped.outstanding, next(value for labels, value in rows if labels["finished_reason"] == "abort")

        for _ in range(2):
            async with client.stream("POST", "/v1/completions", json=completion(stream=True)) as answer:
                assert answer.status_code == 200  # the headers come before any token
        with anyio.fail_after(20):
            while (await reading())[1] < 2:
                await anyio.lowlevel.checkpoint()
            assert (await reading())[0]
            while (await reading())[0]:
                await anyio.lowlevel.checkpoint()


async def test_requests_are_served_one_at_a_time_in_order_as_the_truth_log_tells(tmp_path: Path) -> None:
    """Each finish is the Lindley queue's: rebuilt here from the logged arrivals and the prompts' services."""
    truth = tmp_path / "truth.jsonl"
    prompts = [[2000 + number] * 16 for number in range(30)]
    async with launch("fcfs-fast", truth_log=truth) as emulated, httpx.AsyncClient(base_url=emulated.url) as client:
        posts = [
            client.post("/v1/completions", json=completion(prompt=p, stream=True), headers={"x-request-id": str(n)})
            for n, p in enumerate(prompts)
        ]
        answers = await asyncio.gather(*posts)
        assert all(events(answer.text)[-1] == "[DONE]" for answer in answers)
    model = load_profile("fcfs-fast").build()
    assert isinstance(model, FcfsModel)
    rows = sorted(map(json.loads, truth.read_text().splitlines()), key=lambda row: row["arrived_ns"])
    assert len(rows) == len(prompts)
    free_ns = 0
    for row in rows:
        prompt = prompts[int(row["id"].removeprefix("cmpl-"))]
        start_ns = max(free_ns, row["arrived_ns"])
        free_ns = start_ns + model.service.time_ns(prompt_uniform(prompt, 0))
        assert row["last_due_ns"] == free_ns
        assert row["last_due_ns"] <= row["last_ns"]
        assert row["first_ns"] <= row["last_ns"]
        assert row["tokens"] == 4


async def test_the_emulator_is_gone_after_its_context_even_when_that_fails(url: str) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        async with launch("fcfs-fast") as emulated:
            raise RuntimeError("boom")
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(emulated.url + "/health")


@pytest.mark.slow
def test_it_dies_with_the_process_that_started_it() -> None:
    script = (
        "import anyio, os, signal\n"
        "from loadgen.target.emulated import launch\n"
        "async def main():\n"
        "    async with launch('fcfs') as emulated:\n"
        "        print(emulated.url, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    orphan = done.stdout.strip()
    for _ in range(200):
        try:
            httpx.get(orphan + "/health", timeout=1)
        except httpx.TransportError:
            return
    pytest.fail("the emulator outlived its parent")


async def test_a_profile_that_cannot_be_used_is_the_users_fault() -> None:
    with pytest.raises(UsageError, match="unknown emulator profile 'nope'"):
        async with launch("nope"):
            pass


async def test_what_a_failing_emulator_says_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(TargetUnreachable, match="did not start: it ended before it was ready: emulator: truth log"):
        async with launch("fcfs", truth_log=tmp_path / "no" / "such" / "folder.jsonl"):
            pass


def test_a_port_in_use_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = url.rsplit(":", 1)[1]
    assert main(["--port", port]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"emulator: emulator cannot listen on 127.0.0.1 port {port}: Address already in use")
    assert said.count("\n") == 1
