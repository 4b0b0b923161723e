"""Between two runs, by policy: real commands, real processes, and a server whose speed the test decides."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadgen.common.errors import TargetUnfit, UsageError
from loadgen.experiment.live_sut import open_sut
from loadgen.plan.types import RequestFormat
from loadgen.scenario.file import load_scenario
from loadgen.target.between import Between
from loadgen.target.command import check_command, run_command
from loadgen.target.identity import changed
from loadgen.target.target import open_target
from tests.fakes.pages import JSON, raw
from tests.fakes.server import Request, Script, serving

pytestmark = pytest.mark.realtime

RESTART = """
import os, signal, subprocess, sys, time
pid_file, port = sys.argv[1:3]
if os.path.exists(pid_file):
    os.kill(int(open(pid_file).read()), signal.SIGTERM)
    time.sleep(0.3)
server = subprocess.Popen([sys.executable, "-m", "loadgen.emulator", "--profile", "fcfs-fast", "--port", port])
open(pid_file, "w").write(str(server.pid))
"""


@dataclass
class Restarting:
    """An emulator that a command of the user's restarts."""

    command: list[str]
    url: str
    pid_file: Path


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[Restarting]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    script = tmp_path / "restart.py"
    script.write_text(RESTART)
    pid_file = tmp_path / "pid"
    yield Restarting([sys.executable, str(script), str(pid_file), str(port)], f"http://127.0.0.1:{port}", pid_file)
    if pid_file.exists():
        with suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGTERM)


async def test_restart_restarts_and_is_no_change_of_the_target(restarting: Restarting) -> None:
    await run_command("--restart-command", restarting.command)
    scenario = load_scenario(
        None,
        {"target": (restarting.url,), "cache": "restart", "restart_command": restarting.command, "input": "16"},
    )
    async with open_sut(scenario, lambda _: None) as sut:
        assert await sut.settle() == ""  # before the warm-up there is nothing to be cold of
        before = await sut.identity()
        first = restarting.pid_file.read_text()
        assert await sut.settle() == ""
        assert restarting.pid_file.read_text() != first
        after = await sut.identity()
        assert sut.changed(before, after, between_runs=True) == ""
        assert "the server restarted" in sut.changed(before, after)  # while load was on it would be one
        assert "the server restarted" in changed(before, after)


async def test_a_restart_that_restarts_nothing_is_noticed(emulator: str) -> None:
    async with open_target(emulator) as target:
        between = Between(
            target=target, policy="restart", form=RequestFormat(), command=["true"], ready_timeout_s=0.1
        )  # fmt: skip
        await between.settle()
        with pytest.raises(TargetUnfit, match="is the same process as before"):
            await between.settle()


async def test_a_command_is_run_before_every_run_and_its_failure_is_one_line(emulator: str, tmp_path: Path) -> None:
    script = tmp_path / "between.sh"
    script.write_text(f"echo again >> {tmp_path}/runs\ntest $(wc -l < {tmp_path}/runs) -lt 3 || {{ echo no; exit 7; }}")
    async with open_target(emulator) as target:
        between = Between(target=target, policy="command", form=RequestFormat(), command=["sh", str(script)])
        await between.settle()
        assert not (tmp_path / "runs").exists()
        await between.settle()
        await between.settle()
        with pytest.raises(TargetUnfit, match=r"--between-command: sh .* ended with 7: no$"):
            await between.settle()


async def test_commands_run_without_a_shell_and_their_words_are_made_safe(tmp_path: Path) -> None:
    await run_command("--x", ["touch", str(tmp_path / "a; touch b")])
    assert os.listdir(tmp_path) == ["a; touch b"]  # noqa: PTH208
    noisy = [sys.executable, "-c", "import sys; print('x' * 100_000); print('\\x1b[31mbad'); sys.exit(1)"]
    with pytest.raises(TargetUnfit) as caught:
        await run_command("--x", noisy)
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith("ended with 1: \\x1b[31mbad")
    with pytest.raises(TargetUnfit, match=r"did not end within 0\.05 s"):
        await run_command("--x", ["sleep", "60"], timeout_s=0.05)
    with pytest.raises(UsageError, match="--x: there is no command no-such-program"):
        check_command("--x", ["no-such-program"])


async def test_what_a_command_leaves_behind_is_not_waited_for() -> None:
    async with asyncio.timeout(5):
        await run_command("--x", ["sh", "-c", "sleep 20 & echo $!"])


@dataclass
class Pace:
    """How long a server takes for an answer."""

    delays: list[float]
    answers: int = 0


def paced(pace: Pace) -> Script:
    async def script(request: Request) -> None:
        request.keep = False
        content: dict[str, object] = {"data": [{"id": "m"}]}
        if request.head.startswith(b"POST"):
            pace.answers += 1
            await asyncio.sleep(pace.delays.pop(0) if len(pace.delays) > 1 else pace.delays[0])
            content = {"choices": [{"text": "x", "finish_reason": "length"}]}
        body = json.dumps(content).encode() if "/v1/" in request.path else b""
        await request.write(raw((200 if body or "/health" in request.path else 404, JSON, body)))

    return script


async def test_a_target_that_is_slower_than_at_first_is_waited_for_and_then_told() -> None:
    pace = Pace([0.0])
    async with serving(paced(pace)) as server, open_target(server.url) as target:
        between = Between(target=target, policy="salt", form=RequestFormat(), health_wait_s=2.0)
        assert await between.settle() == ""
        assert pace.answers == 0  # a cold server's probe would say nothing
        assert await between.settle() == ""
        pace.delays = [0.3] * 3 + [0.0]  # one probe of three is slow
        assert await between.settle() == ""
        assert pace.answers == 9
        pace.delays, between.health_wait_s = [0.3], 0.0
        odd = await between.settle()
        assert odd.startswith("the idle target answered a small request after 3")
        assert odd.endswith("something else was at work")
        assert "idleness cannot be observed" in between.unseen


async def test_one_slow_answer_of_three_is_no_sign_of_ill_health() -> None:
    pace = Pace([0.0])
    async with serving(paced(pace)) as server, open_target(server.url) as target:
        between = Between(target=target, policy="salt", form=RequestFormat(), health_wait_s=0.0)
        await between.settle()
        await between.settle()
        pace.delays = [0.3, 0.0]
        assert await between.settle() == ""
