"""Watching the target while load is on, from a process of its own (see `loadgen.target.scraper`).

The sender's process only starts a run's observation before t0 and fetches the readings when the load is over; between
the two it has nothing to do with them. Whatever goes wrong here is said in the run's record and disturbs no run: a
scraper that does not answer in time is killed, and started again for the next run. CPU budget: 2 % of one core per
target at one reading a second (measured with vLLM's 52 kB: 7 ms a reading, the client's own /proc included).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread
import numpy as np
import orjson
import pandas as pd

from analysis.server_metrics.types import Observation, SourceReport, wanted
from loadgen.common.child import environment, let_go, module_command
from loadgen.common.tls import Tls
from loadgen.target.scraped import Page, Scraped, ScraperConfig

__all__ = ["Observer"]

START_TIMEOUT_S: Final = 15.0
END_TIMEOUT_S: Final = 4.0  # the scraper gives its sources 1.5 s for their last reading
_LOOPBACK: Final = ("//127.", "//localhost", "//[::1]")


class Observer:
    """Watches `targets` and `others` between `begin` and `end`, as often as there are runs; `close` ends it."""

    def __init__(
        self, targets: Sequence[Page], others: Sequence[Page] = (), *, interval_s: float, tls: Tls | None = None
    ) -> None:
        self._targets, self._others = tuple(targets), tuple(others)
        self._interval_s, self._tls = interval_s, tls or Tls()
        self._process: anyio.abc.Process | None = None
        self._rest = b""
        self._why = ""

    @property
    def process_id(self) -> int | None:
        """The process that watches, while there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process, which takes a second to get ready; `begin` would do it."""
        if self._process is None:
            await self._start()

    async def begin(self, senders: Sequence[int] = ()) -> None:
        """Start watching; each source that answers has been read once when this returns. Raises nothing.

        `senders`: processes whose CPU is the client's, beside this one's.
        """
        await self.start()
        await self._ask(b" ".join([b"begin", *(b"%d" % pid for pid in senders)]) + b"\n", START_TIMEOUT_S)

    async def end(self, t0_ns: int) -> Observation:
        """All readings since `begin`, on the clock of the run that began at `t0_ns` (CLOCK_MONOTONIC)."""
        answer = await self._ask(b"end\n", END_TIMEOUT_S)
        names = [page.name for page in self._targets]
        if answer is None:
            return Observation.nothing(self._why, names)
        return await anyio.to_thread.run_sync(_observation, answer, t0_ns, self._interval_s, tuple(names))

    async def close(self) -> None:
        """End the scraper."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await let_go(process)

    async def _start(self) -> None:
        pages = [*self._targets, *self._others]
        here = any(mark in page.url for page in self._targets for mark in _LOOPBACK)
        config = ScraperConfig(
            sources=tuple(pages),
            tls=self._tls,
            interval_s=self._interval_s,
            wanted=wanted(),
            client_pid=os.getpid(),
            smi=here,  # on another machine than the server's it would tell of the wrong GPUs
        )
        command = module_command("loadgen.target.scraper")
        try:
            self._process = await anyio.open_process(
                command,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdin is not None
            await self._process.stdin.send(orjson.dumps(config) + b"\n")  # by pipe: arguments can be seen by others
        except (OSError, anyio.BrokenResourceError) as error:
            self._why = f"the observer could not be started ({error})"
        self._rest = b""

    async def _ask(self, command: bytes, timeout_s: float) -> Scraped | None:
        """The scraper's answer; without one in time it is killed, and `None`."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        began_s = time.monotonic()
        try:
            with anyio.fail_after(timeout_s):
                await process.stdin.send(command)
                chunks = [self._rest]
                while b"\n" not in chunks[-1]:
                    chunks.append(await process.stdout.receive(1 << 20))
            line, _, self._rest = b"".join(chunks).partition(b"\n")
            answer = Scraped.parse(line)
        except TimeoutError:
            self._why = f"the observer did not answer within {time.monotonic() - began_s:.0f} s"
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, orjson.JSONDecodeError):
            self._why = "the observer ended"
        else:
            return answer
        await self.close()
        return None


def _observation(answer: Scraped, t0_ns: int, interval_s: float, targets: tuple[str, ...]) -> Observation:
    tables, reports = [], []
    for source in answer.sources:
        took = source.took_ms or (None, None)
        reports.append(
            SourceReport(
                name=source.name, scrapes=len(source.scrapes), failures=source.failures, why=source.why,
                took_p50_ms=took[0], took_max_ms=took[1], thinned=source.thinned,
            )
        )  # fmt: skip
        if not source.scrapes:
            continue
        ids = np.concatenate([np.asarray(kept, dtype=np.int64) for _, kept, _ in source.scrapes])
        at_ns = np.repeat([at for at, _, _ in source.scrapes], [len(kept) for _, kept, _ in source.scrapes]).astype(
            np.int64
        )
        keys = np.empty((len(source.series), 2), dtype=object)
        keys[:] = source.series
        tables.append(
            pd.DataFrame(
                {
                    "at_ns": at_ns - t0_ns,
                    "source": source.name,
                    "metric": keys[ids, 0],
                    "labels": keys[ids, 1],
                    "value": np.concatenate([np.asarray(values, dtype=np.float64) for *_, values in source.scrapes]),
                }
            )
        )
    series = pd.concat(tables, ignore_index=True) if tables else Observation.nothing("").series
    return Observation(
        series=series, sources=tuple(reports), interval_s=interval_s, cpu_s=answer.cpu_s, targets=targets
    )
