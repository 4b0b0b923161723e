"""The user's first stop ends every wait within a second, in an orderly way, and leaves nothing running."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import orjson
import pytest

from loadgen.common.errors import Aborted
from loadgen.common.stopping import unless_stopped
from loadgen.experiment.execute import single_run, sweep
from loadgen.experiment.prepare import Setup, prepare
from loadgen.experiment.progress import Progress
from loadgen.plan.types import Window
from loadgen.results.store import read_answer, read_ledger
from loadgen.scenario.file import load_scenario
from loadgen.send.api import Endpoint, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from loadgen.target.between import Between
from loadgen.target.command import run_command
from loadgen.target.target import open_target
from tests.fakes.pages import JSON, TEXT, UP, Reply, server
from tests.fakes.plans import Bodies, plan_at

pytestmark = pytest.mark.realtime

ENDS_WITHIN_S = 1.0
BUSY: Reply = (200, TEXT, b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n")
QUIET = Progress()


async def stopped_after(
    delay_s: float,
    act: Callable[[anyio.Event], Awaitable[object]],
    match: str = "stopped by the user",
    since: anyio.Event | None = None,
) -> None:
    """Set the stop `delay_s` into `act`, or after `since`; `act` must raise `Aborted` within a second of it."""
    stop, stopped_s = anyio.Event(), 0.0

    async def later() -> None:
        nonlocal stopped_s
        if since is not None:
            await since.wait()
        await anyio.sleep(delay_s)
        stopped_s = time.monotonic()
        stop.set()

    async with anyio.create_task_group() as group:
        group.start_soon(later)
        with pytest.raises(Aborted, match=match):
            await act(stop)
        assert stopped_s, "it ended before it was stopped"
        assert time.monotonic() - stopped_s < ENDS_WITHIN_S


def setup_for(url: str, **options: object) -> Setup:
    given = {"target": (url,), "rate": "10", "window": "2s", "input": "16", "output": "2", "runs": 1, **options}
    return prepare(load_scenario(None, given))


async def test_a_wait_that_is_not_stopped_gives_what_it_waited_for_and_raises_what_failed() -> None:
    async def seven() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    async def fails() -> int:
        raise ValueError("as it is")

    assert await unless_stopped(anyio.Event(), seven, "while it waited") == 7
    with pytest.raises(ValueError, match="as it is"):
        await unless_stopped(anyio.Event(), fails, "while it waited")


async def test_readiness(tmp_path: Path) -> None:
    """Nobody listens yet: the server is waited for, until the user does not want to."""
    setup = setup_for("http://127.0.0.1:9", ready_timeout="10m")
    directory = tmp_path / "out"
    await stopped_after(
        0.3,
        lambda stop: single_run(setup, directory, kind="run", progress=QUIET, stop=stop),
        "while the target was opened",
    )
    assert not directory.exists()


async def test_a_server_that_answers_nothing(tmp_path: Path) -> None:
    async def silent(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await stream.receive()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, silent)
        await stopped_after(
            0.3,
            lambda stop: single_run(setup_for(url), tmp_path / "out", kind="run", progress=QUIET, stop=stop),
            "while the target was opened",
        )
        group.cancel_scope.cancel()
    await listener.aclose()


async def test_idle_wait_and_settling() -> None:
    async with server({**UP, "/metrics": BUSY}) as url, open_target(url) as target:
        await stopped_after(0.3, lambda stop: unless_stopped(stop, target.wait_idle, "while it was busy"))
        between = Between(target=target, policy="salt", form=setup_for(url).workload.format)
        await stopped_after(0.3, lambda stop: unless_stopped(stop, between.settle, "while it settled"))


async def test_reset_retries() -> None:
    busy: Reply = (503, JSON, b'{"error": "blocks are in use"}')
    async with server({**UP, "/reset_prefix_cache?reset_external=true": busy}) as url, open_target(url) as target:
        await stopped_after(0.3, lambda stop: unless_stopped(stop, target.reset_cache, "while it was reset"))


async def test_a_restart_command_is_asked_to_end(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    pid_file = tmp_path / "pid"
    command = [sys.executable, str(script), str(pid_file)]
    await stopped_after(
        0.5, lambda stop: unless_stopped(stop, lambda: run_command("--restart-command", command), "while it restarted")
    )
    pid = int(pid_file.read_text())
    with anyio.fail_after(2.0):
        while _runs(pid):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)


async def test_connections_opened_before_the_load() -> None:
    """A server that accepts no connection: `prewarm` waits for it."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        held = [socket.create_connection(full.getsockname()[:2]) for _ in range(1)]
        endpoint = Endpoint(urls=(url,), path="/v1/completions", model="m")
        with closing(LoopClock()) as clock:
            await stopped_after(
                0.3,
                lambda stop: send_run(plan_at([0]), Bodies(), endpoint, SendOptions(prewarm=4), clock=clock, stop=stop),
                "before the load began",
            )
        for connection in held:
            connection.close()


async def test_the_warm_up(tmp_path: Path) -> None:
    """At 0.5/s the first requests take minutes."""
    setup, surveyed = setup_for("emulator:fcfs-fast", rate="0.5", window="10m"), anyio.Event()
    progress = Progress(lambda event: surveyed.set() if "ready, model emulator" in event.text else None)
    await stopped_after(
        1.0,
        lambda stop: single_run(setup, tmp_path / "out", kind="run", progress=progress, stop=stop),
        "while the target was warmed",
        surveyed,
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
async def test_a_sweep_that_is_stopped_while_its_target_settles_has_an_answer(tmp_path: Path) -> None:
    """The between-command hangs before the first measured run; what is on the disk says that the user ended it."""
    script = tmp_path / "hang.py"
    script.write_text("import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(60)\n")
    began = tmp_path / "began"
    setup = setup_for(
        "emulator:fcfs-fast", cache="command", between_command=[sys.executable, str(script), str(began)], rate="5..10"
    )
    stop, stopped_s = anyio.Event(), 0.0

    async def once_it_hangs() -> None:
        nonlocal stopped_s
        while not began.exists():  # noqa: ASYNC110 - another process
            await anyio.sleep(0.05)
        stopped_s = time.monotonic()
        stop.set()

    async with anyio.create_task_group() as group:
        group.start_soon(once_it_hangs)
        outcome, _ = await sweep(setup, tmp_path / "out", resume=False, progress=QUIET, stop=stop)
    assert outcome.name == "ABORTED"
    assert "before " in outcome.reason
    assert time.monotonic() - stopped_s < ENDS_WITHIN_S
    answer = read_answer(tmp_path / "out")
    assert answer is not None
    assert answer.outcome == "ABORTED"


def _runs(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def test_resuming_reads_the_preparation_and_measures_no_warm_up(tmp_path: Path) -> None:
    """The runs after a resume have the warm-up that is stored, whatever the target would show now."""
    settings = {"target": ("virtual:fcfs-fast",), "rate": "5,10", "window": "60s", "runs": 2, "slo": ("e2e:10s",)}
    begun = prepare(load_scenario(None, {**settings, "max_requests": 700}))
    await sweep(begun, tmp_path / "r", resume=False, progress=QUIET, stop=anyio.Event())
    path = tmp_path / "r" / "experiment.json"
    stored = orjson.loads(path.read_bytes())
    before = len(_windows(tmp_path / "r"))
    path.write_bytes(orjson.dumps({**stored, "warmup_s": 77.0}))
    await sweep(prepare(load_scenario(None, settings)), tmp_path / "r", resume=True, progress=QUIET, stop=anyio.Event())
    windows = _windows(tmp_path / "r")
    assert before < len(windows)
    assert {window.warmup_ns for window in windows[before:]} == {77 * 10**9}
    assert {window.warmup_ns for window in windows[:before]} == {round(stored["warmup_s"] * 1e9)}


def _windows(directory: Path) -> list[Window]:
    return [line.window for line in read_ledger(directory)]
