"""The embedded emulator as a process over real HTTP, held against a real vLLM's captures field by field."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio.from_thread
import anyio.lowlevel
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.common.errors import TargetUnreachable, UsageError
from loadgen.emulator.fcfs import FcfsModel
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.serve import main
from loadgen.emulator.service import prompt_uniform
from loadgen.target.emulated import Emulated, launch
from loadgen.target.metrics import parse

pytestmark = pytest.mark.realtime

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


@pytest.fixture(scope="module")
def busy() -> Iterator[Emulated]:
    """A continuous-batching server with few slots and a short queue."""
    settings = [
        "server.max_model_len=4096", "server.vocab_size=4096", "server.enable_prompt_tokens_details=true",
        "scheduler.max_num_seqs=4", "scheduler.max_num_queued_reqs=4",
    ]  # fmt: skip
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(launch("llama8b-80gb", settings=settings)) as emulated,
    ):
        yield emulated


async def gauge(client: httpx.AsyncClient, name: str) -> float:
    scraped = parse((await client.get("/metrics")).text)
    assert scraped is not None
    return scraped.total(name) or 0.0


@asynccontextmanager
async def full(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Every slot and the whole queue taken, by streams that are left at the end."""
    body = completion(max_tokens=3000, stream=True)
    async with AsyncExitStack() as streams:
        with anyio.fail_after(20):
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
                for number in range(4):
                    await streams.enter_async_context(client.stream("POST", "/v1/completions", json=body))
                    while await gauge(client, name) <= number:
                        await anyio.lowlevel.checkpoint()
        yield
    with anyio.fail_after(20):
        while (await client.get("/load")).json()["server_load"]:
            await anyio.lowlevel.checkpoint()


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


CAPTURED_METRICS = "metrics_after_overload_full.txt"
# the web framework's own counts, and estimates that are vLLM's guess at a real card's work
NOT_TOLD = re.compile(r"http_|vllm:estimated_")


@captured
def test_metrics_are_vllms_names_types_labels_and_buckets(busy: Emulated) -> None:
    def families(text: str) -> dict[str, str]:
        return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))

    def series(text: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        """Every sample but for what differs between two models: name, labels with the values that are no free text."""
        free = {"model_name", "version", "patchlevel", "minor", "implementation", "major"}
        return {
            (sample.name, frozenset((k, "" if k in free else v) for k, v in sample.labels.items()))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.startswith("vllm:cache_config_info") and not NOT_TOLD.match(sample.name)
        }

    # token counts are bounded by the context: of 4,096 in the capture
    theirs = (CAPTURES / CAPTURED_METRICS).read_text()
    ours = httpx.get(busy.url + "/metrics").text
    assert {name: kind for name, kind in families(theirs).items() if not NOT_TOLD.match(name)} == families(ours)
    assert series(ours) ^ series(theirs) == set()
    known = set(re.search(r"cache_config_info\{(.*)\}", theirs)[1].split(","))  # type: ignore[index]
    assert {pair.split("=")[0] for pair in re.search(r"cache_config_info\{(.*)\}", ours)[1].split(",")} <= {  # type: ignore[index]
        pair.split("=")[0] for pair in known
    }


@captured
@pytest.mark.parametrize(
    "name",
    ["dev0_err_bad_json", "dev0_err_bad_model_stream", "dev0_err_empty_body", "dev0_err_max_tokens_0",
     "dev0_err_token_oov", "dev0_err_too_long_ids_stream", "dev1_err_stream_options_nostream", "dev1_tokenize_prompt",
     "dev1_detokenize", "dev1_reset_prefix_cache", "dev1_load", "dev1_version", "dev1_health", "queue_limit_503_raw"],
)  # fmt: skip
async def test_answers_and_errors_have_vllms_status_headers_and_bodies(busy: Emulated, name: str) -> None:
    capture = (CAPTURES / f"{name}.txt").read_text()
    request = re.search(r"^# (GET|POST) (\S+)\n# request body \((\d+) bytes\): (.*)$", capture, re.MULTILINE)
    assert request is not None
    status = int(re.search(r"HTTP/1.1 (\d+)", capture)[1])  # type: ignore[index]
    theirs = re.findall(r"^\[.*?\] \[ *\d+\] (\{.*\})$", capture, re.MULTILINE)
    content = "" if request[3] == "0" else request[4]
    if name == "dev0_err_too_long_ids_stream":  # its body is cut in the capture
        content = json.dumps({"model": "tiny", "prompt": [300] * 5000, "stream": True})
    if content.endswith("}"):
        content = content.replace('"tiny"', '"emulator"')
    async with httpx.AsyncClient(base_url=busy.url) as client, full(client) if status == 503 else nullcontext():
        ours = await client.request(request[1], request[2], content=content.encode())
    assert ours.status_code == status
    names = {line.split(":")[0] for line in re.findall(r"\[ *\d+\] ([a-z-]+: .*)\\r$", capture, re.MULTILINE)}
    assert ours.headers.keys() | {"vary", "connection"} == names | {"vary", "connection"}
    if not theirs:
        assert ours.content == b""
    elif status >= 400:
        assert ours.json() == json.loads(theirs[0].replace("aliases: tiny", "aliases: emulator"))
    else:
        assert shape(ours.json()) == shape(json.loads(theirs[0]))


@captured
def test_usage_tells_cached_tokens_as_vllm_does_where_it_is_asked_to(busy: Emulated) -> None:
    def usage(name: str) -> Any:
        return [
            event["usage"] for event in events((CAPTURES / name).read_text()) if event != "[DONE]" and "usage" in event
        ]

    ids = list(range(2500, 2800))
    counts = []
    for _ in range(2):
        body = completion(prompt=ids, stream=True, stream_options={"include_usage": True})
        told = [
            e["usage"] for e in events(httpx.post(busy.url + "/v1/completions", json=body).text)[:-1] if "usage" in e
        ]
        assert shape(told) == shape(usage("comp_stream_usage_prompt_tokens_details.txt"))
        counts.append(told[-1]["prompt_tokens_details"]["cached_tokens"])
    assert counts == [0, 288]  # whole blocks of 16, save the one whose last token must be computed
    whole = httpx.post(busy.url + "/v1/completions", json=completion(prompt=ids)).json()["usage"]
    misc = (CAPTURES / "misc_behaviour.txt").read_text()
    assert shape(whole) == shape(ast.literal_eval(re.search(r"^2nd usage (\{.*\})$", misc, re.MULTILINE)[1]))  # type: ignore[index]


async def test_a_full_queue_refuses_and_a_held_cache_is_not_reset(busy: Emulated) -> None:
    async with httpx.AsyncClient(base_url=busy.url) as client:
        refused = await gauge(client, "vllm:admission_rejections_total")
        async with full(client):
            assert (await client.get("/load")).json() == {"server_load": 8}
            assert (await client.post("/reset_prefix_cache")).json() == {"success": False}
            for path, body in (
                ("/v1/completions", completion(stream=True)),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ):
                assert (await client.post(path, json=body)).status_code == 503
        assert await gauge(client, "vllm:admission_rejections_total") == refused + 2
        assert (await client.post("/reset_prefix_cache")).json() == {"success": True}


async def test_metrics_count_what_was_served_and_phases_add_up(busy: Emulated) -> None:
    names = [
        f"vllm:{name}" for name in (
            "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total",
            "prompt_tokens_cached_total", "generation_tokens_total", "request_generation_tokens_sum",
            "inter_token_latency_seconds_count", "iteration_tokens_total_sum", "request_success_total",
            "request_prefill_kv_computed_tokens_sum", "request_inference_time_seconds_sum",
            "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum", "inter_token_latency_seconds_sum",
            "request_queue_time_seconds_sum", "e2e_request_latency_seconds_sum",
        )
    ]  # fmt: skip
    async with httpx.AsyncClient(base_url=busy.url) as client:
        before = {name: await gauge(client, name) for name in names}
        for _ in range(2):
            await client.post("/v1/completions", json=completion(prompt=list(range(600, 1200)), max_tokens=5))
        now = {name: await gauge(client, name) - before[name] for name in names}
    counts = [now[name] for name in names[:10]]
    # 37 whole blocks of 16 are found the second time; a pass computes the prompt's rest, or one token
    assert counts == [1200, 592, 1200, 592, 10, 10, 8, 600 + 8 + 8, 2, 608]
    inference, prefill, decode, gaps, queue, e2e = (now[name] for name in names[10:])
    assert inference == pytest.approx(prefill + decode)
    assert gaps == pytest.approx(decode)
    assert 0 <= queue < 0.1
    assert e2e >= inference + queue


@pytest.mark.parametrize("interval", [1, 3, 100])
async def test_a_stream_interval_merges_tokens_into_events(interval: int) -> None:
    async with (
        launch("fcfs-fast", settings=[f"server.stream_interval={interval}"]) as emulated,
        httpx.AsyncClient(base_url=emulated.url) as client,
    ):
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = completion(max_tokens=11, stream=True, return_token_ids=True, stream_options=options)
        seen = events((await client.post("/v1/completions", json=body)).text)[:-2]
        assert f"[with server.stream_interval={interval}]" in emulated.description
        config = (await client.get("/server_info?config_format=json")).json()["vllm_config"]
        assert config["scheduler_config"]["stream_interval"] == interval
    sizes = [len(event["choices"][0]["token_ids"]) for event in seen]
    assert sizes == {1: [1] * 11, 3: [1, 3, 3, 3, 1], 100: [1, 10]}[interval]
    assert [event["usage"]["completion_tokens"] for event in seen] == [sum(sizes[: n + 1]) for n in range(len(sizes))]
    assert [event["choices"][0]["finish_reason"] for event in seen] == [None] * (len(seen) - 1) + ["length"]


def test_text_of_a_known_number_of_tokens_can_be_built_and_answers_are_made_of_tokens(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        ids = [700, 2000, 3999, 512]
        text = client.post("/detokenize", json={"tokens": ids}).json()["prompt"]
        answer = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
        assert (answer["tokens"], answer["count"], "".join(answer["token_strs"])) == (ids, 4, text)
        whole = client.post(
            "/v1/completions", json=completion(prompt=text, max_tokens=20, return_token_ids=True)
        ).json()
        assert whole["usage"]["prompt_tokens"] == 4
        said = client.post("/tokenize", json={"prompt": whole["choices"][0]["text"]}).json()["tokens"]
        assert said == whole["choices"][0]["token_ids"]
        chat = [{"role": "user", "content": "about above"}]
        sent = client.post("/v1/chat/completions", json={"messages": chat, "max_tokens": 1, "ignore_eos": True}).json()
        assert client.post("/tokenize", json={"messages": chat}).json()["count"] == sent["usage"]["prompt_tokens"]
        assert client.post("/detokenize", json={"tokens": [-1]}).status_code == 400
        assert client.post("/tokenize", json={}).status_code == 400
        assert client.get("/tokenize").status_code == 405


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
