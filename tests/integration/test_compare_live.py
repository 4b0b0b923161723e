"""Comparisons of real server processes, launched and stopped: one that dies, one that never gets ready, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loadgen as library
from loadgen.common.errors import TargetUnfit
from loadgen.experiment.compare.alike import check_alike
from loadgen.results.store import read_experiment
from tests.conftest import RunResult
from tests.fakes.cli import unhurried
from tests.fakes.processes import marked, running

pytestmark = pytest.mark.realtime

ROOT = Path(__file__).resolve().parents[2]
QUICK: dict[str, Any] = {
    "rate": "40", "slo": ("e2e:2s",), "input": "20", "output": "3", "window": "1s", "warmup": "0s", "runs": 2,
    "min_requests": 10, "explore": 1,
}  # fmt: skip
# a server that ends with code 7 once a file is there
MORTAL = (
    "import os, sys, threading, time; from pathlib import Path; sign = Path(sys.argv.pop()); "
    "watch = lambda: ([time.sleep(0.02) for _ in iter(sign.exists, True)], print('no memory left', flush=True), "
    "os._exit(7)); threading.Thread(target=watch, daemon=True).start(); from loadgen.emulator.__main__ import main; "
    "main()"
)


@pytest.fixture
def marker() -> Iterator[str]:
    """A word that the command lines of a test's servers have, of which none may be left."""
    with marked(patience_s=10.0) as word:
        yield word


def emulator(profile: str, marker: str, *, code: str = "", last: str = "") -> str:
    start = f'-c "{code}"' if code else "-m loadgen.emulator"
    return f"{sys.executable} {start} --profile {profile} --port {{port}} --truth-log {marker}-{profile} {last}"


def variant(name: str, launch: str, **more: object) -> dict[str, object]:
    return {"name": name, "launch": launch, "env": {"PYTHONPATH": str(ROOT)}, "cwd": str(Path.cwd()), **more}


def test_a_variant_whose_server_dies_leaves_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str, unhurried: None
) -> None:
    monkeypatch.chdir(tmp_path)
    sign = tmp_path / "die"
    servers = [
        variant("mortal", emulator("fcfs-fast", marker, code=MORTAL, last=str(sign))),
        variant("a", emulator("fcfs-fast", marker)),
        variant("b", emulator("fcfs-fast", marker)),
    ]
    said: list[str] = []

    def hear(event: library.ProgressEvent) -> None:
        said.append(event.text if isinstance(event, library.Note) else event.run.title)
        if isinstance(event, library.RunSealed) and event.run.title.startswith("mortal"):
            sign.touch()

    settings = library.load_comparison(None, QUICK, {"variant": servers, "together": True})
    done = library.compare_sync(library.prepare_comparison(*settings), "r", progress=hear)
    answer = done.answer
    assert answer.outcome == "COMPLETE"
    assert answer.lost["mortal"].startswith("variant mortal: the server ended by itself (exit code 7); the end of ")
    assert answer.lost["mortal"].endswith("no memory left")
    assert {run.variant for run in answer.runs} == {"a", "b"}
    assert len(answer.runs) == 4
    assert answer.primary[0].difference.n == 2
    assert len(done.variants["mortal"].ledger) == 1  # what it showed is kept
    assert "emulator ready on" in Path("r/variants/a.log").read_text()
    assert not running(marker)


@pytest.mark.parametrize("resume", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ctrl_c_stops_the_server_that_is_up_and_resuming_finishes(resume: bool, tmp_path: Path, marker: str) -> None:
    """Launched variants that share their GPUs are up one at a time."""
    file = tmp_path / "ab.toml"
    keys = {**QUICK, "window": "2s", "slo": ["e2e:2s"]}
    tables = "".join(
        f"[[variant]]\nname = '{name}'\nlaunch = '''{emulator('fcfs-fast', marker)}'''\n"
        f"env = {{PYTHONPATH = '{ROOT}'}}\n"
        for name in ("a", "b")
    )
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in keys.items()) + tables)
    command = [*unhurried(), "compare"]
    with subprocess.Popen(
        [*command, "--scenario", str(file), "--out", "r"], cwd=tmp_path, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if "pair 1 of 2: " in line:  # sealed
                break
        assert len(running(marker)) == 1
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=30)
    assert process.returncode == 5, rest
    assert "go on with: loadgen compare --resume r" in (out + rest).lower()
    stopped = library.load_compared(tmp_path / "r").answer
    assert stopped.outcome in ("ABORTED", "UNFINISHED")
    assert stopped.primary == ()
    assert not running(marker)
    if not resume:
        return
    done = subprocess.run(
        [*command, "--resume", "r"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 sealed runs carried over" in done.stderr
    assert len(library.load_compared(tmp_path / "r").answer.runs) == 4


def test_a_server_that_never_gets_ready_is_one_line_and_the_directory_can_be_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.chdir(tmp_path)
    idle = f"{sys.executable} -c \"import time; print('loading', flush=True); time.sleep(60)\" {marker} {{port}}"
    servers = [variant("idle", idle, ready_timeout="1s"), variant("b", idle, ready_timeout="1s")]
    setup = library.prepare_comparison(*library.load_comparison(None, QUICK, {"variant": servers}))
    for _ in range(2):
        with pytest.raises(library.TargetError) as refused:
            library.compare_sync(setup, "r")
        text = str(refused.value)
        assert text.startswith("variant b: ")
        assert "loading" in text
        assert "\n" not in text
    assert [path.name for path in Path("r").rglob("*") if path.is_file()] == ["b.log"]


def test_variants_that_serve_different_models_are_refused_unless_both_are_named(tmp_path: Path, loadgen: Any) -> None:
    quick = ("--rate", "8", "--cohort", "100", "--runs", "2", "--output", "2", "--min-requests", "50")
    done: RunResult = loadgen(
        "compare", "--variant", "a=virtual:mm1", "--variant", "b=virtual:mm1", *quick, "--out", "r"
    )
    assert done.code == 0
    here = library.load_compared("r").variants
    manifests = {name: read_experiment(one.directory) for name, one in here.items()}
    other = replace(manifests["b"], target=replace(manifests["b"].target, model="another"))
    for models in ({}, {"a": ",model=emulator"}, {"a": ",model=emulator", "b": ",model=another"}):
        texts = [f"{name}=virtual:mm1{models.get(name, '')}" for name in "ab"]
        setup = library.prepare_comparison(*library.load_comparison(None, {"rate": "8"}, {"variant": texts}))
        assert check_alike(setup, manifests) == ()
        if len(models) == 2:
            said = check_alike(setup, {**manifests, "b": other})
            assert said == ("a serves emulator and b serves another, as the variants say",)
            continue
        with pytest.raises(TargetUnfit, match="different models cannot be compared: a serves emulator and b serves an"):
            check_alike(setup, {**manifests, "b": other})
    chat = replace(manifests["b"].target.format, endpoint="chat")
    formed = replace(manifests["b"], target=replace(manifests["b"].target, format=chat))
    with pytest.raises(TargetUnfit, match="different formats \\(endpoint completions and chat\\)"):
        check_alike(setup, {**manifests, "b": formed})
