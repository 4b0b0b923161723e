"""The observer's process against real HTTP servers, well and badly behaved."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from analysis.server_metrics.readings import observe
from analysis.server_metrics.types import Observation
from loadgen.target import scraper
from loadgen.target.observe import END_TIMEOUT_S, Observer
from loadgen.target.scraped import Page
from tests.fakes.pages import TEXT, raw
from tests.fakes.server import Request, Script, answering, in_thread

pytestmark = pytest.mark.realtime

WAITING = b'# HELP vllm:num_requests_waiting x\nvllm:num_requests_waiting{engine="0"} 3\nvllm:other 1\n'


def page(body: bytes, status: int = 200) -> Script:
    return answering(raw((status, TEXT, body)), keep=False)


async def endless(request: Request) -> None:
    request.keep = False
    await request.write(b"HTTP/1.1 200 OK\r\n\r\n")
    lines = b"".join(b'vllm:num_requests_waiting{engine="%d"} 3\n' % n for n in range(2000))
    for _ in range((60 << 20) // len(lines)):
        await request.write(lines)  # until the observer hangs up


async def hanging(request: Request) -> None:
    await request.gone()


async def trickling(request: Request) -> None:
    request.keep = False
    await request.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(200):
        await request.write(b"vllm:num_requests_waiting 1\n")
        await asyncio.sleep(0.1)


async def watched(observer: Observer, until: Callable[[], bool] = lambda: True) -> tuple[Observation, float]:
    """One short run's readings, and how long their handing over took, seconds."""
    try:
        await observer.begin()
        t0_ns = time.monotonic_ns()
        with anyio.fail_after(20):
            while not until():  # noqa: ASYNC110 - a server's thread counts, which sets no event
                await anyio.sleep(0.01)
        began_s = time.monotonic()
        return await observer.end(t0_ns), time.monotonic() - began_s
    finally:
        await observer.close()


def one(url: str, interval_s: float = 0.05) -> Observer:
    return Observer([Page(name=url, url=f"{url}/metrics")], interval_s=interval_s)


async def test_readings_come_before_during_and_after_a_run() -> None:
    asked: list[float] = []

    async def counted(request: Request) -> None:
        asked.append(time.monotonic())
        await page(b"vllm:num_requests_waiting 3\nvllm:num_preemptions_total %d\n" % len(asked))(request)

    with in_thread(counted) as url:
        seen, _ = await watched(one(url), lambda: len(asked) >= 5)
    own = seen.series[seen.series["metric"] == "vllm:num_preemptions_total"]
    assert list(own["value"]) == list(range(1, len(asked) + 1))  # none is lost, the last came after the end
    assert own["at_ns"].iloc[0] < 0 < own["at_ns"].iloc[1]
    view = observe(seen, start_ns=0, end_ns=60 * 10**9)
    assert view.value("preemptions", "n") == len(asked) - 1
    assert view.value("waiting", "max") == 3
    assert view.value("client_cpu_s", "n") is not None
    assert any("GPU" in text for text in view.not_measured)


async def test_a_second_run_has_its_own_readings() -> None:
    with in_thread(page(WAITING)) as url:
        observer = one(url, 10)
        await observer.begin()
        first = await observer.end(time.monotonic_ns())
        second, _ = await watched(observer)
    assert [report.scrapes for report in first.sources] == [2, 2] == [report.scrapes for report in second.sources]


HOPELESS = {
    "wants a key": (page(b"no", 401), "answers 401 (a key is wanted)"),
    "absent": (page(b"no", 404), "answers 404"),
    "garbage": (page(b"\x00\xff garbage {{{ \n <html>"), "no metrics in it"),
    "empty": (page(b""), "no metrics in it"),
    "unknown": (page(b"unknown_metric 1\n"), "no metric in it that is known here"),
    "cut": (page(b'vllm:num_requests_waiting{engine="0" 3\nx 1\n'), "not readable (ValueError)"),
    "endless": (endless, "a page of more than 8 MiB"),
}


async def test_a_page_that_cannot_become_better_is_asked_once_and_said_why() -> None:
    asked: list[str] = []

    def counted(name: str, answer: Script) -> Script:
        async def script(request: Request) -> None:
            asked.append(name + request.path)
            await answer(request)

        return script

    with ExitStack() as servers:
        pages = [
            Page(name=name, url=servers.enter_context(in_thread(counted(name, answer))) + "/metrics")
            for name, (answer, _) in HOPELESS.items()
        ]
        good = Page(name="good", url=servers.enter_context(in_thread(page(WAITING))))
        ticks = iter(range(11))
        seen, took_s = await watched(Observer([*pages], [good], interval_s=0.02), lambda: next(ticks) == 10)
    *hopeless, fine, _ = seen.sources
    reasons = [why for _, why in HOPELESS.values()]
    assert [(bad.scrapes, bad.failures, bad.why) for bad in hopeless] == [(0, 1, why) for why in reasons]
    assert sorted(asked) == sorted(f"{name}/metrics" for name in HOPELESS)
    assert fine.scrapes > 2
    assert took_s < 1
    view = observe(seen, start_ns=0, end_ns=10**12)
    assert view.not_measured[: len(HOPELESS)] == tuple(f"{name}: {why}" for name, (_, why) in HOPELESS.items())


@pytest.mark.parametrize("answer", [hanging, trickling])
async def test_a_page_that_hangs_holds_up_neither_other_sources_nor_the_end(answer: Script) -> None:
    with in_thread(answer) as url, in_thread(page(WAITING)) as good:
        observer = Observer([Page(name=url, url=f"{url}/metrics")], [Page(name="good", url=good)], interval_s=0.05)
        seen, took_s = await watched(observer)
    assert took_s < scraper.END_TIMEOUT_S
    assert seen.sources[0].scrapes == 0
    assert seen.sources[1].scrapes > 5


async def test_a_page_that_begins_to_hang_delays_the_end_by_a_bounded_time() -> None:
    asked: list[float] = []

    async def dying(request: Request) -> None:
        asked.append(0)
        await (page(WAITING) if len(asked) < 3 else hanging)(request)

    with in_thread(dying) as url:
        seen, took_s = await watched(one(url), lambda: len(asked) >= 3)
    assert took_s < END_TIMEOUT_S
    assert seen.sources[0].scrapes == 2


async def test_an_observer_that_is_killed_costs_its_readings_and_nothing_else() -> None:
    with in_thread(page(WAITING)) as url:
        observer = one(url)
        await observer.begin()
        assert observer.process_id is not None
        os.kill(observer.process_id, signal.SIGKILL)
        seen = await observer.end(time.monotonic_ns())
        assert (len(seen.series), seen.sources[0].why) == (0, "the observer ended")
        again, _ = await watched(observer)  # the next run is watched again
    assert again.sources[0].scrapes >= 2


async def test_the_client_s_cpu_is_that_of_every_sending_process() -> None:
    async def cpu_s(senders: tuple[int, ...]) -> float:
        with in_thread(page(WAITING)) as url:
            observer = one(url)
            try:
                await observer.begin(senders)
                series = (await observer.end(time.monotonic_ns())).series
            finally:
                await observer.close()
        return float(series.loc[series["metric"] == "client_process_cpu_seconds_total", "value"].iloc[-1])

    alone, gone = await cpu_s(()), 2**22 + 1  # no process has this id
    assert await cpu_s((os.getpid(), gone)) > 1.9 * alone


async def test_the_key_goes_to_the_target_alone_and_is_in_no_argument() -> None:
    heads: dict[str, str | None] = {}

    def header(request: Request, name: bytes) -> str | None:
        lines = (line.partition(b": ") for line in request.head.split(b"\r\n"))
        return next((value.decode() for key, _, value in lines if key.lower() == name), None)

    def noting(name: str) -> Script:
        async def answer(request: Request) -> None:
            heads[name] = header(request, b"authorization")
            await page(WAITING)(request)

        return answer

    with in_thread(noting("target")) as url, in_thread(noting("other")) as other:
        observer = Observer(
            [Page(name=url, url=f"{url}/metrics", headers={"authorization": "Bearer sk-secret"})],
            [Page(name="other", url=other)], interval_s=5,
        )  # fmt: skip
        await observer.start()
        command = Path(f"/proc/{observer.process_id}/cmdline").read_bytes()  # noqa: ASYNC240 - no disk behind it
        assert b"sk-secret" not in command
        await watched(observer)
    assert heads == {"target": "Bearer sk-secret", "other": None}


async def test_nvidia_smi_is_read_where_the_server_is_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    says = "echo '0, 90, 40, 70000, 400.5, 1980'; echo '1, 70, [N/A], 1, 2, 3'"
    tool.write_text(f"#!/bin/sh\nfor i in 1 2 3 4; do {says}; done\nexec sleep 20\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with in_thread(page(WAITING)) as url:
        seen, took_s = await watched(one(url), iter([False] * 30 + [True]).__next__)
    view = observe(seen, start_ns=-(10**10), end_ns=10**12)
    assert took_s < scraper.END_TIMEOUT_S
    assert view.metrics["gpu_busy"] == {"mean": pytest.approx(0.8), "max": pytest.approx(0.8)}
    assert view.value("memory_busy", "max") == pytest.approx(0.4)


def test_readings_are_thinned_evenly_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraper, "MAX_ROWS", 100)
    readings = scraper.Readings(name="x")
    at = 0
    for _ in range(400):
        readings.add(at, [("m", {}, 1.0)])
        at += readings.thinned
    kept = [at_ns for at_ns, _, _ in readings.scrapes]
    assert len(kept) <= 100
    assert readings.thinned > 1
    assert kept[0] == 0
    assert {later - earlier for earlier, later in pairwise(kept)} == {readings.thinned}
