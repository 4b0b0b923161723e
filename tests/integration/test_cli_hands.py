"""Commands in anyone's hands: closed pipes, full disks, Ctrl-C at any moment, hostile names, half-typed commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fakes.cli import LOADGEN, Forks, nobody
from tests.fakes.pages import JSON, Reply, paged
from tests.fakes.server import in_thread

TABLE = ["sweep", "--target", "virtual:fcfs", "--input", "16", "--output", "1", "--slo", "e2e:250ms",
         "--window", "300s", "--rate", "2,14", "--runs", "1"]  # fmt: skip


def answering(reply: Callable[[str], tuple[int, bytes]]) -> AbstractContextManager[str]:
    """A server that answers each path with a status and a JSON body."""

    def page(path: str, _: bytes) -> Reply:
        status, body = reply(path)
        return status, JSON, body

    return in_thread(paged(page))


@contextmanager
def speaking(words: bytes, *, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A port that says these bytes to whoever connects and sends something, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    with tls.wrap_socket(connection, server_side=True) if tls else connection as link:
                        link.recv(4096)
                        link.sendall(words)
                        link.shutdown(socket.SHUT_WR)
                        link.recv(4096)
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def listed(*names: str) -> bytes:
    return json.dumps({"data": [{"id": name} for name in names]}).encode()


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, forked: Forks) -> Path:
    folder = tmp_path_factory.mktemp("results")
    forked(*TABLE, "--quiet", "--out", "r", cwd=folder)
    assert (folder / "r" / "capacity.json").exists()
    return folder


@pytest.mark.parametrize("command", ["show r", "show r --json", "sweep --help", "sweep --dry-run"])
def test_a_reader_that_left_is_no_failed_verdict(results: Path, forked: Forks, command: str) -> None:
    with nobody() as left:
        done = forked(*command.split(), cwd=results, stdout=left)
    assert done.returncode == 141
    assert done.stderr == b""


def test_a_reader_of_the_progress_that_left_ends_no_measurement(tmp_path: Path, forked: Forks) -> None:
    with nobody() as left:
        done = forked(*TABLE, "--out", "r", cwd=tmp_path, stderr=left)
    assert done.returncode == 0
    assert b"TABULATED" in done.stdout
    assert b"Traceback" not in done.stdout


@pytest.mark.parametrize("command", ["show r", "show r --json", "--version", "sweep --dry-run"])
def test_a_full_disk_behind_the_output_is_one_line(results: Path, forked: Forks, command: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = forked(*command.split(), cwd=results, stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == b"loadgen: the output cannot be written: No space left on device\n"


def test_an_output_that_was_closed_is_none_that_is_missed(results: Path) -> None:
    assert shell(f"{' '.join(LOADGEN)} show r >&- 2>&-", results).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.3, 0.9, 1.3, 2.5, 5.0])
def test_ctrl_c_ends_at_every_moment_with_code_5_and_says_how_to_go_on(tmp_path: Path, after_s: float) -> None:
    asked = ["sweep", "--target", "virtual:llama8b-80gb", "--rate", "2..18", "--window", "30m", "--out", "r"]
    process = subprocess.Popen([*LOADGEN, *asked], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    time.sleep(after_s)
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=30)
    took_s = time.monotonic() - began_s
    assert process.returncode == 5, told
    assert b"Traceback" not in told
    assert took_s < 2  # one second, and what a busy machine adds
    if (tmp_path / "r" / "experiment.json").exists():
        assert b"loadgen sweep --resume r" in told


@pytest.mark.realtime
def test_ctrl_c_while_a_server_is_waited_for_ends_within_a_second(tmp_path: Path) -> None:
    asked = ["run", "--target", "http://127.0.0.1:9", "--rate", "6"]
    process = subprocess.Popen([*LOADGEN, *asked], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "waiting for" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=5)[1]
    assert process.returncode == 5
    assert told == "loadgen: stopped by the user while the target was opened; nothing was measured\n"


def test_a_servers_names_move_no_terminal(loadgen: Any, tmp_path: Path) -> None:
    hostile = "m\x1b]0;owned\x07\x1b[31m\u202ered\u009b2J"
    with answering(lambda _: (200, listed(hostile))) as one, answering(lambda _: (200, listed(hostile + "2"))) as two:
        done = loadgen("run", "--target", one, "--target", two, "--rate", "6", "--quiet", code=3)
    assert "different models" in done.stderr
    assert not any(sign in done.stderr for sign in "\x1b\x07\u202e\u009b")
    assert len(done.stderr.splitlines()) == 1


def test_a_bare_sweep_prints_its_plan_and_what_to_type_and_sends_nothing(loadgen: Any, tmp_path: Path) -> None:
    done = loadgen("sweep", code=2)
    assert "plan: searches 2..18 requests/s" in done.stdout
    assert "Type, for example:" in done.stdout
    assert "loadgen sweep --scenario demo" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_without_an_slo_runs_with_one_that_is_labelled(loadgen: Any) -> None:
    done = loadgen("sweep", "--rate", "2..18", "--runs", "12", "--dry-run")
    assert "ttft ≤ 800ms and tpot ≤ 50ms" in done.stdout
    assert "placeholder SLO: set --slo" in done.stdout


def test_one_rate_is_one_rate(loadgen: Any) -> None:
    assert "plan: measures one rate, 10/s;" in loadgen("sweep", "--rate", "10", "--dry-run").stdout


def test_an_emulator_without_a_name_is_the_8b_profile(loadgen: Any) -> None:
    shape = ("--window", "100s", "--input", "64", "--output", "8", "--quiet")
    assert "8B" in loadgen("run", "--target", "virtual", "--rate", "3", *shape).stdout


@pytest.mark.parametrize("command", [["-h"], ["sweep", "-h"], ["trace", "describe", "-h"]])
def test_h_is_help(loadgen: Any, command: list[str]) -> None:
    assert "Usage: loadgen" in loadgen(*command).stdout


def test_a_shell_can_complete_options(loadgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_LOADGEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "loadgen sweep --slo-c")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert loadgen("sweep").stdout.strip() == "--slo-clock"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["sweep", "--concurrency", "8"], "loadgen run --closed N"),
        (["run", "--duration", "60"], "--window 60s"),
        (["run", "http://127.0.0.1:8000"], "--target http://HOST:PORT"),
    ],
)
def test_a_wrong_command_is_one_line_that_says_what_to_type(loadgen: Any, command: list[str], told: str) -> None:
    done = loadgen(*command, code=2)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_macos_is_refused_by_name_where_load_would_be_timed(loadgen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    done = loadgen("run", "--target", "http://127.0.0.1:9", "--rate", "6", code=2)
    assert "macOS cannot time a load" in done.stderr


def test_an_out_that_cannot_be_made_is_refused_before_anything_is_sent(loadgen: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    asked: list[str] = []
    with answering(lambda path: asked.append(path) or (200, listed("m"))) as url:  # type: ignore[func-returns-value]
        done = loadgen("run", "--target", url, "--rate", "6", "--out", "file/r", code=2)
    assert "is not a directory: choose another --out" in done.stderr
    assert asked == []


def test_what_a_server_wants_is_named_as_an_option(loadgen: Any) -> None:
    with answering(lambda _: (401, b'{"error":{"message":"no key"}}')) as url:
        assert "--api-key-env NAME" in loadgen("run", "--target", url, "--rate", "6", code=3).stderr
    with answering(lambda path: (404, b"{}") if path.endswith("/completions") else (200, listed("m"))) as url:
        told = loadgen("run", "--target", url, "--rate", "6", code=3).stderr
        assert "pass --endpoint chat" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64\x00\x04\x00\x00\xff\xff\x00\x06\x00\x00\x20\x00",
         "HTTP/2 alone"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "closed the connection in the middle of its answer"),
    ],
)  # fmt: skip
def test_half_an_answer_and_http_2_are_told_apart_from_no_http(loadgen: Any, words: bytes, told: str) -> None:
    with speaking(words) as port:
        asked = ("run", "--target", f"http://127.0.0.1:{port}", "--rate", "6", "--ready-timeout", "0s", "--quiet")
        assert told in loadgen(*asked, code=3).stderr


def test_http_to_a_tls_port_and_an_untrusted_certificate_name_the_remedy(loadgen: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with speaking(b"", tls=context) as port:
        asked = ("run", "--rate", "6", "--quiet", "--ready-timeout", "0s", "--target")
        assert "write https:// instead of http://" in loadgen(*asked, f"http://127.0.0.1:{port}", code=3).stderr
        told = loadgen(*asked, f"https://127.0.0.1:{port}", code=3).stderr
        assert "--ca-file FILE, or pass --insecure for a test" in told


def test_a_warm_up_that_fails_says_why_once(loadgen: Any) -> None:
    seen = 0

    def reply(path: str) -> tuple[int, bytes]:
        nonlocal seen
        if not path.endswith("completions"):
            return 200, listed("m")
        seen += 1
        body = {"choices": [{"index": 0, "text": "a" * 16, "finish_reason": "length"}],
                "usage": {"prompt_tokens": 256, "completion_tokens": 16}}  # fmt: skip
        return (200, json.dumps(body).encode()) if seen == 1 else (413, b"too large")

    with answering(reply) as url:
        asked = ("--cache", "keep", "--scrape-interval", "off", "--rate", "20", "--window", "3s", "--min-requests", "5")
        done = loadgen("run", "--target", url, *asked, "--quiet", code=3)
    assert "(HTTP 413: too large)" in done.stderr


def test_python_m_loadgen_is_the_command() -> None:
    done = subprocess.run([*LOADGEN, "--version"], capture_output=True, text=True, env=os.environ, timeout=60)
    assert done.stdout.startswith("loadgen ")
