"""Request bodies: JSON as vLLM's OpenAI-compatible server reads it, and a ring that has them ready before they are due.

Theory of operation. A body is a pure function of (plan, index) but for one slot at its front, which holds what a
run's target decides: `model`, `cache_salt` and API extras. The slot is the same for all requests of a run and is no
part of the workload hash. The hot path must not spend its time on JSON, and an hour of bodies does not fit into memory,
so `BodyRing` encodes ahead in schedule order, as far as 256 MiB and 30 s of schedule allow. It has no thread: the
dispatcher lends it the gaps between sends by calling `fill`, which stops when the lent time is up. `take` gives a body
away; one that is not ready is made on the spot and counted as starvation, which is held against the client.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import orjson

from loadgen.common.errors import UsageError
from loadgen.common.members import JsonMembers
from loadgen.plan.prompts import Prompts
from loadgen.plan.types import NS, Int64s, RequestFormat, RunPlan

__all__ = ["Bodies", "BodyRing", "check_format"]

_IDS: Final = orjson.OPT_SERIALIZE_NUMPY
# members a body has of its own; a second one of the same name would leave it to the server which of them holds
_OWN_MEMBERS: Final = frozenset(
    {
        "prompt",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "ignore_eos",
        "temperature",
        "stream",
        "stream_options",
    }
)


def check_format(form: RequestFormat) -> None:
    """Raises `ValueError` for a format that no request can have."""
    if form.endpoint == "chat" and form.prompt == "ids":
        raise ValueError("chat messages are text: ask for prompt = text, or for the completions endpoint")
    low, high = form.token_ids
    if not 0 <= low < high <= 2**31:
        raise ValueError(f"token ids {low}..{high} are not a range of a vocabulary")


class Bodies:
    """Encodes the requests of one plan for one target."""

    def __init__(self, plan: RunPlan, slot: JsonMembers) -> None:
        """`slot`: the members spliced in, such as model and cache_salt. Raises `UsageError` where one cannot be."""
        check_format(plan.format)
        clash = sorted(_OWN_MEMBERS & slot.encoded.keys())
        if clash:
            raise UsageError(f"the API extra {clash[0]!r} is set by the workload itself; use the option for it instead")
        members = slot.to_json()
        self.plan = plan
        self._form = plan.format
        self._prompts = Prompts(plan)
        self._head = b"{" if members == b"{}" else members[:-1] + b","
        common: dict[str, Any] = {"temperature": self._form.temperature, "stream": self._form.stream}
        if self._form.stream and self._form.usage:
            common["stream_options"] = {"include_usage": True}
        self._limit = b',"%s":' % self._form.limit_field.encode()
        self._tail = b"," + orjson.dumps(common)[1:]

    def encode(self, index: int) -> bytes:
        """The complete body of request `index`."""
        output = int(self.plan.output_tokens[index])
        if self._form.stop == "forced":
            limits = b'%s%d,"min_tokens":%d,"ignore_eos":true' % (self._limit, output, output)
        else:
            limits = b"%s%d" % (self._limit, output)
        return b"".join((self._head, self._content(index), limits, self._tail))

    def _content(self, index: int) -> bytes:
        if self._form.prompt == "ids":
            return b'"prompt":' + orjson.dumps(self._prompts.ids(index), option=_IDS)
        shared, own = self._prompts.words(index)
        if self._form.endpoint == "completions":
            return b'"prompt":' + orjson.dumps(f"{shared} {own}" if shared else own)
        messages = [{"role": "user", "content": own}]
        if shared:  # what users share is the instructions in front of their own words
            messages.insert(0, {"role": "system", "content": shared})
        return b'"messages":' + orjson.dumps(messages)


class BodyRing:
    """The bodies a worker is about to send, encoded in schedule order within bounds of memory and of time ahead."""

    def __init__(
        self,
        bodies: Bodies,
        indices: Int64s | None = None,
        *,
        max_bytes: int = 256 * 2**20,
        max_ahead_s: float = 30.0,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`indices`: this worker's requests, increasing; all of them by default."""
        self._bodies = bodies
        self._indices = np.arange(len(bodies.plan)) if indices is None else indices
        self._max_bytes = max_bytes
        self._max_ahead_ns = round(max_ahead_s * NS)
        self._clock = clock
        self._ready: deque[tuple[int, bytes]] = deque()
        self._next = 0  # position in indices of the first request not encoded or passed over
        self._ns_per_token = 0.0  # the quickest seen: a pause while encoding must not stop the ring for good
        self.ready_bytes = 0
        self.starved = 0  # bodies that were not ready when they were due

    def __len__(self) -> int:
        return len(self._ready)

    def fill(self, now_ns: int, budget_ns: int) -> int:
        """Encode ahead for at most `budget_ns` and return how many bodies that were.

        `now_ns` is on the schedule's clock. One body is the smallest piece of work: none is begun that is known not to
        fit in what is left of the budget.
        """
        plan = self._bodies.plan
        begun = now = self._clock()
        count = 0
        while self._next < self._indices.size and self.ready_bytes < self._max_bytes:
            index = int(self._indices[self._next])
            if plan.schedule.at_ns[index] - now_ns > self._max_ahead_ns:
                break
            tokens = int(plan.input_tokens[index])
            if now - begun + tokens * self._ns_per_token >= budget_ns:
                break
            body = self._bodies.encode(index)
            self._ready.append((index, body))
            self.ready_bytes += len(body)
            self._next += 1
            count += 1
            before, now = now, self._clock()
            per_token = (now - before) / tokens
            self._ns_per_token = min(per_token, self._ns_per_token or per_token)
        return count

    def take(self, index: int) -> bytes:
        """The body of request `index`, which is not needed again; those before it are let go."""
        while self._ready and self._ready[0][0] <= index:
            held, body = self._ready.popleft()
            self.ready_bytes -= len(body)
            if held == index:
                return body
        self.starved += 1
        self._next = max(self._next, int(np.searchsorted(self._indices, index, side="right")))
        return self._bodies.encode(index)
