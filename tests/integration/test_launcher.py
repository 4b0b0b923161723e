"""Servers launched for a comparison: started, waited for, stopped, and no process of theirs left, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.common.errors import LoadgenError, ResultsError, TargetUnfit, TargetUnreachable, UsageError
from loadgen.target.launcher import Launched, LaunchSpec, check_launch, launched
from loadgen.target.target import open_target
from tests.fakes.processes import marked, running

ROOT = Path(__file__).resolve().parents[2]
STUBBORN = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()  # out of the process group, and an orphan
    print('up', flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
POLITE = """
import signal, sys, time
def leave(*_):
    print('told to leave', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print('up', flush=True)
print('up', flush=True)
time.sleep(60)
"""
NOTES: list[str] = []


def note(text: str) -> None:
    NOTES.append(text)


@pytest.fixture(autouse=True)
def notes() -> list[str]:
    NOTES.clear()
    return NOTES


@pytest.fixture
def marker() -> Iterator[str]:
    """A word that the command lines of a test's processes have, of which none may be left."""
    with marked() as word:
        yield word


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def spec(command: str, **more: Any) -> LaunchSpec:
    return LaunchSpec(**{"name": "tp4", "command": command, "ready_timeout_s": 5.0, "stop_timeout_s": 0.2, **more})


def python(code: str, marker: str = "", port: str = "{port}") -> str:
    return f'{sys.executable} -c "{code}" {port} {marker}'


async def until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    with anyio.fail_after(timeout_s):
        while not true():  # noqa: ASYNC110 - another process
            await anyio.sleep(0.01)


async def up(server: Launched) -> None:
    """Both processes that the scripts above have, the server and what it forked, have said so."""
    await until(lambda: server.last_lines().count("up") == 2)


async def for_ever() -> None:
    await anyio.sleep(60)


async def test_a_server_is_launched_waited_for_and_stopped(tmp_path: Path, marker: str) -> None:
    command = f"{sys.executable} -m loadgen.emulator --profile fcfs-fast --port {{port}} --truth-log {marker}"
    log = tmp_path / "a.log"
    variables = {"PYTHONPATH": str(ROOT), "SECRET_OF_MINE": "hush-hush"}
    asked = spec(command, env=variables, cwd=str(tmp_path), stop_timeout_s=10.0)
    async with launched(asked, log=log, note=note) as server:

        async def opened() -> str:
            async with open_target(server.url, ready_timeout_s=server.ready_timeout_s) as target:
                return target.model

        assert await server.until_ready(opened)
        assert server.died() == ""
        assert running(marker) == [server.pid]
        assert (tmp_path / marker).exists()
        port = int(server.url.rpartition(":")[2])
    assert server.died() == ""
    with socket.create_server(("127.0.0.1", port)):
        pass
    text = log.read_text()
    head = text.splitlines()[0]
    assert head.startswith("# 20")
    assert f"--port {port}" in head
    assert head.endswith("env PYTHONPATH SECRET_OF_MINE")
    assert "hush-hush" not in text
    assert "emulator ready on" in text
    assert log.stat().st_mode & 0o777 == 0o600
    assert len(NOTES) == 1
    assert NOTES[0] == f"variant tp4: process {server.pid} started, its output goes to {log}"


async def test_the_server_is_asked_before_it_is_killed(tmp_path: Path, marker: str) -> None:
    async with launched(spec(python(POLITE, marker), stop_timeout_s=10.0), log=tmp_path / "log", note=note) as server:
        await up(server)
    assert server.last_lines()[-1] == "told to leave"
    assert len(NOTES) == 1


async def test_what_a_server_leaves_behind_is_asked_too(tmp_path: Path, marker: str) -> None:
    """A wrapper that hands no signal on: what it started becomes an orphan, is told, and may clean up."""
    (tmp_path / "server.py").write_text(POLITE)
    wrapper = f"import subprocess, sys; subprocess.run([sys.executable, '{tmp_path}/server.py', *sys.argv[1:]])"
    async with launched(spec(python(wrapper, marker), stop_timeout_s=10.0), log=tmp_path / "log", note=note) as server:
        await up(server)
        assert len(running(marker)) == 2
    assert server.last_lines()[-1] == "told to leave"


async def test_what_ignores_sigterm_is_killed_with_all_it_forked(tmp_path: Path, marker: str) -> None:
    async with launched(spec(python(STUBBORN, marker)), log=tmp_path / "log", note=note) as server:
        await up(server)
        assert len(running(marker)) == 3
    assert not running(marker)
    assert NOTES[1:] == ["variant tp4: the server did not end within 0.2 s of SIGTERM, it was killed"]


@pytest.mark.parametrize("how", ["exception", "cancelled", "timeout"])
async def test_no_orphan_however_the_context_ends(how: str, tmp_path: Path, marker: str) -> None:
    async def work(started: anyio.Event, scope: anyio.CancelScope) -> None:
        async with launched(spec(python(STUBBORN, marker)), log=tmp_path / "log", note=note) as server:
            await up(server)
            started.set()
            if how == "exception":
                raise ValueError("of the body")
            if how == "timeout":
                scope.deadline = anyio.current_time() + 0.05
            await for_ever()

    started, scope = anyio.Event(), anyio.CancelScope()
    if how == "exception":
        with pytest.raises(ValueError, match="of the body"):
            await work(started, scope)
    elif how == "timeout":
        with scope:
            await work(started, scope)
        assert scope.cancelled_caught
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(work, started, scope)
            await started.wait()
            group.cancel_scope.cancel()
    assert started.is_set()
    assert not running(marker)


async def test_a_cancellation_while_it_is_started_leaves_nothing(tmp_path: Path, marker: str) -> None:
    for delay_s in (0.0, 0.02, 0.05, 0.08):
        with anyio.move_on_after(delay_s):
            async with launched(spec(python(STUBBORN, marker)), log=tmp_path / "log", note=note):
                await for_ever()
        assert not running(marker)


PARENT = """
import asyncio, sys
from pathlib import Path
from loadgen.target.launcher import LaunchSpec, launched
async def main():
    spec = LaunchSpec(name="a", command=sys.argv[1], ready_timeout_s=5, stop_timeout_s=0.2)
    async with launched(spec, log=Path(sys.argv[2]), note=lambda text: None) as server:
        while server.last_lines().count("up") < 2:
            await asyncio.sleep(0.01)
        print("running", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_orphan_when_our_own_process_is_ended(number: signal.Signals, tmp_path: Path, marker: str) -> None:
    command = [sys.executable, "-c", PARENT, python(STUBBORN, marker), str(tmp_path / "log")]
    parent = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"running\n"
    assert len(running(marker)) == 4  # the parent's own arguments have it
    os.killpg(parent.pid, number)
    parent.wait(10)
    parent.stdout.close()
    anyio.run(until, lambda: not running(marker))


def test_no_orphan_when_our_process_and_the_supervisor_are_killed(tmp_path: Path, marker: str) -> None:
    """By the kernel: nobody is left who could end the server."""
    command = [sys.executable, "-c", PARENT, python(POLITE, marker), str(tmp_path / "log")]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"running\n"
    (server,) = set(running(marker)) - {parent.pid}
    parent.send_signal(signal.SIGSTOP)
    os.kill(parent_of(server), signal.SIGKILL)
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    anyio.run(until, lambda: not running(marker))
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["up", "up"]


async def test_no_orphan_when_the_supervisor_is_killed(tmp_path: Path, marker: str) -> None:
    script = STUBBORN.replace("os.setsid()", "pass")
    async with launched(spec(python(script, marker)), log=tmp_path / "log", note=note) as server:
        await up(server)
        supervisor = parent_of(server.pid)
        assert supervisor != os.getpid()
        os.kill(supervisor, signal.SIGKILL)
        with pytest.raises(TargetUnreachable, match="its supervising process was ended"):
            await server.until_ready(for_ever)
    await until(lambda: not running(marker))


async def refused(command: str, tmp_path: Path, wait: Callable[[Launched], Awaitable[object]], **more: Any) -> str:
    began_s = time.monotonic()
    with pytest.raises(TargetUnreachable) as caught:
        async with launched(spec(command, **more), log=tmp_path / "log", note=note) as server:
            await server.until_ready(lambda: wait(server))
    assert time.monotonic() - began_s < 10
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_server_that_dies_ends_the_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words are shown: cleaned, without the key it was given, and none of an earlier server's."""
    monkeypatch.setenv("MY_KEY", "sesame-open")
    (tmp_path / "log").write_text("of an earlier one\n")
    dies = (
        "import os, sys; sys.stderr.write('\\x1b[31mno GPU\\x1b[0m\\a\\n\\n' + os.environ['KEY'] + '\\n'); sys.exit(3)"
    )
    said = await refused(python(dies), tmp_path, lambda _: for_ever(), env={"KEY": "env:MY_KEY"})
    assert said == (
        "variant tp4: the server ended by itself (exit code 3); "
        f"the end of {tmp_path / 'log'}: no GPU\\x07 | [redacted]"
    )


async def test_a_server_that_is_killed_without_a_word(tmp_path: Path) -> None:
    said = await refused(python("import os; os.kill(os.getpid(), 9)"), tmp_path, lambda _: for_ever())
    assert said == f"variant tp4: the server ended by itself (signal 9); it wrote nothing to {tmp_path / 'log'}"


async def test_a_server_that_never_listens(tmp_path: Path, marker: str) -> None:
    async def wait(server: Launched) -> None:
        await until(lambda: server.last_lines() != ())
        async with open_target(server.url, ready_timeout_s=0.6):
            pass

    sleeps = "import time; print('first'); print('loading weights', flush=True); time.sleep(60)"
    said = await refused(python(sleeps, marker), tmp_path, wait)
    assert said.startswith("variant tp4: http://127.0.0.1:")
    assert "nothing listens there" in said
    assert said.endswith(f"; the end of {tmp_path / 'log'}: loading weights")


async def test_a_server_that_dies_later_has_an_obituary(tmp_path: Path, marker: str) -> None:
    async with launched(spec(python(POLITE, marker)), log=tmp_path / "log", note=note) as server:
        await up(server)
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.died() != "")
        assert server.died() == "signal 9"
        assert server.obituary().startswith("variant tp4: the server ended by itself (signal 9); the end of ")


async def test_a_port_in_use_is_seen_before_another_server_is_measured(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = python("pass", port=f"--port {port}")
        with pytest.raises(TargetUnfit, match=f"^variant tp4: port {port} is in use; stop what listens there"):
            async with launched(spec(command), log=tmp_path / "log", note=note):
                pass
    assert not (tmp_path / "log").exists()


async def test_a_port_that_stays_in_use_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a container: what listens is no process of ours."""
    monkeypatch.setattr("loadgen.target.launcher.PORT_FREE_S", 0.1)
    command = python("import time; time.sleep(60)")

    async def work(*, failing: bool) -> None:
        async with launched(spec(command), log=tmp_path / "log", note=note) as server:
            held.append(socket.create_server(("127.0.0.1", int(server.url.rpartition(":")[2]))))
            if failing:
                raise LoadgenError("of the body")

    held: list[socket.socket] = []
    in_use = "is still in use 0.1 s after the server was stopped"
    with pytest.raises(TargetUnfit, match=in_use):
        await work(failing=False)
    with pytest.raises(LoadgenError, match="of the body"):
        await work(failing=True)
    assert in_use in NOTES[-1]
    for other in held:
        other.close()


async def test_every_other_brace_is_kept(tmp_path: Path) -> None:
    words = python("import sys; print(sys.argv[1:])").replace("{port}", "'{\"a\": {port}}' {} --port={port}")
    async with launched(spec(words), log=tmp_path / "log", note=note) as server:
        await until(lambda: server.last_lines() != ())
        port = server.url.rpartition(":")[2]
        assert server.last_lines() == (f"""['{{"a": {port}}}', '{{}}', '--port={port}']""",)


async def test_a_key_in_the_command_is_not_written_down(tmp_path: Path) -> None:
    words = python("import sys; print(sys.argv[2])").replace("{port}", "--api-key sesame-open --port {port}")
    async with launched(spec(words), log=tmp_path / "log", note=note) as server:
        await until(lambda: server.last_lines() != ())
        assert server.last_lines() == ("[redacted]",)
    assert "--api-key '[redacted]'" in (tmp_path / "log").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        ("", {}, "the command is empty"),
        ("vllm 'serve", {}, "the command vllm 'serve cannot be split: No closing quotation"),
        ("true --host x", {}, "the command says no port; add --port {port}, which becomes a free one"),
        ("true --port", {}, "--port  is not a port (1 to 65535); write --port {port}"),
        ("true --port=0", {}, "--port 0 is not a port"),
        ("true --port 65536", {}, "--port 65536 is not a port"),
        ("no-such-command {port}", {}, "there is no command no-such-command; give a program's name or its path"),
        ("./no-such-command {port}", {}, "there is no command ./no-such-command"),
        ("A=1 true {port}", {}, "there is no command A=1; no shell reads the command: write variables under env"),
        ("true {port}", {"env": {"PATH": "/nowhere"}}, "there is no command true"),
        ("true {port}", {"cwd": "/no/such/place"}, "cwd /no/such/place is not a directory"),
        ("true {port}", {"env": {"KEY": "env:NOT_SET_AT_ALL"}}, "env KEY: the variable NOT_SET_AT_ALL is not set"),
        ("true {port}", {"env": {"A=B": "1"}}, "env 'A=B' is not a valid name"),
        ("true {port}", {"name": "a\x1b[2J"}, None),
    ],
)
async def test_bad_input_is_one_line_before_anything_is_started(
    command: str, more: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    if said is None:
        check_launch(spec(command, **more))
        return
    with pytest.raises(UsageError) as caught:
        check_launch(spec(command, **more))
    assert str(caught.value).startswith(f"variant tp4: {said}")
    with pytest.raises(UsageError):
        async with launched(spec(command, **more), log=tmp_path / "log", note=note):
            pass
    assert not (tmp_path / "log").exists()


async def test_what_cannot_be_run_or_logged_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no program\n")
    script.chmod(0o755)
    with pytest.raises(TargetUnfit, match=r"^variant tp4: the command cannot be started: Exec format error$"):
        async with launched(spec("./script {port}", cwd=str(tmp_path)), log=tmp_path / "log", note=note):
            pass
    with pytest.raises(ResultsError, match=r"^variant tp4: the log .* cannot be written: No such file"):
        async with launched(spec("true {port}"), log=tmp_path / "no" / "log", note=note):
            pass
