"""Between two runs: the target becomes idle, healthy again and as cold as the cache policy says (method, section 7).

Theory of operation. `settle` is called before every run, the one that warms the target included. Running and waiting
requests must come to zero; then the policy acts; then a small request tells whether the server is as quick as it was
before the first measured run. One that is slower is waited for, and what waiting does not mend is a finding of the run:
something that the metrics do not show (another tenant, a throttled card, a compaction) is still at work.

    salt     nothing: each run brings its own cache_salt
    reset    POST /reset_prefix_cache until it says success
    restart  the user's command restarts the server; then it is ready, warm and idle again, and another process
    command  the user's command does what it does; then the server is ready and idle again
    keep     nothing: runs are blocks of one history
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import anyio

from loadgen.errors import TargetUnfit
from loadgen.plan.types import RequestFormat
from loadgen.target.command import run_command
from loadgen.target.ready import Progress
from loadgen.target.target import Target

__all__ = ["Between", "Policy"]

Policy = Literal["salt", "reset", "restart", "command", "keep"]

PROBE_TOKENS: Final = (64, 1)  # input and output: its E2E is a TTFT
PROBES: Final = 3  # the quickest counts, for what slows one of them down need not last
SLOWER: Final = 2.0
SLACK_S: Final = 0.05  # a quick server's probe doubles by chance
HEALTH_WAIT_S: Final = 30.0
WARM_REQUESTS: Final = 8  # after a restart; the run's own warm-up follows


@dataclass(slots=True, kw_only=True)
class Between:
    """What is done between the runs of one target; see the module's theory of operation."""

    target: Target
    policy: Policy
    form: RequestFormat
    command: Sequence[str] = ()  # of restart and command
    ready_timeout_s: float = 60.0
    progress: Progress | None = None
    warm_lengths: Sequence[tuple[int, int]] = ((256, 16),)  # (input, output) tokens of the warm-up after a restart
    health_wait_s: float = HEALTH_WAIT_S
    unseen: str = ""  # why idleness cannot be observed, once that is known
    _settled: int = 0
    _first_s: float = field(default=0.0)

    async def settle(self) -> str:
        """Make the target ready for a run; what is still odd about it in words, or an empty string.

        Raises `TargetUnfit` where it does not get idle, a command fails or a reset is refused, `TargetUnreachable`.
        """
        await self._idle()
        if self._settled or self.policy == "reset":
            await self._act()
        self._settled += 1
        return "" if self._settled == 1 else await self._health()

    async def _idle(self) -> None:
        idle = await self.target.wait_idle()
        if idle.idle is False:
            label = self.target.label
            raise TargetUnfit(f"{label}: {idle.text}; stop other clients of this server before it is measured")
        if idle.idle is None:
            self.unseen = idle.text

    async def _act(self) -> None:
        if self.policy == "reset":
            await self.target.reset_cache()
        elif self.policy == "restart":
            before = await self.target.started()
            await self._run("--restart-command")
            await self._restarted(before)
            await self.target.warm(WARM_REQUESTS, self.warm_lengths, self.form)
            await self._idle()
        elif self.policy == "command":
            await self._run("--between-command")

    async def _run(self, option: str) -> None:
        if self.progress is not None:
            self.progress(f"{option}: {self.command[0]} …")
        await run_command(option, self.command)
        await self.target.wait_ready(self.ready_timeout_s, self.progress)
        await self._idle()

    async def _restarted(self, before: Mapping[str, float | None]) -> None:
        """A command may end before the old process has; one that never does was not restarted."""
        began_s = anyio.current_time()
        while True:
            after = await self.target.started()
            same = [url for url, at in after.items() if at is not None and at == before[url]]
            if not same:
                return
            if anyio.current_time() - began_s > self.ready_timeout_s:
                raise TargetUnfit(
                    f"--restart-command ended well, but the server at {', '.join(same)} is the same process as before"
                )
            await anyio.sleep(0.5)
            await self.target.wait_ready(self.ready_timeout_s, self.progress)

    async def _health(self) -> str:
        took_s = await self._probe()
        if not self._first_s:
            self._first_s = took_s
            return ""
        limit_s = max(SLOWER * self._first_s, self._first_s + SLACK_S)
        began_s, pause_s = anyio.current_time(), 0.5
        while took_s > limit_s:
            if anyio.current_time() - began_s + pause_s > self.health_wait_s:
                return (
                    f"the idle target answers a small request after {took_s * 1e3:.0f} ms, before the first run it "
                    f"took {self._first_s * 1e3:.0f} ms: something else is at work there"
                )
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)
            took_s = await self._probe()
        return ""

    async def _probe(self) -> float:
        """Seconds to the first token of a small request, the slowest server's, each one's quickest of three."""
        n = len(self.target.urls)
        took_s = await self.target.warm(PROBES * n, (PROBE_TOKENS,), self.form)
        return max(min(took_s[server::n]) for server in range(n))
