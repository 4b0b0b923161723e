"""What this machine's client can carry: loadgen against a lean server of its own, at rising rates.

Each step is a process-wide run of Poisson arrivals, without SLO and without verdict, in which every record is written.
The server (`loadgen.emulator.lean`) notes when it handed the first and the last token of each answer to the kernel, on
the same CLOCK_MONOTONIC; what the client's stamps differ from that is the stamp error. A rate *holds* if every answer
came whole, p99 of the send lag and of the TTFT error is at most 5 ms, and at most 1 % of first reads held several
tokens (the gates of method, section 5). The ceiling is the highest rate that holds below the lowest that does not.

CPU of a request is taken as a + b·tokens, from answers of two lengths: so the ceiling is known for other lengths.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.abc
import numpy as np

from analysis.cohort import PERCENTILES, nearest_rank
from analysis.records import Ints, numbers, outcome_is
from loadgen.common.child import environment, let_go, module_command
from loadgen.common.errors import Aborted, TargetUnreachable
from loadgen.experiment.progress import Progress, ProgressEvent
from loadgen.experiment.work import Work
from loadgen.plan.types import NS, RequestFormat, RunPlan, Schedule, Window
from loadgen.results.calibration import Calibration, CalibrationStep, check_calibration_file, keep_calibration
from loadgen.results.journal import Journal
from loadgen.send.api import Endpoint, LiveCounts, SendOptions
from loadgen.send.clock import LoopClock
from loadgen.send.session import send_run
from loadgen.target.emulated import cores_apart

__all__ = ["calibrate", "strain"]

LIMIT_S: Final = 0.005
FIRST_READS_MAX: Final = 0.01
GAP_MS: Final = 10.0
STREAM_TOKENS: Final = 128
SHORT_TOKENS: Final = 8
FIRST_RATE: Final = 50.0
HIGHEST_RATE: Final = 6400.0
HALVINGS: Final = 2  # of the bracket, in ln λ
WARMUP_S: Final = 0.5  # beyond the length of an answer
SERVER_FULL: Final = 0.9  # of a core: then the server may be the limit
_START_S: Final = 20.0
_TAIL_S: Final = 10.0


class _Bodies:
    """Bodies that say their index, for the server's truth."""

    def __init__(self, count: int) -> None:
        self.starved = 0
        prompt = ",".join(["1234"] * 200)
        self._bodies = [
            b'{"index":%d,"model":"lean","stream":true,"prompt":[%s]}' % (index, prompt.encode())
            for index in range(count)
        ]

    def fill(self, now_ns: int, budget_ns: int) -> int:
        """They are all there."""
        return 0

    def take(self, index: int) -> bytes:
        """The body of a request."""
        return self._bodies[index]


class _SteadyCpu:
    """CPU of this process between two instants of the run, sampled as its counts come."""

    def __init__(self, start_s: float, end_s: float) -> None:
        self._start_ns, self._end_ns = start_s * NS, end_s * NS
        self._samples: list[tuple[int, float]] = []

    def tick(self, counts: LiveCounts) -> None:
        if self._start_ns <= counts.elapsed_ns <= self._end_ns:
            self._samples.append((counts.elapsed_ns, time.process_time()))

    @property
    def share(self) -> float:
        """Of one core; 0 where it was not seen twice."""
        if len(self._samples) < 2:
            return 0.0
        (began_ns, before_s), (ended_ns, after_s) = self._samples[0], self._samples[-1]
        return (after_s - before_s) * NS / (ended_ns - began_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truth:
    rows: Ints  # shape (requests, 4): index, read, first and last token written, monotonic ns
    cpu_s: float


def calibrate(
    *,
    stamps: Literal["kernel", "user"] | None = None,
    seconds: float = 4.0,
    highest: float = HIGHEST_RATE,
    keep: bool = True,
    progress: Callable[[ProgressEvent], object] | None = None,
) -> Work[Calibration]:
    """Find the ceiling of this machine's client in about a minute; each step loads `seconds` beyond its warm-up.

    `highest` is the rate that is not passed, requests/s. With `keep` later sweeps know the result. Raises
    `ResultsError` at once where it cannot be kept. The work raises `UsageError` where such
    stamps cannot be had, `TargetUnreachable` where the server does not start, and `Aborted` where it was stopped.
    """
    if keep:
        check_calibration_file()

    async def start(events: Progress, stop: anyio.Event) -> Calibration:
        steps: list[CalibrationStep] = []

        async def step(rate: float, tokens: int = STREAM_TOKENS) -> CalibrationStep:
            found, used = await _step(rate, tokens, stamps=stamps, seconds=seconds, stop=stop)
            kinds.add(used)
            steps.append(found)
            events.note(_said(found))
            return found

        kinds: set[Literal["kernel", "user"]] = set()
        short = await step(2 * FIRST_RATE, SHORT_TOKENS)
        rate, low, high = FIRST_RATE, None, None
        while high is None and rate <= highest:
            if (await step(rate)).holds:
                low, rate = rate, 2 * rate
            else:
                high = rate
        for _ in range(HALVINGS if low is not None and high is not None else 0):
            assert low is not None
            assert high is not None
            middle = (low * high) ** 0.5
            low, high = (middle, high) if (await step(middle)).holds else (low, middle)
        whole = [one for one in steps if one.output_tokens == STREAM_TOKENS and one.cpu_s_per_request > 0]
        held = [one for one in whole if one.holds] or whole
        long = max(held, key=lambda one: one.rate)
        per_token = max(long.cpu_s_per_request - short.cpu_s_per_request, 0.0) / (STREAM_TOKENS - SHORT_TOKENS)
        calibration = Calibration(
            tokens=STREAM_TOKENS,
            stamps=kinds.pop(),
            gap_s=GAP_MS / 1000,
            steps=tuple(steps),
            ceiling=low,
            server_limited=high is None or max(one.server_cpu_share for one in whole) > SERVER_FULL,
            cpu_s_per_request=max(long.cpu_s_per_request - per_token * STREAM_TOKENS, 0.0),
            cpu_s_per_token=per_token,
        )
        if keep:
            keep_calibration(calibration)
        return calibration

    return Work(start, progress)


def strain(calibration: Calibration | None, *, rate: float, output_tokens: float, processes: int = 1) -> str:
    """What is wrong with offering that rate from this machine; "" where it is calibrated for twice as much, or not.

    A calibration is of one process; each of several `processes` is taken to carry as much.
    """
    ceiling = None if calibration is None else calibration.ceiling_of(output_tokens)
    if calibration is None or calibration.server_limited or (ceiling is not None and rate <= processes * ceiling / 2):
        return ""
    carries = "no rate" if ceiling is None else f"{ceiling:.3g} requests/s"
    each = f" for each of {processes} processes" if processes > 1 else ""
    return (
        f"{rate:.4g} requests/s is more than half of what this machine's client can carry: loadgen calibrate found "
        f"{carries} of {output_tokens:.0f} tokens{each}; runs may be INVALID (client). "
        "Use a larger or less busy machine"
    )


async def _step(
    rate: float, tokens: int, *, stamps: Literal["kernel", "user"] | None, seconds: float, stop: anyio.Event
) -> tuple[CalibrationStep, Literal["kernel", "user"]]:
    answer_s = tokens * GAP_MS / 1000
    warmup_s = answer_s + WARMUP_S
    at_ns = _arrivals(rate, warmup_s + seconds)
    cpu = _SteadyCpu(warmup_s, warmup_s + seconds)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        async with _lean_server(tokens) as server:
            clock = LoopClock()
            try:
                with Journal(Path(folder) / "requests.jsonl") as sink:
                    output = await send_run(
                        _plan(at_ns, tokens, rate), _Bodies(at_ns.size),
                        Endpoint(urls=(server.url,), path="/v1/completions", model="lean"),
                        SendOptions(stamps=stamps, events="prompt"),
                        clock=clock, sink=sink, progress=cpu.tick, stop=stop,
                    )  # fmt: skip
                t0_ns = time.monotonic_ns() - clock.now_ns()
            finally:
                clock.close()
            if stop.is_set():
                raise Aborted("stopped by the user; nothing was kept")
            truth = await server.told()
    took_s = time.monotonic() - began_s
    table = output.requests
    written = np.full((at_ns.size, 4), -1, dtype=np.int64)
    written[truth.rows[:, 0]] = truth.rows
    steady = outcome_is(table, "ok") & (numbers(table, "scheduled_ns") >= warmup_s * NS)
    rows = written[numbers(table, "index")[steady]]
    lag_s = _p99((rows[:, 1] - t0_ns - numbers(table, "scheduled_ns")[steady]) / NS)
    first_s = _p99(np.abs(numbers(table, "first_token_ns")[steady] + t0_ns - rows[:, 2]) / NS)
    last_s = _p99(np.abs(numbers(table, "last_token_ns")[steady] + t0_ns - rows[:, 3]) / NS)
    late = float(np.mean(numbers(table, "first_read_events")[steady] > 1)) if steady.any() else 0.0
    failed = int(np.count_nonzero(~outcome_is(table, "ok")))
    reasons = {
        f"{failed} answers did not come whole": failed > 0,
        f"p99 of send lag is {lag_s * 1e3:.1f} ms": lag_s > LIMIT_S,
        f"p99 of the TTFT error is {first_s * 1e3:.1f} ms": first_s > LIMIT_S,
        f"{late:.1%} of first reads held several tokens": late > FIRST_READS_MAX,
    }
    reason = next((text for text, holds in reasons.items() if holds), "")
    return CalibrationStep(
        rate=rate, output_tokens=tokens, requests=len(table), cpu_share=cpu.share, cpu_s_per_request=cpu.share / rate,
        send_lag_p99_s=lag_s, ttft_error_p99_s=first_s, last_token_error_p99_s=last_s, late_first_reads=late,
        server_cpu_share=truth.cpu_s / took_s, holds=not reason, reason=reason,
    ), output.facts.stamps  # fmt: skip


def _arrivals(rate: float, seconds: float) -> Ints:
    gaps = np.random.default_rng(1).exponential(1 / rate, round(rate * seconds * 1.5) + 50)
    at: Ints = (np.cumsum(gaps) * NS).astype(np.int64)
    return at[at < seconds * NS]


def _plan(at_ns: Ints, tokens: int, rate: float) -> RunPlan:
    count = np.full(at_ns.size, tokens, dtype=np.int64)
    return RunPlan(
        schedule=Schedule(at_ns=at_ns), input_tokens=count, output_tokens=count, prefix_tokens=count * 0,
        prefix_group=count * 0 - 1, content_seed=0, format=RequestFormat(), rate=rate, root_seed=0, workload_sha256="",
        window=Window(warmup_ns=0, window_ns=int(at_ns[-1]) + 1, tail_ns=round(_TAIL_S * NS)),
    )  # fmt: skip


def _p99(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(nearest_rank(np.sort(values), PERCENTILES["p99"])) if values.size else float("inf")


def _said(step: CalibrationStep) -> str:
    verdict = "holds" if step.holds else step.reason
    return f"{step.rate:.4g} requests/s of {step.output_tokens} tokens: {step.cpu_share:.0%} of a core, {verdict}"


class _LeanServer:
    def __init__(self, process: anyio.abc.Process, port: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}"

    async def told(self) -> _Truth:
        """End it, for what it noted."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        assert self._process.stdout is not None
        document = json.loads(b"".join([part async for part in self._process.stdout]))
        rows: Iterable[list[int]] = document["rows"]
        return _Truth(rows=np.array(list(rows), dtype=np.int64).reshape(-1, 4), cpu_s=float(document["cpu_s"]))


@contextlib.asynccontextmanager
async def _lean_server(tokens: int) -> AsyncIterator[_LeanServer]:
    command = [*module_command("loadgen.emulator.lean"), str(tokens), str(GAP_MS)]
    process = await anyio.open_process(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        line = b""
        with anyio.move_on_after(_START_S), contextlib.suppress(anyio.EndOfStream):
            line = await process.stdout.receive()
        if not line.strip().isdigit():
            raise TargetUnreachable(f"the lean server did not start within {_START_S:.0f} s")
        with cores_apart(process.pid):
            yield _LeanServer(process, int(line))
    finally:
        if process.returncode is None:
            process.kill()
        await let_go(process)
