"""The observer's own process: reads metrics pages, the machine and nvidia-smi while load is on, and hands them over.

Theory of operation. Parsing vLLM's 60 kB of metrics holds the interpreter for 20 ms, which in the sender would be 20
ms of send lag; so the observer is a process of its own (`python -m loadgen.target.scraper`), controlled by lines of
JSON on stdin, answering each with one line on stdout, gone when stdin ends. The first line is the configuration;
`begin`, with the ids of further sending processes, starts a run's observation and is answered after each source's
first reading; `end` takes a last reading and is answered with all of them. Each source has a thread, so one that hangs
blocks no other: a reading is bounded in time and size, and `end` waits only for sources that answered the last time,
and not long. A source that cannot become better (a key is wanted, no such page, no metrics in it, too long a page) is
not asked again in that run. Only lines of known names are parsed, a tenth of a page. Readings are bounded: when a
source has too many, every second one is dropped and the interval doubled. Instants are CLOCK_MONOTONIC, which all
processes of a machine share.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

from analysis.text import bounded
from loadgen.send.address import exhausted
from loadgen.target.scraped import Scraped, ScraperConfig, SourceReadings

__all__ = ["SMI_FIELDS", "main", "read_page"]

BODY_LIMIT: Final = 8 << 20
SCRAPE_TIMEOUT_S: Final = 2.0
END_TIMEOUT_S: Final = 1.5
MAX_ROWS: Final = 200_000  # of a source in a run
MAX_SERIES: Final = 5_000
LABEL_CHARS: Final = 200
_HOPELESS: Final = range(300, 500)  # answers that another try will not change
_SAMPLE: Final = re.compile(rb"^[A-Za-z_:][\w:]*(?:\{[^\n]*\})? +[-+0-9.eEINinfaN]+", re.MULTILINE)
SMI_FIELDS: Final = {
    "utilization.gpu": "nvidia_smi_utilization_gpu_percent",
    "utilization.memory": "nvidia_smi_utilization_memory_percent",
    "memory.used": "nvidia_smi_memory_used_mib",
    "power.draw": "nvidia_smi_power_draw_watts",
    "clocks.sm": "nvidia_smi_clocks_sm_mhz",
}

Row = tuple[str, Mapping[str, str], float]


class _Failed(Exception):
    """One reading failed; `hopeless` if the next one would too."""

    def __init__(self, why: str, *, hopeless: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless


@dataclass(slots=True, kw_only=True)
class Readings:
    """The samples of one source in one run, its series numbered in order of their first appearance."""

    name: str
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    scrapes: list[tuple[int, list[int], list[float]]] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    failures: int = 0
    why: str = ""
    rows: int = 0
    thinned: int = 1  # every so many-th reading is kept
    answering: bool = False  # the last reading was one

    def add(self, at_ns: int, rows: list[Row]) -> None:
        """Keep one reading."""
        ids, values = [], []
        for metric, labels, value in rows:
            text = orjson.dumps(dict(labels), option=orjson.OPT_SORT_KEYS).decode() if labels else ""
            key = (metric, text)
            if key not in self.ids and len(self.ids) >= MAX_SERIES:
                continue
            ids.append(self.ids.setdefault(key, len(self.ids)))
            values.append(value)
        self.scrapes.append((at_ns, ids, values))
        self.rows += len(ids)
        if self.rows > MAX_ROWS:
            self.scrapes = self.scrapes[::2]
            self.rows = sum(len(kept) for _, kept, _ in self.scrapes)
            self.thinned *= 2

    def report(self) -> SourceReadings:
        """For the parent."""
        took = sorted(self.took_ms)
        return SourceReadings(
            name=self.name,
            series=list(self.ids),
            scrapes=self.scrapes,
            failures=self.failures,
            why=self.why,
            thinned=self.thinned,
            took_ms=(took[len(took) // 2], took[-1]) if took else None,
        )


class _Source:
    """One thing that is read over and over in a thread of its own."""

    def __init__(self, name: str, read: Callable[[], list[Row]], interval_s: float) -> None:
        self.readings = Readings(name=name)
        self._read, self._interval_s = read, interval_s
        self._stop, self.first = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Take a last reading and end."""
        self._stop.set()

    def wait(self, until_s: float) -> None:
        """Wait for the last reading of a source that answers; of another none is waited for."""
        if self.readings.answering:
            self._thread.join(max(0.0, until_s - time.monotonic()))

    def _work(self) -> None:
        due_s = time.monotonic()
        while True:
            stopping = self._stop.is_set()
            hopeless = self._once()
            self.first.set()
            if stopping or hopeless or (self._stop.is_set() and not self.readings.answering):
                return
            step_s = self._interval_s * self.readings.thinned
            due_s += step_s * max(1, -(-(time.monotonic() - due_s) // step_s))  # what was missed is not caught up
            self._stop.wait(max(0.0, due_s - time.monotonic()))

    def _once(self) -> bool:
        readings, began_ns = self.readings, time.monotonic_ns()
        try:
            rows = self._read()
        except _Failed as failure:
            readings.failures += 1
            readings.why, readings.answering = str(failure), False
            return failure.hopeless
        except Exception as error:  # any failure of the parser on a hostile page
            readings.failures += 1
            readings.why, readings.answering = f"not readable ({type(error).__name__})", False
            return True
        ended_ns = time.monotonic_ns()
        readings.took_ms.append((ended_ns - began_ns) / 1e6)
        readings.add((began_ns + ended_ns) // 2, rows)
        readings.answering = True
        return False


def _page(client: httpx.Client, url: str, wanted: re.Pattern[bytes]) -> list[Row]:
    """One reading of a metrics page."""
    body, began_s = bytearray(), time.monotonic()
    try:
        with client.stream("GET", url, timeout=SCRAPE_TIMEOUT_S) as answer:
            if answer.status_code != 200:
                wants_key = " (a key is wanted)" if answer.status_code in (401, 403) else ""
                raise _Failed(f"answers {answer.status_code}{wants_key}", hopeless=answer.status_code in _HOPELESS)
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > BODY_LIMIT:
                    raise _Failed(f"a page of more than {BODY_LIMIT >> 20} MiB", hopeless=True)
                if time.monotonic() - began_s > SCRAPE_TIMEOUT_S:
                    raise _Failed(f"no whole answer within {SCRAPE_TIMEOUT_S:g} s")
    except httpx.TimeoutException:
        raise _Failed(f"no answer within {SCRAPE_TIMEOUT_S:g} s") from None
    except httpx.HTTPError as error:
        if exhausted(error):
            raise _Failed("this machine had no port or file descriptor left to ask by") from None
        raise _Failed(f"out of reach ({type(error).__name__})") from None
    return read_page(bytes(body), wanted)


def read_page(body: bytes, wanted: re.Pattern[bytes]) -> list[Row]:
    """The samples of a metrics page on the lines that `wanted` matches."""
    if _SAMPLE.search(body) is None:
        raise _Failed("no metrics in it", hopeless=True)
    lines = b"\n".join(wanted.findall(body)).decode(errors="replace")
    rows: list[Row] = []
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            value = float(sample.value)
            if value - value == 0:  # neither NaN nor infinite
                rows.append((sample.name, {k: v[:LABEL_CHARS] for k, v in sample.labels.items()}, value))
    if not rows:
        raise _Failed("no metric in it that is known here", hopeless=True)
    return rows


def _cpu_ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def _client(pid: int, senders: Sequence[int]) -> list[Row]:
    """The sending processes and their machine from /proc, cumulated since their start; one that died has none."""
    try:
        ticks = _cpu_ticks(pid)
        for sender in senders:
            with suppress(OSError):
                ticks += _cpu_ticks(sender)
        machine = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        nics = Path("/proc/net/dev").read_text().splitlines()[2:]
    except (OSError, ValueError):
        raise _Failed("no /proc on this system", hopeless=True) from None
    tick = os.sysconf("SC_CLK_TCK")
    idle = machine[3] + machine[4]
    rows: list[Row] = [
        ("client_process_cpu_seconds_total", {}, ticks / tick),
        ("client_machine_cpu_seconds_total", {"mode": "busy"}, (sum(machine) - idle) / tick),
        ("client_machine_cpu_seconds_total", {"mode": "idle"}, idle / tick),
    ]
    for line in nics:
        device, _, counts = line.partition(":")
        numbers = counts.split()
        for direction, column in (("receive", 0), ("transmit", 8)):
            labels = {"device": device.strip(), "direction": direction}
            rows.append(("client_network_bytes_total", labels, float(numbers[column])))
    return rows


class _Smi:
    """nvidia-smi, asked again and again by one call of its own loop."""

    def __init__(self) -> None:
        query = ",".join(("index", *SMI_FIELDS))
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-l", "1"]
        self.readings = Readings(name="nvidia-smi")
        self.first = threading.Event()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop it."""
        self._process.kill()

    def wait(self, until_s: float) -> None:
        self._thread.join(max(0.0, until_s - time.monotonic()))

    def _work(self) -> None:
        assert self._process.stdout is not None
        gpus: dict[str, list[Row]] = {}
        for line in self._process.stdout:
            index, *cells = (cell.strip() for cell in line.split(","))
            if len(cells) != len(SMI_FIELDS):
                self.readings.why = bounded(line.strip(), 80)
                continue
            if index in gpus:  # the next round began
                self._round(gpus)
            gpus[index] = list(_numbers(index, cells))
        self._round(gpus)
        self.first.set()
        self._process.wait()

    def _round(self, gpus: dict[str, list[Row]]) -> None:
        rows = list(itertools.chain(*gpus.values()))
        gpus.clear()
        if rows:
            self.readings.add(time.monotonic_ns(), rows)
            self.first.set()


def _numbers(index: str, cells: list[str]) -> Iterator[Row]:
    for name, cell in zip(SMI_FIELDS.values(), cells, strict=True):
        try:
            yield name, {"gpu": index}, float(cell)
        except ValueError:  # [N/A]
            continue


class _Run:
    """One run's observation."""

    def __init__(
        self, pages: list[tuple[str, Callable[[], list[Row]]]], config: ScraperConfig, senders: Sequence[int]
    ) -> None:
        self._cpu = time.process_time()
        pid = config.client_pid
        sources = [*pages, ("client", lambda: _client(pid, senders))]
        self._sources: list[_Source | _Smi] = [_Source(name, read, config.interval_s) for name, read in sources]
        if config.smi and shutil.which("nvidia-smi"):
            self._sources.append(_Smi())
        for source in self._sources:
            source.start()
        until_s = time.monotonic() + SCRAPE_TIMEOUT_S
        for source in self._sources:
            if isinstance(source, _Source):
                source.first.wait(max(0.0, until_s - time.monotonic()))

    def end(self) -> Scraped:
        """All readings."""
        until_s = time.monotonic() + END_TIMEOUT_S
        for source in self._sources:
            source.end()
        for source in self._sources:
            source.wait(until_s)
        return Scraped(
            sources=tuple(source.readings.report() for source in self._sources),
            cpu_s=time.process_time() - self._cpu,
        )


def main() -> None:
    """Serve the parent until stdin ends."""
    os.nice(19)  # on a core it shares with the sender, a reading of some ms must wait for a request, not the reverse
    config = ScraperConfig.parse(sys.stdin.buffer.readline())
    wanted = re.compile(config.wanted.encode(), re.MULTILINE)
    pages: list[tuple[str, Callable[[], list[Row]]]] = []
    for page in config.sources:
        url = page.url
        verify = config.tls.context() if url.startswith("https") else False
        unix = httpx.HTTPTransport(uds=page.socket) if page.socket else None
        client = httpx.Client(headers=page.headers, verify=verify, trust_env=False, transport=unix)
        pages.append((page.name, lambda client=client, url=url: _page(client, url, wanted)))  # type: ignore[misc]
    run: _Run | None = None
    for line in sys.stdin.buffer:
        answer = Scraped()
        command, *senders = line.split()
        if command == b"begin":
            if run is not None:  # a run that was broken off
                run.end()
            run = _Run(pages, config, [int(pid) for pid in senders])
        elif run is not None:
            answer, run = run.end(), None
        sys.stdout.buffer.write(orjson.dumps(answer) + b"\n")
        sys.stdout.buffer.flush()
    os._exit(0)  # a thread may be waiting for a server that never answers


if __name__ == "__main__":
    main()
