"""Between two runs: the target becomes idle, healthy again and as cold as the cache policy says (method, section 7).

Theory of operation. `settle` is called before every run, the one that warms the target included, and `settled` after
it. Running and waiting requests must come to zero; then (before a run) the policy acts; then a small request tells
whether the server is as quick as it was before the first measured run. What is odd about either is a finding that makes
the run INVALID: the target was not ours alone, or not well (another tenant, a throttled card, a compaction), and
nobody knows for how long. Odd is

    requests that are not ours   the target had to be waited for, though nothing of this client's was left on it
    a slow probe                 the quickest of three is slower than 1.5 × the median of the first three, twice in a
                                 row: a server whose answers differ by chance must not be called ill
    a failed probe

It is then waited for, so that the next run finds it well. After a load, requests that we cancelled may still be at
work: waiting for these is no oddness. Every look is kept.

    salt     nothing: each run brings its own cache_salt
    reset    POST /reset_prefix_cache until it says success
    restart  the user's command restarts the server; then it is ready, warm and idle again, and another process
    command  the user's command does what it does; then the server is ready and idle again
    keep     nothing: runs are blocks of one history
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

import anyio

from loadgen.common import defaults
from loadgen.common.errors import TargetUnfit
from loadgen.plan.types import RequestFormat
from loadgen.target.command import TIMEOUT_S, run_command
from loadgen.target.ready import Progress
from loadgen.target.target import IDLE_WAIT_S, PATIENCE_S, RESET_S, WARM_TIMEOUT_S, Idle, Target

__all__ = ["Between", "Look", "Policy", "longest_between_s"]

Policy = Literal["salt", "reset", "restart", "command", "keep"]

PROBE_TOKENS: Final = (64, 1)  # input and output: its E2E is a TTFT
PROBES: Final = 3  # the quickest counts, for what slows one of them down need not last
SLOWER: Final = 1.5
SLACK_S: Final = 0.02  # a quick server's probe doubles by what a busy client adds
LINGER_S: Final = 0.5  # a gauge may show a request for so long after its answer
HEALTH_WAIT_S: Final = 30.0
RESIDUE_WAIT_S: Final = 120.0  # where only probes can tell when cancelled requests have left
WARM_REQUESTS: Final = 8  # after a restart; the run's own warm-up follows


PROBE_LIMIT_S: Final = 30.0  # of a round


def longest_between_s(policy: Policy, ready_timeout_s: float) -> float:
    """The longest that may pass between the load of two runs before the search is told or ended, seconds."""
    looks_s = 2 * (IDLE_WAIT_S + 4 * PROBE_LIMIT_S + max(HEALTH_WAIT_S, RESIDUE_WAIT_S))
    acts_s = {
        "reset": RESET_S,
        "restart": TIMEOUT_S + 2 * ready_timeout_s + 2 * IDLE_WAIT_S + WARM_REQUESTS * WARM_TIMEOUT_S,
        "command": TIMEOUT_S + ready_timeout_s + IDLE_WAIT_S,
    }
    return looks_s + 2 * PATIENCE_S + acts_s.get(policy, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the idle target; seconds. `odd` says what was not as it should be; empty if nothing was."""

    when: Literal["before", "after"]  # the run
    busy: float  # requests running or waiting at first
    idle_wait_s: float
    probe_s: float | None = None  # None: there was none
    probe_wait_s: float = 0.0  # until the probe was as quick as the first ones, or was given up
    first_probe_s: float | None = None
    odd: str = ""


@dataclass(slots=True, kw_only=True)
class Between:
    """What is done between the runs of one target; see the module's theory of operation."""

    target: Target
    policy: Policy
    form: RequestFormat
    command: Sequence[str] = ()  # of restart and command
    ready_timeout_s: float = defaults.READY_TIMEOUT_S
    progress: Progress | None = None
    warm_lengths: Sequence[tuple[int, int]] = ((256, 16),)  # (input, output) tokens of the warm-up after a restart
    health_wait_s: float = HEALTH_WAIT_S
    unseen: str = ""  # why idleness cannot be observed, once that is known
    looks: list[Look] = field(default_factory=list)  # since they were last taken
    _settled: int = 0
    _first_s: float = field(default=0.0)
    _loaded: bool = False  # by us, and not looked at since
    _cancelled: bool = False  # what was on the wire when the load ended was cancelled, and may go on there

    @property
    def first(self) -> bool:
        """Whether the target was settled no more than once, for its warm-up."""
        return self._settled <= 1

    def load_ended(self, *, cancelled: bool) -> None:
        """Say that our own load was on; `cancelled`: and that requests of it were given up."""
        self._loaded, self._cancelled = True, cancelled

    def take_looks(self) -> list[Look]:
        """The looks since the last call."""
        taken, self.looks = self.looks, []
        return taken

    async def settle(self) -> str:
        """Make the target ready for a run; what is odd about it in words, or an empty string.

        Raises `TargetUnfit` where it does not get idle, a command fails or a reset is refused, `TargetUnreachable`,
        and `ClientLimited` where this machine gives no connection.
        """
        idle = await self._idle()
        said = self._others(idle)
        residue = self._loaded and self._cancelled and idle.idle is None
        self._loaded = False
        if self._settled or self.policy == "reset":
            await self._act()
        self._settled += 1
        if self._settled == 1:
            self.looks.append(Look(when="before", busy=idle.busy, idle_wait_s=idle.waited_s, odd=said))
            return said
        return await self._look("before", idle, said, residue=residue)

    async def settled(self) -> str:
        """Look at the target after a run; what is odd about it in words, or an empty string.

        Raises `TargetUnreachable` where it is gone, and `ClientLimited`.
        """
        idle = await self.target.wait_idle()
        self._loaded = False
        if idle.idle is False:  # our own work may last longer: before the next run it must have ended
            self._loaded = True
            self.looks.append(Look(when="after", busy=idle.busy, idle_wait_s=idle.waited_s))
            return ""
        return await self._look("after", idle, "", residue=self._cancelled and idle.idle is None)

    async def _idle(self) -> Idle:
        idle = await self.target.wait_idle()
        if idle.idle is False:
            label = self.target.label
            raise TargetUnfit(f"{label}: {idle.text}; stop other clients of this server before it is measured")
        if idle.idle is None:
            self.unseen = idle.text
        return idle

    def _others(self, idle: Idle) -> str:
        if self._loaded or not idle.busy or idle.waited_s <= LINGER_S:
            return ""
        return (
            f"{idle.busy:.0f} requests were at work before the run, none of them this client's, and were waited for "
            f"({idle.waited_s:.1f} s): others use the target"
        )

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

    async def _look(self, when: Literal["before", "after"], idle: Idle, said: str, *, residue: bool) -> str:
        """Probe, wait for a slow target, and keep what was seen; a probe slowed by our `residue` is not odd."""
        began_s, slow = anyio.current_time(), ""
        took_s: float | None
        if self._first_s:
            took_s, slow = await self._probed(when)
        else:
            try:
                took_s = self._first_s = await self._probe(median)
            except TimeoutError:
                label = self.target.label
                raise TargetUnfit(
                    f"{label}: idle, and no answers to small requests within {PROBE_LIMIT_S:g} s"
                ) from None
        if slow:
            limit_s, pause_s = RESIDUE_WAIT_S if residue else self.health_wait_s, 0.5
            again = slow
            while again and anyio.current_time() - began_s + pause_s <= limit_s:
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, 5.0)
                again = (await self._probed(when))[1]
            waited_s = anyio.current_time() - began_s
            slow += (
                f"; {'still so' if again else 'as quick as before'} after {waited_s:.1f} s: something else was at work"
            )
        odd = "; ".join(text for text in (said, "" if residue else slow) if text)
        self.looks.append(
            Look(
                when=when,
                busy=idle.busy,
                idle_wait_s=idle.waited_s,
                probe_s=took_s,
                probe_wait_s=anyio.current_time() - began_s if slow else 0.0,
                first_probe_s=self._first_s,
                odd=odd,
            )
        )
        return odd

    async def _probed(self, when: str) -> tuple[float | None, str]:
        """(seconds of a small request, what is odd about it); a slow round counts only if the next is slow too."""
        limit_s = max(SLOWER * self._first_s, self._first_s + SLACK_S)
        try:
            took_s = await self._probe()
            if took_s > limit_s:
                took_s = min(took_s, await self._probe())
        except (TargetUnfit, TimeoutError) as failed:
            why = str(failed) or f"no answers within {PROBE_LIMIT_S:g} s"
            return None, f"a small request to the idle target {when} the run failed: {why}"
        if took_s <= limit_s:
            return took_s, ""
        return took_s, (
            f"the idle target answered a small request after {took_s * 1e3:.0f} ms {when} the run, before the first "
            f"run it took {self._first_s * 1e3:.0f} ms"
        )

    async def _probe(self, of: Callable[[Sequence[float]], float] = min) -> float:
        """Seconds to the first token of a small request, the slowest server's: `of` three to each, the quickest."""
        n = len(self.target.urls)
        with anyio.fail_after(PROBE_LIMIT_S):
            took_s = await self.target.warm(PROBES * n, (PROBE_TOKENS,), self.form)
        return max(of(took_s[server::n]) for server in range(n))
