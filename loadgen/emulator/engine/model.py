"""The engine behind the HTTP face: passes that take real time; their tokens are emitted when they end.

Theory of operation. A pass is decided when it begins, from the arrivals until then, and emits its tokens when it ends.
So each replica is either idle or in a pass with a known end; `advance` ends passes one after the other up to now and
begins the next at the instant the last one ended, however late the caller wakes up. A client that leaves in mid-pass
leaves the engine at its end. Prompts become chains of block hashes that start from the cache salt, as vLLM's do.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import takewhile

from loadgen.emulator.engine.core import Engine
from loadgen.emulator.engine.kv import Chain
from loadgen.emulator.engine.trace import PS_PER_NS
from loadgen.emulator.engine.types import EngineFull, Sequence, Step
from loadgen.emulator.model import Busy, Emission, Gauges, Job

__all__ = ["BatchingModel"]


@dataclass(slots=True)
class _Replica:
    engine: Engine
    began_ps: int = 0
    step: Step | None = None
    producing: dict[Sequence, None] = field(default_factory=dict)  # one token each when a pass ends
    started_ns: dict[int, int] = field(default_factory=dict)  # by key, of those admitted
    unstarted: dict[Sequence, None] = field(default_factory=dict)
    passes: Counter[int] = field(default_factory=Counter)  # by the tokens computed in them
    leaving: list[Sequence] = field(default_factory=list)

    @property
    def ends_ps(self) -> int:
        assert self.step is not None
        return self.began_ps + self.step.duration_ps

    def begin(self, now_ps: int) -> None:
        """Begin a pass if there is something to compute."""
        step = self.engine.step()
        for sequence in step.preempted:
            self.producing.pop(sequence, None)
        # first come, first served: a request behind a waiting one waits too
        pick = takewhile if self.engine.limits.policy == "fcfs" else filter
        for sequence in list(pick(_admitted, self.unstarted)):
            del self.unstarted[sequence]
            self.started_ns[sequence.key] = now_ps // PS_PER_NS
        self.began_ps, self.step = now_ps, step if step.steps else None

    def end(self) -> list[Emission]:
        """End the pass, and begin the next."""
        assert self.step is not None
        step, ends_ps = self.step, self.ends_ps
        gone, finished = set(self.leaving), set(step.finished)
        told = [
            Emission(
                key=sequence.key,
                tokens=1,
                at_ns=ends_ps // PS_PER_NS,
                finished=sequence in finished,
                started_ns=self.started_ns[sequence.key],
                cached_tokens=sequence.cached_tokens,
                preemptions=sequence.preemptions,
            )
            for sequence in (*self.producing, *step.first)
            if sequence not in gone
        ]
        self.passes[step.tokens] += 1
        self.producing.update(dict.fromkeys(step.first))
        for sequence in step.finished:
            del self.producing[sequence], self.started_ns[sequence.key]
        for sequence in self.leaving:
            self.drop(sequence)
        self.leaving.clear()
        self.begin(ends_ps)
        return told

    def drop(self, sequence: Sequence) -> None:
        """Its client left: nothing of it stays."""
        self.engine.cancel(sequence)
        self.producing.pop(sequence, None)
        self.unstarted.pop(sequence, None)
        self.started_ns.pop(sequence.key, None)


def _admitted(sequence: Sequence) -> bool:
    return sequence.cached_tokens >= 0


class BatchingModel:
    """One or more engines as a `Model`; replicas take jobs in turn."""

    def __init__(self, engines: list[Engine]) -> None:
        self._replicas = [_Replica(engine) for engine in engines]
        self._submitted = 0
        self._jobs: dict[int, tuple[_Replica, Sequence]] = {}

    def submit(self, job: Job, now_ns: int) -> None:
        """See `Model`."""
        replica = self._replicas[self._submitted % len(self._replicas)]
        self._submitted += 1
        sequence = Sequence(
            key=job.key,
            prompt_tokens=len(job.prompt),
            output_tokens=job.output_tokens,
            chain=self._chain(replica.engine, job),
            priority=job.priority,
        )
        try:
            replica.engine.add(sequence)
        except EngineFull:
            raise Busy from None
        self._jobs[job.key] = replica, sequence
        replica.unstarted[sequence] = None
        if replica.step is None:
            replica.begin(now_ns * PS_PER_NS)

    def cancel(self, key: int, now_ns: int) -> None:
        """See `Model`; a sequence in the current pass leaves at its end."""
        known = self._jobs.pop(key, None)
        if known is not None:
            replica, sequence = known
            if replica.step is None:
                replica.drop(sequence)
            else:
                replica.leaving.append(sequence)

    def next_ns(self) -> int | None:
        """See `Model`."""
        ends_ps = [replica.ends_ps for replica in self._replicas if replica.step is not None]
        return -(-min(ends_ps) // PS_PER_NS) if ends_ps else None

    def advance(self, now_ns: int) -> Many[Emission]:
        """See `Model`."""
        told: list[Emission] = []
        for replica in self._replicas:
            while replica.step is not None and replica.ends_ps <= now_ns * PS_PER_NS:
                told += replica.end()
        for emission in told:
            if emission.finished:
                self._jobs.pop(emission.key, None)
        return told

    def gauges(self) -> Gauges:
        """See `Model`; sums over the replicas, mean KV usage."""
        engines = [replica.engine for replica in self._replicas]
        limits = engines[0].limits
        return Gauges(
            running=sum(engine.running for engine in engines),
            waiting=sum(engine.waiting for engine in engines),
            kv_usage=sum(engine.kv_usage for engine in engines) / len(engines),
            prefix_queried_tokens=sum(engine.queried_tokens for engine in engines),
            prefix_hit_tokens=sum(engine.hit_tokens for engine in engines),
            preemptions=sum(engine.preemptions for engine in engines),
            passes=sum((replica.passes for replica in self._replicas), Counter()),
            settings={
                "enable_prefix_caching": str(limits.prefix_caching),
                "block_size": str(limits.block_size),
                "num_gpu_blocks": str(limits.kv_blocks),
            },
        )

    def reset_prefix_cache(self) -> bool:
        """See `Model`."""
        done = [replica.engine.reset_prefix_cache() for replica in self._replicas]  # every one, even if the first fails
        return all(done)

    def _chain(self, engine: Engine, job: Job) -> Chain:
        """A key a full block: a hash of its ids and of all before it."""
        if not engine.limits.prefix_caching:
            return ()
        size = engine.limits.block_size
        parent = hashlib.blake2b(job.cache_salt.encode(), digest_size=16).digest()
        chain: list[tuple[bytes, int]] = []
        for start in range(0, len(job.prompt) - size + 1, size):
            parent = hashlib.blake2b(parent + job.prompt[start : start + size].tobytes(), digest_size=16).digest()
            chain.append((parent, 1))
        return tuple(chain)
