"""A real vLLM of our own on this machine's processors, started with the settings that a test wants.

The virtual environment at LOADGEN_VLLM_VENV (default .venv-vllm beside the sources) holds vLLM and the model folders
`tiny` and `small`; `make test-vllm` makes it where it can. LOADGEN_VLLM=URL names a running server instead, for the
tests that do not have to stop it. A server of our own has one core and the client the others: on a shared core each
would be measured together with the other.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
START_S = 240.0
CORES = sorted(os.sched_getaffinity(0))
THEIRS, OURS = CORES[:1], CORES[1:] or CORES


@contextmanager
def on(cores: Collection[int]) -> Iterator[None]:
    """What is started inside stays on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def environment() -> Path:
    """The virtual environment with vLLM; skips the test where there is none."""
    venv = Path(os.environ.get("LOADGEN_VLLM_VENV", ROOT / ".venv-vllm"))
    if not (venv / "bin" / "vllm").exists():
        pytest.skip("no vLLM: run make test-vllm, or set LOADGEN_VLLM_VENV")
    return venv


def served(
    port: int | str, *settings: str, model: str = "tiny", max_model_len: int = 4096
) -> tuple[list[str], dict[str, str]]:
    """The command line of a server, and its environment."""
    venv = environment()
    variables = {
        **os.environ,
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would choose a core by itself
    }  # fmt: skip
    variables.pop("PYTHONPATH", None)
    command = [
        str(venv / "bin" / "vllm"), "serve", str(venv / model), "--served-model-name", "tiny",
        "--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", str(max_model_len),
        "--enforce-eager", "--host", "127.0.0.1", "--port", str(port),
        "--distributed-executor-backend", "uni", *settings,
    ]  # fmt: skip
    return command, variables


@dataclass
class Vllm:
    """One server process; `settings` are further words of its command line."""

    settings: tuple[str, ...] = ()
    model: str = "tiny"
    max_model_len: int = 4096
    port: int = 0
    log: Path | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = int(probe.getsockname()[1])
        command, variables = served(self.port, *self.settings, model=self.model, max_model_len=self.max_model_len)
        with (self.log or Path(os.devnull)).open("ab") as out, on(THEIRS):
            self._process = subprocess.Popen(command, env=variables, stdout=out, stderr=out, start_new_session=True)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/health", timeout=2, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        said = "" if self.log is None else "".join(self.log.read_text(errors="replace").splitlines(True)[-20:])
        self.stop()
        pytest.fail(f"vLLM did not start: {said}")

    def terminate(self) -> None:
        """SIGTERM for all its processes, not waited for.

        The engine first: told by the server instead, it is killed at once, and whether its streams end before that is
        chance.
        """
        assert self._process is not None
        os.kill(self._engine(), signal.SIGTERM)
        time.sleep(0.5)
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session: nobody else's process is in it
            self._process.wait()
        self._process = None

    def kill_engine(self) -> None:
        """SIGKILL for the engine's process, as the kernel does it when memory is out."""
        os.kill(self._engine(), signal.SIGKILL)

    def _engine(self) -> int:
        assert self._process is not None
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            if int(rest.split()[1]) == self._process.pid and "Engine" in name:
                return int(stat.parent.name)
        pytest.fail("the server has no engine process")


@contextmanager
def serving(tmp: Path, *settings: str, **options: object) -> Iterator[Vllm]:
    server = Vllm(settings=settings, log=tmp / "vllm.log", **options)  # type: ignore[arg-type]
    server.start()
    try:
        with on(OURS):
            yield server
    finally:
        server.stop()
