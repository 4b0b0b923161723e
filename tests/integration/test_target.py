"""What we ask of a server that is not load, against the embedded emulator and against servers that misbehave."""

from __future__ import annotations

import itertools
import json
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from analysis.text import bounded
from loadgen.common.errors import TargetError, TargetUnfit, TargetUnreachable, UsageError
from loadgen.common.members import JsonMembers
from loadgen.common.tls import Tls
from loadgen.plan.types import RequestFormat
from loadgen.target.emulated import launch
from loadgen.target.hardware import local_hardware
from loadgen.target.http import Http, base_url, load_api_key
from loadgen.target.identity import changed
from loadgen.target.metrics import parse, scrape
from loadgen.target.target import Target, open_target
from tests.fakes.pages import HTML, JSON, MODELS, TEXT, UP, Reply, server


async def refusal(spec: str | list[str], **options: Any) -> TargetError:
    """The one line that opening this target ends with."""
    with pytest.raises(TargetError) as caught:
        async with open_target(spec, **{"ready_timeout_s": 0.2, "request_timeout_s": 0.3, **options}):
            pass
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    return caught.value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- nothing there ---------------------------------------------------------------------------------------------------


async def test_connection_refused() -> None:
    error = await refusal(f"http://127.0.0.1:{free_port()}")
    assert isinstance(error, TargetUnreachable)
    assert "connection refused" in str(error)


async def test_a_name_that_does_not_exist_is_not_waited_for() -> None:
    error = await refusal("http://no-such-host.invalid:8000", ready_timeout_s=600, request_timeout_s=20)
    assert isinstance(error, TargetUnreachable)
    assert "host name no-such-host.invalid is not known" in str(error)


async def test_a_server_that_accepts_and_never_answers() -> None:
    async with server({"/health": None}) as url:
        error = await refusal(url)
    assert isinstance(error, TargetUnreachable)
    assert "no answer within 0.3 s" in str(error) or "no whole answer within 0.3 s" in str(error)


async def test_what_speaks_something_else() -> None:
    async with server({"/health": b"SSH-2.0-OpenSSH_9.6\r\n\r\n"}) as url:
        assert "does not speak HTTP" in str(await refusal(url))
    async with server({"/health": b""}) as url:
        assert "the connection was lost" in str(await refusal(url))


async def test_tls_faults_each_have_their_line(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with server(UP, tls) as url:
        assert "certificate is not trusted" in str(await refusal(url, request_timeout_s=5))
        async with open_target(url, tls=Tls(ca_file=str(tmp_path / "ca.pem"))) as target:
            assert target.model == "m"
        async with open_target(url, tls=Tls(insecure=True)) as target:
            assert target.endpoint(RequestFormat()).tls.insecure
    async with server(UP) as url:
        assert "write http:// instead" in str(await refusal(url.replace("http:", "https:"), request_timeout_s=5))
    with pytest.raises(UsageError, match=r"CA file .* does not exist"):
        async with open_target("https://127.0.0.1:1", tls=Tls(ca_file=str(tmp_path / "nope.pem"))):
            pass


async def test_a_server_that_is_starting_is_waited_for_in_words() -> None:
    asked = 0

    def pages(path: str, _: bytes) -> Reply:
        nonlocal asked
        asked += path == "/health"
        return (503, TEXT, b"") if asked < 2 else MODELS

    said: list[str] = []
    async with server(pages) as url, open_target(url, ready_timeout_s=30, progress=said.append) as target:
        assert target.model == "m"
        assert said == [f"waiting for {url} (0 s of 30 s): /health answers 503"]
    async with server({"/health": (503, TEXT, b"")}) as url:
        assert "/health answers 503 (waited 0 s)" in str(await refusal(url))


# --- something there, but not what is wanted -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ((200, HTML, b"<!doctype html><title>\x1b[31mhi</title>"), "answers a web page"),
        ((200, JSON, b"<html></html>"), "answers a web page"),
        ((404, HTML, b"<html>nginx</html>"), "answers a web page (404)"),
        ((401, JSON, b'{"error":{"message":"bad key\x1b[2J"}}'), "needs an API key, or another one (401: "),
        ((403, JSON, b""), "needs an API key, or another one (403)"),
        ((404, JSON, b'{"detail":"Not Found"}'), "there is no /v1/models (404)"),
        ((500, JSON, b'{"detail":"boom"}'), "/v1/models answers 500: boom"),
        ((200, JSON, b'{"object":"list","data":[]}'), "lists no model"),
        ((200, JSON, b'{"object":"list","data":[{"id":"a"},{"id":"b"}]}'), "serves several models: a, b; choose one"),
        ((200, JSON, b"[1, 2]"), "did not return a list of models: [1, 2]"),
        ((200, JSON, b'{"data": [3, {"id": 4}]}'), "lists no model"),
        ((200, JSON, b"\x00\xff\xfe"), "did not return a list of models"),
        ((200, JSON, b'{"data":[' + b" " * (9 << 20) + b"]}"), "did not return a list of models"),
    ],
)
async def test_answers_that_are_no_model_list(models: Reply, said: str) -> None:
    async with server({**UP, "/v1/models": models}) as url:
        error = await refusal(url, request_timeout_s=5)
    assert isinstance(error, TargetUnfit)
    assert said in str(error)


@pytest.mark.parametrize(
    "models",
    [
        (404, HTML, b"<html>nginx"),
        (405, JSON, b""),
        (401, JSON, b"{}"),
        (403, JSON, b"{}"),
        (200, JSON, b'{"data":[]}'),
    ],
)
async def test_a_model_that_is_named_needs_no_list(models: Reply) -> None:
    async with server({**UP, "/v1/models": models}) as url:
        async with open_target(url, model="mine", ready_timeout_s=0.1) as target:
            assert (target.model, target.max_model_len) == ("mine", None)
            assert (await target.identity())["0.model"] == "mine"
        with pytest.raises(TargetUnfit):
            async with open_target(url, ready_timeout_s=0.1):
                pass


async def test_a_redirect_is_named_and_not_followed() -> None:
    moved = b"HTTP/1.1 307 X\r\nlocation: http://elsewhere.invalid/v1\r\ncontent-length: 0\r\n\r\n"
    async with server({**UP, "/v1/models": moved}) as url:
        assert "redirects to http://elsewhere.invalid/v1" in str(await refusal(url))


async def test_another_model_than_asked_lists_the_served() -> None:
    async with server(UP) as url:
        assert str(await refusal(url, model="x")) == f"{url} does not serve the model x; it serves: m"


async def test_replicas_of_different_models_are_no_target() -> None:
    other = {**UP, "/v1/models": (200, JSON, b'{"data":[{"id":"n"}]}')}
    async with server(UP) as one, server(other) as two:
        assert "serve different models" in str(await refusal([one, two]))


async def test_the_key_is_sent_and_in_no_repr() -> None:
    def pages(path: str, request: bytes) -> Reply:
        if path == "/v1/models" and b"authorization: Bearer s3cret\r\n" not in request:
            return (401, JSON, b"{}")
        return MODELS

    async with server(pages) as url:
        assert "needs an API key" in str(await refusal(url, api_key="wr0ng", request_timeout_s=5))
        async with open_target(url, api_key="s3cret") as target:
            endpoint = target.endpoint(RequestFormat(), JsonMembers.of(cache_salt="x"))
            assert "s3cret" not in repr(target) + repr(endpoint) + str(await target.identity())
            assert endpoint.headers["authorization"] == "Bearer s3cret"
            assert (endpoint.path, endpoint.extras) == ("/v1/completions", JsonMembers.of(cache_salt="x"))


async def test_a_key_that_a_server_repeats_is_not_shown() -> None:
    body = b'{"error": {"message": "Incorrect API key provided: sk-very-secret-4711"}}'
    async with (
        server({"/v1/models": (401, JSON, body)}) as url,
        Http(base=url, headers={"authorization": "Bearer sk-very-secret-4711"}) as http,
    ):
        answer = await http.get("/v1/models")
    assert answer.excerpt == "Incorrect API key provided: [redacted]"
    assert "secret" not in repr(answer).replace(repr(body), "")


# --- what the user typed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("h:1", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/v1/completions", "https://h"),
        ("https://h/proxy/v1/chat/completions/", "https://h/proxy"),
        ("http://[::1]:8000/v1/models", "http://[::1]:8000"),
    ],
)
def test_base_urls(typed: str, meant: str) -> None:
    assert base_url(typed) == meant


@pytest.mark.parametrize(
    "typed", ["", "http://", "ftp://h", "http://h:99999", "http://h:x", "http://u:p4ss@h", "http://h?x=1", "http://a b"]
)
def test_urls_that_are_none_are_refused_without_repeating_a_password(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        base_url(typed)
    assert "p4ss" not in str(caught.value)


async def test_targets_that_contradict_themselves() -> None:
    for spec in (["emulator", "http://h"], ["http://h", "http://h/v1"], [], "virtual:fcfs", "emulator:nope"):
        with pytest.raises(UsageError):
            async with open_target(spec):
                pass


def test_keys_come_from_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " abc\n")
    monkeypatch.setenv("EMPTY_KEY", "")
    monkeypatch.setenv("BAD_KEY", "a\nbad")
    file = tmp_path / "key"
    file.write_text("from-file\n")
    assert load_api_key() is None
    assert load_api_key(env="SOME_KEY") == "abc"
    assert load_api_key(file=file) == "from-file"
    for options, said in (
        ({"env": "NO_KEY"}, "NO_KEY is not set"),
        ({"env": "EMPTY_KEY"}, "is empty"),
        ({"env": "BAD_KEY"}, "more than one line"),
        ({"file": tmp_path / "nope"}, "cannot be read: No such file"),
        ({"env": "SOME_KEY", "file": file}, "not both"),
    ):
        with pytest.raises(UsageError, match=said) as caught:
            load_api_key(**options)  # type: ignore[arg-type]
        assert "bad" not in str(caught.value)


def test_hostile_text_reaches_no_terminal() -> None:
    assert bounded("a\x1b[31m\r\n\u202eb") == bounded(b"a\x1b[31m\r\n\xe2\x80\xaeb") == "a\\x1b[31m\\r\\n\\u202eb"
    assert len(bounded("x" * 5000)) == len(bounded("\x1b" * 5000)) == len(bounded(b"x" * 5000)) == 200
    assert bounded("x" * 200) == "x" * 200


# --- state -----------------------------------------------------------------------------------------------------------


async def test_the_emulator_is_a_target_in_every_respect() -> None:
    async with open_target("emulator:fcfs-fast") as target:
        assert (target.label, target.simulated, target.model) == ("emulator:fcfs-fast", True, "emulator")
        assert target.max_model_len == 32768
        before = await target.identity()
        assert before["0.version"] == "0.32.0+loadgen-emulator"
        assert float(before["0.started"]) > 1e9
        assert before["0.cache.enable_prefix_caching"] == "False"
        assert changed(before, await target.identity()) == ""
        assert (await target.wait_idle(5)).idle is True
        for fmt in (RequestFormat(), RequestFormat(endpoint="chat", prompt="text"), RequestFormat(prompt="text")):
            times = await target.warm(3, [(64, 4), (32, 2)], fmt, concurrency=2)
            assert len(times) == 3
            assert all(0.001 < seconds < 5 for seconds in times)
        salt = (await target.capabilities()).salt
        assert (salt.accepted, salt.proved, salt.proof) == (True, True, "no_cache")
        await target.reset_cache()
        with pytest.raises(TargetUnfit, match="max_tokens must be at least 1, got 0"):
            await target.warm(1, [(8, 0)])
        url = target.urls[0]
        async with open_target(url + "/v1") as again:
            assert again.simulated
            assert again.urls == (url,)


async def test_a_target_that_died_is_not_idle_and_has_no_identity() -> None:
    gone = Target(label="", simulated=False, urls=(), model="m", max_model_len=None,
                  https=(Http(base=f"http://127.0.0.1:{free_port()}"),))  # fmt: skip
    async with gone.https[0]:
        for ask in (gone.wait_idle, gone.identity, gone.environment):
            with pytest.raises(TargetUnreachable):
                await ask()


def exposition(**values: float) -> Reply:
    rows = "".join(f"vllm:{name} {value}\n" for name, value in values.items())
    return (200, TEXT, rows.encode())


async def test_idle_is_waited_for_and_what_cannot_be_seen_is_said() -> None:
    readings = iter([3.0, 1.0, 0.0])

    def pages(path: str, _: bytes) -> Reply:
        if path == "/metrics":
            return exposition(num_requests_running=next(readings), num_requests_waiting=0)
        return MODELS

    async with server(pages) as url, open_target(url) as target:
        next(readings)
        assert (await target.wait_idle(10)).idle is True
    busy = {**UP, "/metrics": exposition(num_requests_running=1, num_requests_waiting=4)}
    async with server(busy) as url, open_target(url) as target:
        idle = await target.wait_idle(0.05)
        assert idle.idle is False
        assert "5 requests running or waiting" in idle.text
    async with server({**UP, "/load": (200, JSON, b'{"server_load":0}')}) as url, open_target(url) as target:
        assert (await target.wait_idle(1)).idle is True
    async with server(UP) as url, open_target(url) as target:
        idle = await target.wait_idle(1)
        assert idle.idle is None
        assert "idleness cannot be observed" in idle.text


@pytest.mark.parametrize(
    "metrics",
    [
        (401, JSON, b"{}"),
        (200, HTML, b"<html>"),
        (200, TEXT, b"\x00\xff{{{ 1 2 3\n"),
        (200, TEXT, b'vllm:num_requests_running{a="} 1\n'),
        (200, TEXT, b"x 1\n" * (3 << 20)),
    ],
)
async def test_metrics_that_are_none_are_none(metrics: Reply) -> None:
    async with server({**UP, "/metrics": metrics}) as url, open_target(url) as target:
        assert await scrape(target.https[0]) is None
        assert "0.started" not in await target.identity()


def test_absent_metrics_are_none_and_labels_are_summed() -> None:
    reading = parse('a{e="0"} 1\na{e="1"} 2\n')
    assert reading is not None
    assert reading.total("a") == 3
    assert (reading.total("b"), reading.outstanding, reading.prefix_hits, reading.started) == (None,) * 4


def answer(prompt_tokens: int = 256) -> Reply:
    """A whole answer to any probing request."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 16}
    document = {"choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": usage}
    return (200, JSON, json.dumps(document).encode())


def caching_server(salted: bool) -> Callable[[str, bytes], Reply]:
    """A server with a prefix cache that respects `cache_salt`, or does not."""
    seen: set[str] = set()
    totals = {"prefix_cache_queries_total": 0.0, "prefix_cache_hits_total": 0.0}

    def pages(path: str, request: bytes) -> Reply:
        if path == "/metrics":
            return exposition(**totals)
        if path == "/v1/completions":
            body = json.loads(request.split(b"\r\n\r\n", 1)[1])
            key = json.dumps([body["prompt"], body.get("cache_salt") if salted else None])
            totals["prefix_cache_queries_total"] += len(body["prompt"])
            totals["prefix_cache_hits_total"] += len(body["prompt"]) if key in seen else 0
            seen.add(key)
            return answer(len(body["prompt"]))
        return MODELS

    return pages


async def test_a_salt_is_proved_ignored_unproved_or_refused() -> None:
    async with server(caching_server(True)) as url, open_target(url) as target:
        assert (await target.capabilities()).salt.proof == "proved"
    async with server(caching_server(False)) as url, open_target(url) as target:
        support = (await target.capabilities()).salt
        assert (support.proof, support.accepted, support.proved) == ("ignored", True, False)
    blind = {**UP, "/v1/completions": answer()}
    async with server(blind) as url, open_target(url) as target:
        assert (await target.capabilities()).salt.proof == "unproved"
    async with server(caching_server(True)) as good, server(blind) as bad, open_target([good, bad]) as target:
        assert (await target.capabilities()).salt.proof == "unproved"

    def strict(path: str, request: bytes) -> Reply:
        if b"cache_salt" in request:
            return (400, JSON, b'{"error":{"message":"unknown field"}}')
        return answer() if path == "/v1/completions" else MODELS

    async with server(strict) as url, open_target(url) as target:
        support = (await target.capabilities()).salt
        assert (support.proof, support.accepted) == ("refused", False)
        assert "unknown field" in support.text


async def test_a_reset_is_read_and_retried_until_it_succeeds() -> None:
    busy = b'{"error":{"message":"blocks in use"}}'
    answers = iter([(400, busy), (503, busy), (200, b'{"success":false}'), (200, b""), (200, b'{"success":true}')])

    def pages(path: str, _: bytes) -> Reply:
        if path != "/reset_prefix_cache?reset_external=true":
            return MODELS
        status, body = next(answers)
        return (status, JSON, body)

    async with server(pages) as url, open_target(url) as target:
        await target.reset_cache(timeout_s=10)
        assert next(answers, None) is None
    never = {**UP, "/reset_prefix_cache?reset_external=true": (200, JSON, b'{"success":false}')}
    async with server(never) as url, open_target(url) as target:
        with pytest.raises(TargetUnfit, match=r"was not reset within 0\.05 s"):
            await target.reset_cache(timeout_s=0.05)
    never["/reset_prefix_cache?reset_external=true"] = (400, JSON, busy)
    async with server(never) as url, open_target(url) as target:
        with pytest.raises(TargetUnfit, match=r"was not reset within 0\.05 s \(it answers 400: blocks in use\)"):
            await target.reset_cache(timeout_s=0.05)
    async with server(UP) as url, open_target(url) as target:
        with pytest.raises(TargetUnfit, match="VLLM_SERVER_DEV_MODE=1"):
            await target.reset_cache()


def test_a_changed_identity_is_told_in_words() -> None:
    before = {"0.url": "http://a", "0.version": "1", "0.started": "100.00", "0.cache.block_size": "16"}
    after = {"0.url": "http://a", "0.version": "2", "0.started": "160.00", "0.root": "r"}
    assert changed(before, after) == (
        "http://a: cache.block_size disappeared (16); http://a: root appeared (r); "
        "http://a: the server restarted (its process started +60 s apart); http://a: version was 1, is 2"
    )
    assert changed(before, dict(before)) == ""
    restarted = before | {"0.started": "160.00"}
    assert changed(before, restarted, restarted=True) == ""
    assert changed(restarted, before) == "http://a: another server answers than before (its process is 60 s older)"


async def test_a_balancer_in_front_of_different_versions_is_a_changing_target() -> None:
    versions = itertools.cycle(["0.31.0", "0.32.0"])
    starts = itertools.cycle([100, 100, 200])

    def pages(path: str, _: bytes) -> Reply:
        if path == "/version":
            return 200, JSON, json.dumps({"version": next(versions)}).encode()
        if path == "/metrics":
            return 200, TEXT, b"process_start_time_seconds %d\n" % next(starts)
        return UP.get(path) or (404, JSON, b"{}")  # type: ignore[return-value]

    async with server(pages) as url, open_target(url) as target:
        before, after = await target.identity(), await target.identity()
        assert changed(before, after) == (
            f"{url}: servers of different versions answer behind one URL (0.31.0 and 0.32.0)"
        )
        versions = itertools.cycle(["0.32.0"])
        before = await target.identity()
        assert "several servers answer behind one URL" in before["0.several"]
        starts = itertools.cycle([200])
        assert changed(before, await target.identity()) == ""


async def test_only_listed_settings_are_kept_of_a_page_that_holds_secrets() -> None:
    config = {
        "vllm_config": {"model_config": {"dtype": "bf16", "hf_token": "hf_s3cret"}},
        "vllm_env": {"KEY": "s3cret"},
        "system_env": {
            "nvidia_driver_version": "570.1",
            "pip_packages": "[pip3] nvidia-nccl-cu12==2.27.5\n[pip3] numpy==2",
            "gpu_topo": "GPU0\tGPU1\n",
            "env_vars": "TOKEN=s3cret",
        },
    }
    info = {**UP, "/server_info?config_format=json": (200, JSON, json.dumps(config).encode())}
    async with server(info) as url, open_target(url) as target:
        identity = await target.identity()
        assert identity["0.model.dtype"] == "bf16"
        environment = await target.environment()
        assert environment["0.env.nvidia_driver_version"] == "570.1"
        assert environment["0.env.nccl_version"] == "2.27.5"
        assert environment["0.env.gpu_topo"] == "GPU0\\tGPU1\\n"
        assert "s3cret" not in str(identity) + str(environment)


async def test_cards_of_this_machine_are_asked_for_or_named_as_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await local_hardware("http://192.0.2.1:8000") == {"gpu": "not measured (the server is on another machine)"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await local_hardware("http://127.0.0.1:1") == {"gpu": "not measured (no nvidia-smi on this machine)"}
    script = tmp_path / "nvidia-smi"
    script.write_text(
        "#!/bin/sh\ncase $1 in --query*) echo '0, NVIDIA H100, 570.1';; topo) echo 'GPU0 X';; "
        "*) echo '| CUDA Version: 12.8 |';; esac\n"
    )
    script.chmod(0o755)
    assert await local_hardware("http://localhost:1") == {
        "gpu.0": "0, NVIDIA H100, 570.1", "cuda": "12.8", "topology": "GPU0 X\\n",
    }  # fmt: skip


# --- the emulator of our own -----------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores to set apart"
)
async def test_the_emulator_and_its_client_do_not_share_a_core() -> None:
    before = os.sched_getaffinity(0)
    async with launch("fcfs-fast") as emulated:
        theirs = os.sched_getaffinity(emulated.pid)
        assert len(theirs) == 1
        assert os.sched_getaffinity(0) == before - theirs
    assert os.sched_getaffinity(0) == before
