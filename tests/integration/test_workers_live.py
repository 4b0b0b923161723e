"""One plan sent by several processes over real sockets: the same run as from one, and what happens when one dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from analysis.judge import judge_run
from analysis.slo import Slo
from analysis.stationarity import area_s
from analysis.verdict import Criteria, RunFacts
from loadgen.common.errors import Aborted, TargetUnreachable
from loadgen.common.loop import run_loop
from loadgen.common.members import JsonMembers
from loadgen.experiment.workers.pool import Workers, opened_workers
from loadgen.plan.bodies import Bodies, BodyRing
from loadgen.plan.types import RunPlan
from loadgen.results.journal import Journal, read
from loadgen.send.api import Endpoint, LiveCounts, RunOutput, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from tests.fakes.cli import LOADGEN
from tests.fakes.plans import plan_at
from tests.fakes.processes import running
from tests.fakes.server import FakeServer, Request, Script, in_thread, serving, stream

pytestmark = pytest.mark.realtime

T = TypeVar("T")
SLOT = JsonMembers.of(model="m")


def limited(main: Coroutine[Any, Any, T]) -> T:
    return run_loop(asyncio.wait_for(main, 30))


def endpoint(server: FakeServer) -> Endpoint:
    return Endpoint(urls=(server.url,), path="/v1/completions", model="m")


async def together(
    workers: Workers, server: FakeServer, plan: RunPlan, *, run: dict[str, Any] | None = None, **options: Any
) -> RunOutput:
    settings: dict[str, Any] = {"sink": None, "progress": lambda _: None, "stop": asyncio.Event()} | (run or {})
    with closing(LoopClock()) as clock:
        return await workers.send(plan, SLOT, endpoint(server), SendOptions(**options), clock=clock, **settings)


async def alone(server: FakeServer, plan: RunPlan) -> RunOutput:
    with closing(LoopClock()) as clock:
        return await send_run(plan, BodyRing(Bodies(plan, SLOT)), endpoint(server), SendOptions(), clock=clock)


def conserved(output: RunOutput) -> None:
    facts = output.facts
    assert facts.sent == facts.due == (output.requests["scheduled_ns"] < facts.stop_ns).sum() == len(output.requests)
    assert facts.live_area_s == pytest.approx(area_s(output.requests, until_ns=facts.stop_ns), rel=1e-6)


async def hanging(request: Request) -> None:
    await request.gone()


def on_servers(script: Script, main: Callable[[FakeServer], Awaitable[T]]) -> T:
    async def run() -> T:
        async with serving(script) as server:
            return await main(server)

    return limited(run())


def test_two_processes_send_the_run_that_one_sends(tmp_path: Path) -> None:
    plan = plan_at([5 * i for i in range(80)], window_ms=400)
    counts: list[LiveCounts] = []

    async def main(server: FakeServer) -> None:
        one = await alone(server, plan)
        bodies = [sorted(request.body for request in server.requests)]
        async with opened_workers(2) as workers:
            pids = workers.pids
            for name in ("a", "b"):  # the processes stay for the next run
                server.requests.clear()
                with Journal(tmp_path / name) as journal:
                    run = {"sink": journal, "progress": counts.append}
                    two = await together(workers, server, plan, run=run)
                bodies.append(sorted(request.body for request in server.requests))
                conserved(two)
            assert workers.pids == pids
            rows = [row for worker in range(2) for row in read(journal.part(worker))]
        assert bodies[0] == bodies[1] == bodies[2]
        assert two.requests["index"].tolist() == list(range(80))
        assert (two.requests["worker"] == two.requests["index"] % 2).all()
        planned = ["index", "scheduled_ns", "outcome", "input_tokens_planned", "output_tokens", "token_events"]
        assert two.requests[planned].equals(one.requests[planned])
        assert two.requests.dtypes.equals(one.requests.dtypes)
        assert two.events[["index", "tokens"]].equals(one.events[["index", "tokens"]])
        assert (two.requests["released_ns"] >= two.requests["scheduled_ns"]).all()
        assert sorted(values[0] for values, _ in rows) == list(range(80))
        assert two.facts.cohort_due == one.facts.cohort_due == 80
        assert counts[-1].ok == 80

    on_servers(stream(gap_s=0.002), main)


def test_a_dead_process_makes_its_run_invalid_and_the_next_one_gets_another() -> None:
    plan = plan_at([5 * i for i in range(400)], window_ms=2000)

    async def main(server: FakeServer) -> None:
        async with opened_workers(2) as workers:
            killed: list[int] = []

            def kill(counts: LiveCounts) -> None:
                if counts.ok > 20 and not killed:
                    killed.append(workers.pids[1])
                    os.kill(killed[0], signal.SIGKILL)

            output = await together(workers, server, plan, run={"progress": kill})
            assert output.facts.stop_ns < 1.8e9  # the rest is not sent
            assert output.facts.workers_lost == 1
            assert output.facts.due > output.facts.sent
            assert output.facts.cohort_due == 400
            verdict = judge_run(output.requests, RunFacts(sender=output.facts), Criteria(slo=Slo(e2e_s=5)))
            assert (verdict.status, verdict.blame) == ("INVALID", "client")
            assert "1 sending workers died" in [finding.text for finding in verdict.findings]
            again = await together(workers, server, plan_at([1, 2, 3], window_ms=10))
            conserved(again)
            assert killed[0] not in workers.pids
            assert len(workers.pids) == 2

    on_servers(stream(), main)


def test_misses_of_all_processes_together_end_a_run_that_cannot_pass() -> None:
    plan = plan_at([10 * i for i in range(500)], window_ms=5000)

    async def main(server: FakeServer) -> RunOutput:
        async with opened_workers(2) as workers:
            return await together(workers, server, plan, slo=Slo(ttft_s=0.1), early_fail_misses=9, timeout_s=20)

    output = on_servers(hanging, main)
    conserved(output)
    assert output.facts.stopped_early
    missed = output.requests[output.requests["certain_miss"] == "ttft"]
    assert missed["worker"].value_counts().min() <= 9 < len(missed)  # no process alone had as many
    assert output.facts.stop_ns < 1.5e9


def test_the_user_s_stop_ends_all_of_them_at_one_instant() -> None:
    async def main(server: FakeServer) -> tuple[RunOutput, float, tuple[int, ...]]:
        stop, stopped_s = asyncio.Event(), 0.0

        def progress(counts: LiveCounts) -> None:
            nonlocal stopped_s
            if counts.due > 20 and not stop.is_set():
                stop.set()
                stopped_s = time.monotonic()

        async with opened_workers(2) as workers:
            pids = workers.pids
            run = {"stop": stop, "progress": progress}
            output = await together(workers, server, plan_at(range(0, 9000, 10), window_ms=9000), run=run)
            return output, time.monotonic() - stopped_s, pids

    output, took_s, pids = on_servers(hanging, main)
    conserved(output)
    assert took_s < 0.8
    assert not set(pids) & set(running("workers.process"))


def test_what_one_process_refuses_is_said_before_any_load(tmp_path: Path) -> None:
    async def main(server: FakeServer) -> None:
        plan = plan_at([1, 2], window_ms=10)
        nowhere = Endpoint(urls=("http://no.such.name.invalid:1",), path="/", model="m")
        stopped = asyncio.Event()
        stopped.set()
        async with opened_workers(2) as workers:
            with closing(LoopClock()) as clock:
                settings: dict[str, Any] = {"clock": clock, "sink": None, "progress": lambda _: None}
                with pytest.raises(TargetUnreachable, match=r"no\.such\.name"):
                    await workers.send(plan, SLOT, nowhere, SendOptions(), **settings, stop=asyncio.Event())
                with pytest.raises(Aborted, match="before the load began"):
                    await workers.send(plan, SLOT, endpoint(server), SendOptions(), **settings, stop=stopped)
            with Journal(tmp_path / "journal.jsonl") as journal:
                journal.part(1).touch()  # the second process cannot create its own
                with pytest.raises(FileExistsError, match=r"journal-1\.jsonl"):
                    await together(workers, server, plan, run={"sink": journal})
            conserved(await together(workers, server, plan))
        assert len(server.requests) == 2

    on_servers(stream(), main)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path: Path, how: signal.Signals) -> None:
    async def script(request: Request) -> None:
        models = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
        if request.path == "/v1/models":
            await request.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (len(models), models)
            )
        elif b"POST" in request.head[:4]:
            await stream(tokens=4)(request)
        else:
            await request.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    with in_thread(script) as url:
        command = [*LOADGEN, "run", "--target", url, "--workers", "2", "--rate", "20", "--warmup", "1s", "--out"]
        command += [str(tmp_path / "out"), "--window", "60s", "--output", "4", "--stop", "natural", "--cache", "keep"]
        command += ["--min-requests", "10"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def senders() -> list[int]:
            pids = map(int, children.read_text().split())
            return [pid for pid in pids if b"workers.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]

        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not list(tmp_path.glob("out/runs/*/*/journal-1.jsonl")):
            time.sleep(0.05)
            assert process.poll() is None, process.communicate()[1]
        found = senders()
        assert len(found) == 2
        process.send_signal(how)
        began_s = time.monotonic()
        said = process.communicate(timeout=5)[1]
        assert process.returncode == (5 if how == signal.SIGINT else -signal.SIGKILL)
        assert "Traceback" not in said
        while set(found) & set(running("workers.process")) and time.monotonic() < began_s + 2:
            time.sleep(0.02)
        assert not set(found) & set(running("workers.process"))
