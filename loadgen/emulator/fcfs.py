"""The single-server queue: one request at a time, first come first served, service drawn from a mixture.

Theory of operation. The queue is closed form (Lindley): a request that arrives at a starts at max(a, finish of the one
before) and finishes one service later, independent of what follows. Token j of O is due at start + service·j/O, so the
last one is due at the finish, and with O = 1 the only one is. Instants are integers (ns): the same arrivals and
services give the same finishes to the last digit, over HTTP or without it.

The service is a function of the prompt alone: `service.prompt_uniform` of its ids and the profile's seed, put
through the mixture's quantile function. Equal prompts meet equal services, so a replicate's paired seed meets the
same services at every rate and in every variant.

A client that goes away frees nothing: its work stays in the queue, and the gauges keep counting it until it is
done, for a queue that looked idle with work left would spoil the next run.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadgen.emulator.model import Emission, Gauges, Job
from loadgen.emulator.service import WeibullService, prompt_uniform

__all__ = ["FcfsModel", "ServiceMix", "token_ns"]

MERGE_NS = 500_000  # inner tokens closer than this to the last wake-up wait for the next one; the finish never does


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMix:
    """A discrete mixture of service times: `times_ns[i]` with probability `shares[i]` (they sum to 1)."""

    times_ns: tuple[int, ...]
    shares: tuple[float, ...]
    edges: tuple[float, ...] = field(init=False)  # cumulated shares but the last

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(itertools.accumulate(self.shares))[:-1])

    def time_ns(self, uniform: float) -> int:
        """The service time at one uniform in [0, 1): the first entry whose cumulated share exceeds it."""
        return self.times_ns[bisect_right(self.edges, uniform)]

    def quantile_ns(self, uniform: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """`time_ns` of many uniforms at once, for virtual time; any shape."""
        return np.asarray(self.times_ns, dtype=np.int64)[np.searchsorted(self.edges, uniform, side="right")]


def token_ns(start_ns: int, service_ns: int, index: int, tokens: int) -> int:
    """When token `index` (1 to `tokens`) of a request is due."""
    return start_ns + service_ns * index // tokens


@dataclass(slots=True)
class _Entry:
    key: int
    start_ns: int
    service_ns: int
    tokens: int
    told: int = 0


@dataclass(slots=True)
class FcfsModel:
    """The queue as a `Model`."""

    service: ServiceMix | WeibullService
    seed: int
    _end_ns: int = 0  # when the server will have done all it was given
    _queue: deque[_Entry] = field(default_factory=deque)
    _woken_ns: int = 0

    def submit(self, job: Job, now_ns: int) -> None:
        """Append the job; its start and finish are settled here."""
        service_ns = self.service.time_ns(prompt_uniform(job.prompt, self.seed))
        start_ns = max(now_ns, self._end_ns)
        self._end_ns = start_ns + service_ns
        self._queue.append(_Entry(job.key, start_ns, service_ns, job.output_tokens))

    def cancel(self, key: int, now_ns: int) -> None:
        """Nothing: the work stays."""

    def next_ns(self) -> int | None:
        """When the next token is due, inner tokens of a fast stream merged."""
        if not self._queue:
            return None
        head = self._queue[0]
        due_ns = token_ns(head.start_ns, head.service_ns, head.told + 1, head.tokens)
        if head.told == 0:
            return due_ns
        return min(max(due_ns, self._woken_ns + MERGE_NS), head.start_ns + head.service_ns)

    def advance(self, now_ns: int) -> Sequence[Emission]:
        """What is due by `now_ns`, one emission a job."""
        self._woken_ns = now_ns
        out: list[Emission] = []
        while self._queue:
            head = self._queue[0]
            # the largest j with service·j // tokens <= elapsed
            elapsed_ns = now_ns - head.start_ns
            count = min(head.tokens, ((elapsed_ns + 1) * head.tokens - 1) // head.service_ns)
            if count <= head.told:
                break
            fresh, head.told = count - head.told, count
            at_ns = token_ns(head.start_ns, head.service_ns, count, head.tokens)
            out.append(
                Emission(
                    key=head.key, tokens=fresh, at_ns=at_ns, finished=count == head.tokens, started_ns=head.start_ns
                )
            )
            if count < head.tokens:
                break
            self._queue.popleft()
        return out

    def gauges(self) -> Gauges:
        """One running at most; the queue has no cache, and says so."""
        running = int(bool(self._queue))
        return Gauges(
            running=running,
            waiting=len(self._queue) - running,
            settings={"enable_prefix_caching": "False", "block_size": "16", "num_gpu_blocks": "None"},
        )

    def reset_prefix_cache(self) -> bool:
        """True when idle, as a server with a cache would answer."""
        return not self._queue
