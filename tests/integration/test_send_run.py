"""Whole runs of the sender over real sockets: framing, failures, lateness on both event loops, the rest on one."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pytest
import trustme
import uvloop

from analysis.records import derive
from analysis.schema import EVENT_COLUMNS, REQUEST_COLUMNS
from analysis.slo import Slo
from analysis.stationarity import area_s
from loadgen.common.errors import TargetUnreachable, UsageError
from loadgen.common.tls import Tls
from loadgen.plan.types import RunPlan
from loadgen.send.api import Endpoint, LiveCounts, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from tests.fakes.plans import Bodies, plan_at
from tests.fakes.server import STREAM_HEAD, FakeServer, Request, Script, answering, serving, stream
from tests.fakes.streams import chunked, completion_events, event, text

pytestmark = pytest.mark.realtime

T = TypeVar("T")
Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
# where the loop only calls what is tested, which is the same code on either: the one that load is sent on
on_one_loop = pytest.mark.parametrize("loop_factory", [LOOPS["uvloop"]], ids=["uvloop"])
BODY = b"".join(completion_events(4))


def run_on(loop: Loop, main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


@pytest.fixture(autouse=True)
def _small_heap() -> None:
    gc.freeze()  # each run collects before it starts, and this process is full of what pytest and pandas keep


@pytest.fixture(params=list(LOOPS))
def loop_factory(request: pytest.FixtureRequest) -> Loop:
    return LOOPS[request.param]


async def send(
    server: FakeServer | str, plan: RunPlan, *, endpoint: dict[str, Any] | None = None, run: Any = None, **options: Any
) -> RunOutput:
    url = server if isinstance(server, str) else server.url
    clock = LoopClock()
    try:
        return await send_run(
            plan,
            Bodies(pad="x" * 1000),
            Endpoint(**{"urls": (url,), "path": "/v1/completions", "model": "m"} | (endpoint or {})),
            SendOptions(**options),
            clock=clock,
            **(run or {}),
        )
    finally:
        clock.close()


async def answered(
    script: Script, n: int = 3, *, gap_ms: float = 20, **options: Any
) -> tuple[pd.DataFrame, FakeServer]:
    """Requests of a run against a script, and the server that saw them."""
    plan = plan_at([5 + gap_ms * i for i in range(n)], window_ms=10 + gap_ms * n)
    async with serving(script) as server:
        output = await send(server, plan, **options)
    conserved(output)
    return output.requests, server


def conserved(output: RunOutput) -> None:
    facts = output.facts
    assert facts.sent == facts.due == (output.requests["scheduled_ns"] < facts.stop_ns).sum()
    assert facts.live_area_s == pytest.approx(area_s(output.requests, until_ns=facts.stop_ns), rel=1e-6)


def test_a_run(loop_factory: Loop) -> None:
    async def main() -> tuple[RunOutput, FakeServer, list[tuple[int, int]], list[Any]]:
        seen: list[tuple[int, int]] = []
        rows: list[Any] = []

        class Sink:
            def add(self, row: Any, events: list[tuple[int, int]]) -> None:
                rows.append((dict(zip(REQUEST_COLUMNS, row, strict=True)), events))

        def progress(live: LiveCounts) -> None:
            seen.append((live.due, live.ok))

        plan = plan_at([10 * i for i in range(1, 31)], window_ms=305)
        async with serving(stream(gap_s=0.002)) as server:
            output = await send(server, plan, slo=Slo(ttft_s=1, tpot_s=1), run={"sink": Sink(), "progress": progress})
            return output, server, seen, rows

    output, server, seen, rows = run_on(loop_factory, main())
    requests = output.requests
    assert list(requests.columns) == list(REQUEST_COLUMNS)
    assert list(output.events.columns) == list(EVENT_COLUMNS)
    assert [str(t) for t in output.events.dtypes] == list(EVENT_COLUMNS.values())
    assert list(requests["outcome"]) == ["ok"] * 30
    assert len(output.events) == 120
    assert set(requests["worker"]) == {0}
    assert (requests["output_tokens"] == 4).all()
    order = ["scheduled_ns", "released_ns", "sent_ns", "headers_ns", "first_token_ns", "last_token_ns", "ended_ns"]
    assert (requests[order].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert (requests["connect_ns"] > 0).sum() == server.connections < 30  # kept alive
    assert {r["connect_ns"] for r, _ in rows if r["connect_ns"] == 0} == {0}
    assert len(rows) == 30
    assert all(len(events) == 4 for _, events in rows)
    assert seen[-1] == (30, 30)
    conserved(output)
    derived = derive(requests)
    assert derived["send_lag_s"].median() < 0.005
    facts = output.facts
    assert (facts.cohort_due, facts.due, facts.open_loop, facts.encode_starved) == (30, 30, True, 0)
    assert 0 < facts.peak_in_flight < facts.connection_limit
    head = server.requests[0].head.lower()
    assert head.startswith(b"post /v1/completions http/1.1\r\nhost: 127.0.0.1:")
    assert b"accept-encoding: identity" in head


HEAD_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(BODY)
HEAD_EOF = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
HEAD_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
GOOD = {
    "chunk an event": stream(),
    "crlf": stream(crlf=True),
    "one chunk": answering(STREAM_HEAD + chunked(BODY) + b"0\r\n\r\n"),
    "byte by byte": answering(STREAM_HEAD + chunked(BODY[:9]) + chunked(BODY[9:]) + b"0\r\n\r\n", bytewise=True),
    "content-length": answering(HEAD_LENGTH + BODY),
    "content-length, closed": answering(HEAD_LENGTH + BODY, keep=False),
    "until closed": answering(HEAD_EOF + BODY, keep=False),
    "connection: close": answering(HEAD_CLOSE + BODY, keep=False),
    "early hints": answering(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + HEAD_LENGTH + BODY),
    "continue": answering(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD_LENGTH + BODY),
}


def in_turn(scripts: Iterable[Script]) -> Script:
    """Another script for each request of a run, in schedule order: a run costs more than a request."""
    known = list(scripts)

    async def script(request: Request) -> None:
        index = int(request.body.split(b'"index":')[1].split(b",")[0])
        await known[index](request)

    return script


async def each(scripts: dict[str, Script], **options: Any) -> tuple[pd.DataFrame, FakeServer]:
    """One run with one request for each script; the table's rows are named after them."""
    requests, server = await answered(in_turn(scripts.values()), len(scripts), **options)
    return requests.set_axis(list(scripts)), server


def test_every_framing_of_a_good_answer(loop_factory: Loop) -> None:
    twice = {f"{name} {time}": script for name, script in GOOD.items() for time in ("first", "again")}
    requests, server = run_on(loop_factory, each(twice))
    assert dict(requests["outcome"]) == dict.fromkeys(twice, "ok"), list(requests["error"])
    assert set(requests["output_tokens"]) == set(requests["token_events"]) == {4}
    assert len(server.requests) == len(twice)


def json_answer(status: bytes, body: bytes) -> Script:
    return answering(
        b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
    )


async def _reset(request: Request) -> None:
    await request.write(STREAM_HEAD + chunked(event(text("a"))))
    await asyncio.sleep(0.02)
    request.reset()


async def _silent(request: Request) -> None:
    request.keep = False


FIRST = chunked(event(text("a")))
BAD: dict[str, tuple[Script, str, str]] = {
    "429": (json_answer(b"429 Too Many Requests", b'{"error":"slow"}'), "rejected", 'HTTP 429: {"error":"slow"}'),
    "503": (json_answer(b"503 Service Unavailable", b"busy"), "rejected", "HTTP 503: busy"),
    "500": (json_answer(b"500 Oops", b"x\x1b[31m"), "http_error", "HTTP 500: x\\x1b[31m"),
    "404": (json_answer(b"404 Not Found", b"no model"), "workload_error", "HTTP 404: no model"),
    "fin before the answer": (_silent, "connection_lost", "before it answered"),
    "fin in the stream": (answering(STREAM_HEAD + FIRST, keep=False), "truncated", "in the middle"),
    "fin in the headers": (answering(STREAM_HEAD[:40], keep=False), "connection_lost", ""),
    "rst in the stream": (_reset, "connection_lost", ""),
    "no terminal chunk": (answering(STREAM_HEAD + chunked(BODY), keep=False), "truncated", ""),
    "not http": (answering(b"SSH-2.0-OpenSSH\r\n", keep=False), "bad_response", "not HTTP"),
    "html": (answering(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"),
             "bad_response", "<html>"),
    "gzip": (answering(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
             "bad_response", "compressed"),
    "error event": (answering(STREAM_HEAD + FIRST + chunked(b'data: {"error":{"message":"died"}}\n\n')
                              + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"), "stream_error", "died"),
    "too few tokens": (stream(3), "short_output", "3 of 4"),
}  # fmt: skip


def failures(loop: Loop, names: list[str], **options: Any) -> pd.DataFrame:
    requests, server = run_on(loop, each({name: BAD[name][0] for name in names}, **options))
    assert dict(requests["outcome"]) == {name: BAD[name][1] for name in names}, dict(requests["error"])
    assert len(server.requests) == len(names)  # never a retry
    return requests


def test_every_failure_is_one_request_and_one_outcome(loop_factory: Loop) -> None:
    requests = failures(loop_factory, list(BAD))
    assert [name for name in BAD if BAD[name][2] not in requests["error"][name]] == []
    assert all(error.isprintable() and len(error) <= 200 for error in requests["error"])


def test_bytes_after_an_answer_spoil_only_the_connection(loop_factory: Loop) -> None:
    requests, server = run_on(loop_factory, answered(answering(HEAD_LENGTH + BODY + b"junk")))
    assert list(requests["outcome"]) == ["ok"] * 3
    assert server.connections == 3


def test_a_refused_connection(loop_factory: Loop) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else gets the port
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        output = run_on(loop_factory, send(url, plan_at([5, 10], window_ms=50)))
    assert list(output.requests["outcome"]) == ["connect_error"] * 2
    assert list(output.requests["sent_ns"]) == [-1, -1]
    conserved(output)


@on_one_loop
def test_a_stalled_server_shows_the_whole_ramp_of_waits(loop_factory: Loop) -> None:
    stalled_until = 0.0

    async def script(request: Request) -> None:
        nonlocal stalled_until
        now = asyncio.get_running_loop().time()
        if request.number == 5:
            stalled_until = now + 0.4
        await asyncio.sleep(max(stalled_until - now, 0))
        await stream()(request)

    requests, _ = run_on(loop_factory, answered(script, 60, gap_ms=10))
    ttft = derive(requests)["ttft_s"]
    ramp = ttft[5:45].to_numpy()
    expected = [0.4 - 0.01 * i for i in range(40)]
    assert abs(ramp - expected).max() < 0.06  # each of the 40 requests due in the stall, with its own wait
    assert ttft[:5].max() < 0.1
    assert ttft[50:].max() < 0.1


def test_a_blocked_event_loop_is_seen_at_low_cpu(loop_factory: Loop) -> None:
    async def main() -> tuple[RunOutput, float]:
        plan = plan_at([10 * i for i in range(1, 101)], window_ms=1000)
        async with serving(stream()) as server:
            asyncio.get_running_loop().call_later(0.4, time.sleep, 0.3)
            cpu = time.process_time()
            output = await send(server, plan)
            return output, time.process_time() - cpu

    output, cpu_s = run_on(loop_factory, main())
    assert output.facts.heartbeat_max_s > 0.28
    assert output.facts.heartbeat_p99_s > 0.1
    assert cpu_s < 0.8
    lag = derive(output.requests)["send_lag_s"]
    assert lag.max() > 0.25
    assert len(output.requests) == 100  # nothing skipped
    conserved(output)


@contextmanager
def descriptor_limit(extra: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_hidden_connection_cap_is_seen(loop_factory: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.send.session.raise_descriptor_limit", lambda: None)

    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent, descriptor_limit(40):
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        plan = plan_at([5 * i for i in range(1, 61)], window_ms=310)
        output = run_on(loop_factory, send(url, plan, timeout_s=0.5))
    conserved(output)
    facts = output.facts
    assert facts.connection_limit is not None
    assert facts.peak_in_flight >= facts.connection_limit
    assert set(output.requests["outcome"]) == {"connect_error", "timeout"}


@on_one_loop
def test_a_concurrency_cap_is_logged_and_counted(loop_factory: Loop) -> None:
    requests, _ = run_on(loop_factory, answered(stream(first_s=0.1), 4, gap_ms=1, max_concurrency=1))
    waits = (requests["admitted_ns"] - requests["released_ns"]) / 1e9
    assert [round(w, 1) for w in waits] == [0.0, 0.1, 0.2, 0.3]
    derived = derive(requests)
    assert derived["send_lag_s"].max() < 0.05
    assert derived["ttft_s"][3] > 0.39


def test_a_time_out(loop_factory: Loop) -> None:
    requests, _ = run_on(loop_factory, answered(stream(first_s=5), timeout_s=0.2))
    assert list(requests["outcome"]) == ["timeout"] * 3
    assert ((requests["ended_ns"] - requests["scheduled_ns"]) / 1e9).between(0.2, 0.3).all()


@on_one_loop
def test_an_idle_connection_is_not_reused_past_its_time(loop_factory: Loop) -> None:
    kept, server = run_on(loop_factory, answered(stream(), gap_ms=60))
    assert server.connections == 1
    assert list(kept["connect_ns"] > 0) == [True, False, False]
    _, server = run_on(loop_factory, answered(stream(), gap_ms=60, keepalive_s=0.03))
    assert server.connections == 3


def test_a_body_larger_than_the_socket_buffer_is_sent_when_its_last_byte_is(loop_factory: Loop) -> None:
    async def main() -> pd.DataFrame:
        async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.3)
            await reader.read(1 << 16)
            while not (await reader.read(1 << 20)).endswith(b'"}'):
                pass
            writer.write(HEAD_LENGTH + BODY)
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(slow_reader, "127.0.0.1", 0, limit=1 << 16)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        clock = LoopClock()
        output = await send_run(
            plan_at([5], window_ms=50),
            Bodies(pad="x" * 30_000_000),
            Endpoint(urls=(url,), path="/", model="m"),
            SendOptions(),
            clock=clock,
        )
        clock.close()
        listener.close()
        return output.requests

    requests = run_on(loop_factory, main())
    assert list(requests["outcome"]) == ["ok"]
    assert requests["sent_ns"][0] / 1e9 > 0.3


def test_tls(loop_factory: Loop, tmp_path: Path) -> None:
    ca = trustme.CA()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(server_context)
    ca.configure_trust(server_context)
    server_context.verify_mode = ssl.CERT_REQUIRED
    mine = ca.issue_cert("client")
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "me.pem"))
    mine.private_key_pem.write_to_path(str(tmp_path / "me.key"))
    files = {"cert_file": str(tmp_path / "me.pem"), "key_file": str(tmp_path / "me.key")}

    async def main(files: dict[str, Any]) -> list[str]:
        async with serving(stream(), context=server_context) as server:
            output = await send(server, plan_at([10, 60], window_ms=100), endpoint={"tls": Tls(**files)})
            conserved(output)
            return list(output.requests["outcome"])

    good = files | {"ca_file": str(tmp_path / "ca.pem")}
    assert run_on(loop_factory, main(good)) == ["ok"] * 2
    assert run_on(loop_factory, main(files | {"insecure": True})) == ["ok"] * 2
    assert run_on(loop_factory, main(files)) == ["connect_error"] * 2  # a certificate nobody vouches for
    with pytest.raises(UsageError, match="TLS"):
        run_on(loop_factory, main({"ca_file": str(tmp_path / "absent.pem")}))


@on_one_loop
def test_ipv6_and_several_urls(loop_factory: Loop) -> None:
    async def main() -> tuple[RunOutput, int, int]:
        async with serving(stream(), host="::1") as six, serving(stream()) as four:
            urls = (f"http://[::1]:{six.port}", four.url + "/prefix/")
            output = await send(six, plan_at([5, 10, 15, 20], window_ms=30), endpoint={"urls": urls})
            assert four.requests[0].head.startswith(b"POST /prefix/v1/completions ")
            return output, len(six.requests), len(four.requests)

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    output, six, four = run_on(loop_factory, main())
    assert (six, four) == (2, 2)
    assert list(output.requests["target"]) == [0, 1, 0, 1]
    assert set(output.requests["outcome"]) == {"ok"}


@on_one_loop
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_the_user_stops_a_run(loop_factory: Loop, transport: str) -> None:
    async def main() -> RunOutput:
        stop = asyncio.Event()

        def progress(live: LiveCounts) -> None:
            if live.due:
                stop.set()

        async with serving(stream(first_s=9)) as server:
            plan = plan_at([10 * i for i in range(1, 500)], window_ms=5000)
            return await send(server, plan, run={"stop": stop, "progress": progress}, transport=transport)

    output = run_on(loop_factory, main())
    assert output.facts.stop_ns < 2e9
    assert set(output.requests["outcome"]) == {"censored"}
    conserved(output)


@on_one_loop
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_what_is_due_when_an_early_fail_stops_the_load_is_sent(loop_factory: Loop, transport: str) -> None:
    async def main() -> RunOutput:
        async with serving(stream(first_s=9)) as server:
            # the sixth miss is certain at 106 ms; ten requests are due in the wake-up that sees it and have 100 ms to
            # leave. A hundred of them would ask how fast httpx is, which needs a millisecond or more for each
            plan = plan_at([1, 2, 3, 4, 5, 6, *[110] * 10, 9000], window_ms=9000)
            slo = Slo(ttft_s=0.1)
            return await send(server, plan, slo=slo, early_fail_misses=5, transport=transport)

    output = run_on(loop_factory, main())
    assert output.facts.stopped_early
    assert output.facts.due == 16
    conserved(output)


@on_one_loop
@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_stream_by_another_name_is_watched_for_its_first_token(loop_factory: Loop, transport: str) -> None:
    head = STREAM_HEAD.replace(b"text/event-stream; charset=utf-8", b"application/json")

    async def script(request: Request) -> None:
        await request.write(head + chunked(completion_events(4)[0]))
        await asyncio.sleep(0.5)
        await request.write(chunked(b"".join(completion_events(4)[1:])) + b"0\r\n\r\n")

    async def main() -> RunOutput:
        async with serving(script) as server:
            return await send(server, plan_at([10, 20], window_ms=30), slo=Slo(ttft_s=0.25), transport=transport)

    output = run_on(loop_factory, main())
    assert list(output.requests["outcome"]) == ["ok", "ok"]
    assert (derive(output.requests)["ttft_s"] < 0.25).all()


@on_one_loop
def test_garbage_collection_is_restored_even_after_an_error(loop_factory: Loop) -> None:
    class Broken(Bodies):
        def take(self, index: int) -> bytes:
            if index == 1:
                raise RuntimeError("no body")
            return super().take(index)

    class Full:
        def add(self, row: Any, events: list[tuple[int, int]]) -> None:
            raise OSError("disk full")

    async def main(bodies: Bodies, sink: Any) -> None:
        async with serving(stream()) as server:
            clock = LoopClock()
            endpoint = Endpoint(urls=(server.url,), path="/", model="m")
            try:
                await send_run(
                    plan_at([0, 20], window_ms=9000), bodies, endpoint, SendOptions(), clock=clock, sink=sink
                )
            finally:
                clock.close()

    with pytest.raises(RuntimeError, match="no body"):
        run_on(loop_factory, main(Broken(), None))
    with pytest.raises(OSError, match="disk full"):
        run_on(loop_factory, main(Bodies(), Full()))
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("url", ["ftp://x", "http://", "127.0.0.1:8000", "http://h:99999"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="target"):
        asyncio.run(send(url, plan_at([1])))


def test_an_unknown_name() -> None:
    with pytest.raises(TargetUnreachable, match="no-such-host"):
        asyncio.run(send("http://no-such-host.invalid:1", plan_at([1])))


def test_secrets_stay_out_of_representations_and_bad_headers_are_refused() -> None:
    endpoint = Endpoint(urls=("http://127.0.0.1:1",), path="/", model="m", headers={"authorization": "Bearer s3cret"})
    assert "s3cret" not in repr(endpoint)
    bad = replace(endpoint, headers={"x": "s3cret\r\ny: z"})
    with pytest.raises(UsageError) as raised:
        asyncio.run(send("http://127.0.0.1:1", plan_at([1]), endpoint={"headers": bad.headers}))
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("transport", ["wire", "httpx"])
def test_a_key_that_a_server_repeats_is_not_kept(transport: str) -> None:
    said = b'{"error": {"message": "Incorrect API key provided: sk-very-secret-4711"}}'
    head = b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said)
    headers = {"authorization": "Bearer sk-very-secret-4711"}
    requests, _ = asyncio.run(answered(answering(head + said), 1, transport=transport, endpoint={"headers": headers}))
    assert list(requests["outcome"]) == ["workload_error"]
    assert "Incorrect API key provided: [redacted]" in requests["error"][0]
    assert "secret" not in requests["error"][0]


# ---- httpx -----------------------------------------------------------------------------------------------------------


def test_httpx_reads_the_same_answers() -> None:
    requests, server = asyncio.run(each(GOOD, transport="httpx"))
    assert dict(requests["outcome"]) == dict.fromkeys(GOOD, "ok"), list(requests["error"])
    assert set(requests["token_events"]) == {4}
    assert (requests["sent_ns"] >= requests["released_ns"]).all()
    assert len(server.requests) == len(GOOD)


def test_httpx_sees_the_same_failures() -> None:
    # what it cannot tell apart: it undoes gzip unasked, and calls any close before a whole head a disconnect
    failures(
        asyncio.new_event_loop,
        [n for n in BAD if n not in ("gzip", "fin in the headers", "not http")],
        transport="httpx",
    )


def test_httpx_logs_connects_and_time_outs() -> None:
    requests, _ = asyncio.run(answered(stream(first_s=5), 2, transport="httpx", timeout_s=0.2))
    assert list(requests["outcome"]) == ["timeout"] * 2
    assert (requests["connect_ns"] > 0).all()
    assert (requests["sent_ns"] > 0).all()
