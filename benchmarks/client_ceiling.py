"""How many streams a second can one core offer and still measure? Ours against an aiohttp and an httpx client.

Each client is pinned to one core and the server (server.c, compiled here) to another. 128-token streams, a token each
10 ms, Poisson arrivals. A rate counts if p99 of the send lag (scheduled instant → the request's last byte at the
server) and p99 of the TTFT error (first token at the client − first token handed to the kernel by the server) are both
below 5 ms, every stream came whole, and every record was written. Both stamps of the server are taken on the same
machine's CLOCK_MONOTONIC. `floor` is a client that reads and forgets: where it fails, the machine or the server is the
limit and no number here says anything about a client. Rates go up in steps until two in a row fail.

    python benchmarks/client_ceiling.py [--clients floor,ours,aiohttp,httpx] [--repeat 3] [--seconds 6]

`user` is ours with `--stamps user`; more clients are aiohttp and httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loadgen.common.loop import run_loop
from loadgen.plan.types import RequestFormat, RunPlan, Schedule, Window
from loadgen.results.journal import Journal
from loadgen.send.api import Endpoint, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run

TOKENS, GAP_MS, WARMUP_S, LIMIT_S = 128, 10, 2.0, 0.005
LADDERS = {
    "floor": [300, 500, 700, 900, 1100, 1300, 1500],
    "ours": [200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200, 1300],
    "user": [200, 300, 400, 500, 600, 700, 800, 900],
    "aiohttp": [50, 100, 150, 200, 250, 300, 350, 400, 450, 500],
    "httpx": [10, 20, 30, 40, 50, 60, 80, 100, 120],
}
BODY = '{"id":%d,"model":"tiny","stream":true,"max_tokens":128,"prompt":[' + ",".join(["1234"] * 200) + "]}"


def schedule_s(rate: float, seconds: float) -> np.ndarray:
    """Poisson arrivals over warm-up and window."""
    rng = np.random.default_rng(1)
    gaps = rng.exponential(1 / rate, round(rate * (WARMUP_S + seconds) * 1.5) + 50)
    at_s = np.cumsum(gaps)
    return at_s[at_s < WARMUP_S + seconds]


# what a client returns: t0 (CLOCK_MONOTONIC ns), {id: its first token likewise} of whole streams, records written
Result = tuple[int, dict[int, int], int]


class RingOfStrings:
    """Bodies for the benchmark: made beforehand, the same for every client."""

    def __init__(self, n: int) -> None:
        self.starved = 0
        self._bodies = [(BODY % i).encode() for i in range(n)]

    def fill(self, now_ns: int, budget_ns: int) -> int:
        return 0

    def take(self, index: int) -> bytes:
        return self._bodies[index]


async def sent(
    url: str, at_s: np.ndarray, path: Path, stamps: Literal["kernel", "user"] | None = None
) -> tuple[int, RunOutput, int]:
    """Our sender: t0 (CLOCK_MONOTONIC ns), what it recorded, and how many rows its journal has."""
    n = at_s.size
    at_ns = (at_s * 1e9).astype(np.int64)
    tokens = np.full(n, TOKENS, dtype=np.int64)
    window_ns = int(at_ns[-1]) + 1
    plan = RunPlan(
        schedule=Schedule(at_ns=at_ns), input_tokens=tokens, output_tokens=tokens, prefix_tokens=tokens * 0,
        prefix_group=tokens * 0 - 1, content_seed=0, format=RequestFormat(), rate=1.0, root_seed=0, workload_sha256="",
        window=Window(warmup_ns=0, window_ns=window_ns, tail_ns=10**10),
    )  # fmt: skip
    clock = LoopClock()
    with Journal(path) as sink:
        endpoint = Endpoint(urls=(url,), path="/v1/completions", model="tiny")
        output = await send_run(
            plan, RingOfStrings(n), endpoint, SendOptions(stamps=stamps, events="prompt"), clock=clock, sink=sink
        )
    t0 = time.monotonic_ns() - clock.now_ns()
    clock.close()
    return t0, output, sum(1 for _ in path.open("rb"))


async def ours(url: str, at_s: np.ndarray, path: Path, stamps: Literal["kernel", "user"] | None = None) -> Result:
    t0, output, records = await sent(url, at_s, path, stamps)
    good = output.requests[output.requests["outcome"] == "ok"]
    first = {int(i): int(ns) + t0 for i, ns in zip(good["index"], good["first_token_ns"], strict=True)}
    facts = output.facts
    print(
        f"    heartbeat p99 {facts.heartbeat_p99_s * 1e3:.2f} ms, peak in active {facts.peak_in_flight}",
        file=sys.stderr,
    )
    return t0, first, records


async def baseline(
    at_s: np.ndarray, path: Path, one: Callable[[int], Coroutine[Any, Any, list[tuple[int, bytes]]]]
) -> Result:
    """A competent open loop around one request: absolute deadlines, a task each, SSE read at the end, GC off."""
    first: dict[int, int] = {}
    rows: list[bytes] = []

    async def go(index: int) -> None:
        reads = await one(index)
        stamps = [at for at, data in reads for _ in range(data.count(b"\n\n"))]
        events = [json.loads(e[6:]) for e in b"".join(d for _, d in reads).split(b"\n\n")[:-2]]
        if sum(bool(e["choices"]) for e in events) == TOKENS:
            first[index] = stamps[0]
            rows.append(json.dumps([index, stamps]).encode())

    tasks = []
    gc.collect()
    gc.freeze()
    gc.disable()
    t0 = time.monotonic_ns()
    for index, due_s in enumerate(at_s):
        wait = due_s - (time.monotonic_ns() - t0) / 1e9
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(go(index)))
    done, pending = await asyncio.wait(tasks, timeout=10)
    for task in pending:
        task.cancel()
    for task in done:
        if task.exception() is not None:
            print(f"    {task.exception()!r}", file=sys.stderr)
            break
    await asyncio.to_thread(path.write_bytes, b"\n".join(rows) + b"\n")
    return t0, first, len(rows)


async def aiohttp_client(url: str, at_s: np.ndarray, path: Path) -> Result:
    import aiohttp

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:

        async def one(index: int) -> list[tuple[int, bytes]]:
            reads = []
            async with session.post(url + "/v1/completions", data=(BODY % index).encode()) as response:
                async for data in response.content.iter_any():
                    reads.append((time.monotonic_ns(), data))
            return reads

        return await baseline(at_s, path, one)


async def httpx_client(url: str, at_s: np.ndarray, path: Path) -> Result:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

        async def one(index: int) -> list[tuple[int, bytes]]:
            reads = []
            async with client.stream("POST", url + "/v1/completions", content=(BODY % index).encode()) as response:
                async for data in response.aiter_raw():
                    reads.append((time.monotonic_ns(), data))
            return reads

        return await baseline(at_s, path, one)


async def floor(url: str, at_s: np.ndarray, path: Path) -> Result:
    """What the machine itself allows: the same reads on the same loop, stamped once a request, thrown away unparsed."""
    buffer = memoryview(bytearray(1 << 18))
    loop = asyncio.get_running_loop()
    free: list[Connection] = []
    first: dict[int, int] = {}
    over = asyncio.Event()
    whole = 0

    class Connection(asyncio.BufferedProtocol):
        index = -1

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            transport.set_write_buffer_limits(high=0)

        def get_buffer(self, sizehint: int) -> memoryview:
            return buffer

        def buffer_updated(self, nbytes: int) -> None:
            nonlocal whole
            if self.index not in first and b"data:" in bytes(buffer[:nbytes]):
                first[self.index] = time.monotonic_ns()
            if buffer[nbytes - 5 : nbytes] == b"0\r\n\r\n":
                free.append(self)
                whole += 1
                if whole == at_s.size:
                    over.set()

    async def go(index: int) -> None:
        if free:
            connection = free.pop()
        else:
            port = int(url.rpartition(":")[2])
            _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        connection.index = index
        body = (BODY % index).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.transport.write(head + body)

    tasks = set()
    gc.disable()
    t0 = time.monotonic_ns()
    for index, due_s in enumerate(at_s):
        wait = due_s - (time.monotonic_ns() - t0) / 1e9
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.add(task := asyncio.create_task(go(index)))
        task.add_done_callback(tasks.discard)
    await asyncio.wait_for(over.wait(), 20)
    return t0, first, whole


CLIENTS = {
    "floor": floor,
    "ours": ours,
    "user": partial(ours, stamps="user"),
    "aiohttp": aiohttp_client,
    "httpx": httpx_client,
}


def lean_server(folder: Path, requests: int, *, core: int) -> subprocess.Popen[str]:
    """server.c, compiled and started on a core of its own; its first line is its port."""
    binary = folder / "server"
    source = Path(__file__).with_name("server.c")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", binary, source], check=True)
    return subprocess.Popen(
        [binary, str(TOKENS), str(GAP_MS), str(requests)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def told(server: subprocess.Popen[str]) -> np.ndarray:
    """Stop it; a row a request: id, and when it was received, its first and its last token written (monotonic ns)."""
    assert server.stdout is not None
    server.send_signal(signal.SIGTERM)
    rows = [line.split() for line in server.stdout]
    server.wait()
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


class Steady:
    """The share of a core that this process uses while load comes and goes alike: after warm-up, until it ends."""

    def __init__(self, seconds: float) -> None:
        self._samples: list[tuple[float, float]] = []
        self._waits = (WARMUP_S + 0.5, seconds - 0.5)
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        for wait_s in self._waits:
            time.sleep(wait_s)
            self._samples.append((time.monotonic(), time.process_time()))

    def cpu_share(self) -> float:
        """Of one core, user and system; NaN for a run that ended before."""
        if len(self._samples) < 2:
            return float("nan")
        (began_s, before_s), (ended_s, after_s) = self._samples
        return (after_s - before_s) / (ended_s - began_s)


def one_run(client: str, rate: float, seconds: float, cores: tuple[int, int]) -> None:
    """In a process of its own: one client at one rate; prints one line of JSON."""
    at_s = schedule_s(rate, seconds)
    with tempfile.TemporaryDirectory() as folder:
        server = lean_server(Path(folder), at_s.size, core=cores[1])
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        os.sched_setaffinity(0, {cores[0]})
        steady = Steady(seconds)
        t0, first, records = run_loop(CLIENTS[client](url, at_s, Path(folder) / "records.jsonl"))
        cpu_share = steady.cpu_share()
        truth = told(server)
    kept = at_s[truth[:, 0]] >= WARMUP_S
    lag = np.sort((truth[:, 1] - t0) / 1e9 - at_s[truth[:, 0]])
    error = np.sort([(first[i] - ns) / 1e9 for i, _, ns, _ in truth[kept].tolist() if i in first])

    def p99(values: np.ndarray) -> float:
        return float(values[-(-99 * values.size // 100) - 1]) if values.size else float("inf")

    result = {
        "client": client, "rate": rate, "requests": int(at_s.size), "whole": len(first), "records": records,
        "lag_p99_ms": p99(lag) * 1e3, "ttft_error_p99_ms": p99(error) * 1e3,
        "ttft_error_p50_ms": float(np.median(error)) * 1e3 if error.size else float("inf"),
        "cpu_share": cpu_share, "cpu_us_per_stream": cpu_share / rate * 1e6,
    }  # fmt: skip
    result["good"] = bool(
        result["whole"] == records == at_s.size
        and max(result["lag_p99_ms"], result["ttft_error_p99_ms"]) < LIMIT_S * 1e3
    )
    print(json.dumps(result))


def ceiling(client: str, seconds: float) -> float:
    """Highest rate of the ladder that holds, before two in a row fail."""
    best, failed = 0.0, 0
    for rate in LADDERS[client]:
        command = [sys.executable, __file__, "--one", client, str(rate), "--seconds", str(seconds)]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        run = json.loads(out)
        print(
            f"  {client:8} {rate:5g}/s  lag p99 {run['lag_p99_ms']:8.2f} ms"
            f"  TTFT error p50 {run['ttft_error_p50_ms']:6.2f} p99 {run['ttft_error_p99_ms']:8.2f} ms"
            f"  whole {run['whole']}/{run['requests']}"
            f"  CPU {run['cpu_share']:4.0%}, {run['cpu_us_per_stream']:.0f} us a stream"
            f"  {'holds' if run['good'] else 'fails'}",
            flush=True,
        )
        best, failed = (rate, 0) if run["good"] else (best, failed + 1)
        if failed == 2:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="floor,ours,aiohttp,httpx")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured window of each step")
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "RATE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("two cores are needed: one for the client, one for the server")
    if arguments.one:
        one_run(arguments.one[0], float(arguments.one[1]), arguments.seconds, (cores[0], cores[1]))
        return
    ceilings: dict[str, list[float]] = {}
    for repeat in range(arguments.repeat):
        for client in arguments.clients.split(","):
            print(f"run {repeat + 1} of {arguments.repeat}: {client}", flush=True)
            ceilings.setdefault(client, []).append(ceiling(client, arguments.seconds))
    print("\nhighest rate with p99 send lag and p99 TTFT error < 5 ms, requests/s on one core")
    for client, found in ceilings.items():
        print(f"  {client:8} best {max(found):5g}  median {statistics.median(found):5g}  all {found}")
    mine = statistics.median(ceilings.get("ours", [0]))
    for client, found in ceilings.items():
        if client != "ours" and statistics.median(found):
            print(f"  ours / {client}: {mine / statistics.median(found):.1f} (medians)")


if __name__ == "__main__":
    main()
