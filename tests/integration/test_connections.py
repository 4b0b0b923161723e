"""Every way to a server: Unix sockets, prewarmed pools, headers, mutual TLS, proxies; and a machine without ports."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from loadgen.common.errors import ScenarioError, TargetUnreachable, UsageError
from loadgen.common.headers import load_headers, stored_header
from loadgen.common.loop import run_loop
from loadgen.common.tls import Tls
from loadgen.plan.types import RunPlan
from loadgen.scenario.file import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.send.api import Endpoint, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.connection import Connection
from loadgen.send.session import send_run
from loadgen.target.http import Http, base_url
from loadgen.target.idle import IdleWatch
from tests.fakes.plans import Bodies, plan_at
from tests.fakes.relay import HIDDEN, Doors, doors
from tests.fakes.replay import pool_of
from tests.fakes.server import FakeServer, answering, serving, stream

pytestmark = pytest.mark.realtime

SECRET = "sk-very-secret-4711"
SHORT = ["--rate", "60", "--input", "16", "--output", "4", "--slo", "e2e<=10s", "--window", "600ms",
         "--warmup", "100ms", "--min-requests", "5", "--out", "r", "--json", "--quiet"]  # fmt: skip


async def send(urls: tuple[str, ...], plan: RunPlan, **options: Any) -> RunOutput:
    clock = LoopClock()
    try:
        endpoint = Endpoint(urls=urls, path="/v1/completions", model="m")
        return await send_run(plan, Bodies(), endpoint, SendOptions(**options), clock=clock)
    finally:
        clock.close()


# --- Unix sockets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_unix_socket(tmp_path: Path, transport: str) -> None:
    async def main() -> tuple[RunOutput, FakeServer]:
        async with serving(stream(), path=tmp_path / "s") as fake:
            plan = plan_at([5, 205, 405], window_ms=420)
            return await send((f"unix:{tmp_path / 's'}",), plan, transport=transport), fake

    output, fake = run_loop(main())
    assert list(output.requests["outcome"]) == ["ok"] * 3
    assert fake.connections == 1
    assert (output.requests["connect_ns"] > 0).sum() == 1
    assert b"\r\nhost: localhost\r\n" in fake.requests[0].head.lower()
    assert output.facts.connection_limit is not None  # of descriptors; there are no ports to run out of


def test_how_a_unix_socket_is_written() -> None:
    for text in (
        "unix:/run/v.sock",
        "unix:///run/v.sock",
        "http+unix://%2Frun%2Fv.sock",
        "http+unix://%2Frun%2Fv.sock/",
    ):
        assert base_url(text) == "unix:/run/v.sock"
    for text in ("unix:", "unix:run/v.sock", "unix:/a\x1bb", "http+unix://run"):
        with pytest.raises(UsageError, match="write unix:/path/to") as caught:
            base_url(text)
        assert str(caught.value).isprintable()


# --- the pool --------------------------------------------------------------------------------------------------------


def test_prewarmed_connections_are_there_before_the_first_request() -> None:
    at_once = plan_at([5] * 6, window_ms=10)

    async def main(**options: Any) -> tuple[RunOutput, FakeServer]:
        async with serving(stream()) as fake:
            return await send((fake.url,), at_once, **options), fake

    output, fake = run_loop(main(prewarm=6))
    assert list(output.requests["outcome"]) == ["ok"] * 6
    assert (output.requests["connect_ns"] == 0).all()
    assert fake.connections == 6
    output, _ = run_loop(main(prewarm=2))
    assert (output.requests["connect_ns"] > 0).sum() == 4


def test_a_connect_that_nobody_waits_for_any_more_is_closed_when_it_comes() -> None:
    async def main() -> set[Connection]:
        closed = asyncio.get_running_loop().create_future()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read()
            closed.set_result(None)
            writer.close()

        listener = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        clock = LoopClock()
        pool = pool_of(clock)
        connection = Connection(pool)
        connection.abandon()
        await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)
        async with asyncio.timeout(5):
            await closed  # the server has seen its end
        listener.close()
        clock.close()
        return pool.connections

    assert run_loop(main()) == set()


def test_a_watch_over_tls_that_is_cut_short_leaves_nothing_open(tmp_path: Path) -> None:
    over = threading.Event()

    class Quiet(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            over.wait(10)  # no goodbye to a goodbye

        def log_message(self, *_: object) -> None:
            pass

    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        server.daemon_threads = True
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

        async def main() -> None:
            http = Http(base=f"https://127.0.0.1:{server.server_port}", tls=Tls(ca_file=str(tmp_path / "ca.pem")))
            watch = IdleWatch(http)
            watching = asyncio.create_task(watch.run())
            while watch.answer_s is None:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.005)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

        try:
            run_loop(main())  # a loop with something open refuses to close
        finally:
            over.set()
            server.shutdown()


def test_connections_that_cannot_be_prewarmed_end_the_run_before_it_begins() -> None:
    plan = plan_at([5], window_ms=10)
    with pytest.raises(TargetUnreachable, match=r"connection 1 of 3 \(--prewarm\) failed: .*refused"):
        run_loop(send(("http://127.0.0.1:9",), plan, prewarm=3))
    with pytest.raises(UsageError, match="--prewarm needs --transport wire"):
        run_loop(send(("http://127.0.0.1:9",), plan, prewarm=3, transport="httpx"))


def test_a_server_that_rejects_says_when_to_come_back_and_nobody_does() -> None:
    raw = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nslow"

    async def main(transport: str) -> tuple[RunOutput, int]:
        async with serving(answering(raw)) as fake:
            output = await send((fake.url,), plan_at([5, 15, 25], window_ms=40), transport=transport)
            return output, len(fake.requests)

    for transport in ("wire", "httpx"):
        output, seen = run_loop(main(transport))
        assert set(output.requests["outcome"]) == {"rejected"}
        assert set(output.requests["error"]) == {"HTTP 429: Retry-After 7: slow"}
        assert seen == 3


# Six ports in all, and more requests in flight than that: what fails then is this machine.
NO_PORTS = """
import asyncio, sys
from pathlib import Path
from analysis.judge import judge_run
from analysis.slo import Slo
from analysis.verdict import RunFacts, Criteria
from loadgen.common.loop import run_loop
from tests.fakes.plans import plan_at
from tests.fakes.server import serving, stream
from tests.integration.test_connections import send

async def main():
    async with serving(stream(first_s=0.4)) as fake:
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("50000 50005")
        slo = Slo(ttft_s=10)
        output = await send((fake.url,), plan_at([10 * i for i in range(1, 31)], window_ms=310), transport=sys.argv[1])
        verdict = judge_run(output.requests, RunFacts(sender=output.facts), Criteria(slo=slo, min_requests=5))
        print(verdict.status, verdict.blame, sorted(set(output.requests["outcome"])), output.facts.target_died)

run_loop(main())
"""


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_running_out_of_ports_is_the_machine_s_fault_and_not_the_server_s(transport: str) -> None:
    isolated = ["unshare", "--net", "sh", "-c", 'ip link set lo up 2>/dev/null || ifconfig lo up; exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("needs a network namespace of its own")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [*isolated, sys.executable, "-c", NO_PORTS, transport], cwd=root, capture_output=True, text=True
    )
    if "Network is unreachable" in done.stderr or "Errno 101" in done.stderr:
        pytest.skip("the loopback interface of a new network namespace cannot be brought up")
    assert done.stdout.split(" [")[0] == "INVALID client", done.stdout + done.stderr
    assert "'connect_error', 'ok'" in done.stdout
    assert "False" in done.stdout


# --- headers ---------------------------------------------------------------------------------------------------------


def test_headers_are_read_and_their_values_kept_out_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", f" {SECRET}\n")
    assert load_headers(["X-Key: env:TOKEN", "X-Route:a:b"]) == {"X-Key": SECRET, "X-Route": "a:b"}
    for entries in (
        [SECRET],
        [f"X Y: {SECRET}"],
        ["X-Key: env:NO_SUCH_VARIABLE"],
        [f"Host: {SECRET}"],
        [f"X: {SECRET}", f"x: {SECRET}"],
        [f"X: {SECRET}\x00"],
        ["X:"],
    ):
        with pytest.raises(UsageError) as caught:
            load_headers(entries)
        assert SECRET not in str(caught.value)
    assert [stored_header(entry) for entry in (f"X-Key: {SECRET}", "X: env:TOKEN")] == ["X-Key:", "X: env:TOKEN"]


def test_an_experiment_keeps_the_names_of_its_headers_alone() -> None:
    scenario = load_scenario(None, {"header": [f"X-Key: {SECRET}", "X-Env: env:TOKEN"]})
    assert SECRET not in repr(scenario) + json.dumps(scenario.stored())
    assert scenario.sha256 == load_scenario(None, {}).sha256
    again = Scenario.restore(scenario.stored())
    assert again.header == ("X-Key:", "X-Env: env:TOKEN")
    with pytest.raises(UsageError, match="--header X-Key: it has no value"):
        load_headers(again.header)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(None, {"header": [[SECRET]]})
    assert SECRET not in str(caught.value)
    with pytest.raises(ScenarioError, match="'Name: value'") as caught:
        load_scenario(None, {"header": [SECRET]})
    assert SECRET not in str(caught.value)


# --- the command line through other doors ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Doors, Path]]:
    directory = tmp_path_factory.mktemp("doors")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    for name, identity in (("server", "localhost"), ("client", "client")):
        issued = authority.issue_cert(identity)
        issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(directory / f"{name}.pem"))
    with doors(directory) as found:
        yield found, directory


def refusal(done: Any) -> str:
    assert len(done.stderr.splitlines()) == 1
    return str(done.stderr)


def all_ok(done: Any) -> None:
    verdict = json.loads(done.stdout)["verdict"]
    assert verdict["outcomes"] == {"ok": verdict["cohort"]}
    assert verdict["cohort"] > 5


@pytest.mark.usefixtures("unhurried")
def test_a_run_through_a_unix_socket_with_headers_and_a_warm_pool(
    loadgen: Any, ways: tuple[Doors, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = ways
    monkeypatch.setenv("TOKEN", SECRET)
    asked = ["--header", "X-Env: env:TOKEN", "--header", "X-Key: other-secret", "--prewarm", "3"]
    found.take_heads()
    done = loadgen("run", "--target", found.unix, *asked, *SHORT)
    all_ok(done)
    posts = [head for head in found.take_heads() if head.startswith(b"post")]
    assert len(posts) > 20
    for head in posts:
        assert f"x-env: {SECRET}\r\n".encode() in head + b"\r\n"
        assert b"x-key: other-secret\r\n" in head + b"\r\n"
    kept = b"".join(path.read_bytes() for path in Path("r").rglob("*") if path.is_file())
    for secret in (SECRET, "other-secret"):
        assert secret.encode() not in kept
        assert secret not in done.stdout + done.stderr
    assert json.loads(Path("r/experiment.json").read_text())["scenario"]["header"] == ["X-Env: env:TOKEN", "X-Key:"]


@pytest.mark.usefixtures("unhurried")
def test_a_run_over_mutual_tls(loadgen: Any, ways: tuple[Doors, Path]) -> None:
    found, files = ways
    trust = ["--ca-file", str(files / "ca.pem")]
    own = ["--cert-file", str(files / "client.pem"), "--key-file", str(files / "client.key")]
    asked = ["run", "--target", found.tls, "--ready-timeout", "100ms", *SHORT]
    assert "certificate is not trusted" in refusal(loadgen(*asked, code=3))
    refusal(loadgen(*asked, *trust, code=3))  # the server wants a certificate as well
    all_ok(loadgen(*asked, *trust, *own))


@pytest.mark.usefixtures("unhurried")
def test_a_run_through_a_proxy(loadgen: Any, ways: tuple[Doors, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = ways
    monkeypatch.setenv("HTTP_PROXY", found.proxy)
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    asked = ["run", "--target", HIDDEN, "--ready-timeout", "100ms", *SHORT]
    assert "not known" in refusal(loadgen(*asked, code=3))  # the default transport goes straight there
    found.take_heads()
    all_ok(loadgen(*asked, "--transport", "httpx"))
    assert any(head.startswith(b"post http://hidden.invalid/v1/completions") for head in found.take_heads())
