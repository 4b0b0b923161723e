"""The target of a run: what receives the load, and every other request to it.

Theory of operation. A `Target` is one or more base URLs that serve the same model, opened by `open_target`, which waits
for them and knows their model. Between runs it is asked to be idle, warmed, and made cold (by a policy: `between`);
before and after a run it is asked who it is. Nothing here runs while load is on: a scrape costs a server 5 to 25 ms.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import anyio

from loadgen.common import defaults
from loadgen.common.errors import ClientLimited, LoadgenError, TargetUnfit, UsageError
from loadgen.common.members import JsonMembers
from loadgen.common.tls import Tls
from loadgen.plan.types import RequestFormat
from loadgen.send.api import Endpoint
from loadgen.target.answers import reset_succeeded, server_load
from loadgen.target.capabilities import Capabilities, weakest
from loadgen.target.emulated import launch
from loadgen.target.findings import Adaptable
from loadgen.target.hardware import local_hardware
from loadgen.target.http import Http, Unreachable, base_url
from loadgen.target.identity import environment, identify, version
from loadgen.target.metrics import Scrape, scrape
from loadgen.target.probe import Probe, timed_request, warmup_body
from loadgen.target.ready import ProgressNote, wait_ready
from loadgen.target.tokenizer import Untold, exact_text

__all__ = ["IDLE_WAIT_S", "PATIENCE_S", "RESET_S", "WARM_TIMEOUT_S", "Idle", "Target", "open_target"]

T = TypeVar("T")

EMULATOR_MARK: Final = "loadgen-emulator"  # in the version of every emulated server, and in no other
PATIENCE_S: Final = 60.0
IDLE_WAIT_S: Final = 60.0
RESET_S: Final = 60.0
WARM_TIMEOUT_S: Final = 120.0
_BUSY: Final = (400, 409, 429, 503)  # to a reset: what servers say while blocks of the cache are still in use
PATHS: Final = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What waiting for idleness ended with. `idle` is `None` if the server does not let it be seen."""

    idle: bool | None
    waited_s: float
    text: str
    busy: float = 0.0  # requests that ran or waited when it was first looked at: they had to be waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An open target; see the module's theory of operation."""

    label: str
    simulated: bool  # some server behind it is an emulator, started here or not
    urls: tuple[str, ...]
    model: str
    max_model_len: int | None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = field(default_factory=Tls)
    https: tuple[Http, ...] = field(default=(), repr=False)

    def endpoint(self, request_format: RequestFormat, extras: JsonMembers | None = None) -> Endpoint:
        """Where the sender sends requests of this format."""
        return Endpoint(
            urls=self.urls,
            path=PATHS[request_format.endpoint],
            model=self.model,
            headers=self.headers,
            extras=extras or JsonMembers(),
            tls=self.tls,
        )

    async def identity(self) -> dict[str, str]:
        """Who the servers are now: flat, strings, keys `N.name` for the N-th URL; compare with `identity.changed`.

        A server that is only too busy to answer in time, as after an overload, is asked for `PATIENCE_S`. Raises
        `Unreachable`.
        """
        facts: dict[str, str] = {}
        for number, http in enumerate(self.https):
            found = await _patiently(partial(identify, http, self.model))
            facts |= {f"{number}.{name}": value for name, value in found.items()}
        return facts

    async def environment(self) -> dict[str, str]:
        """What the servers run on, keys as of an identity: from the servers, and from this machine for those on it."""
        facts: dict[str, str] = {}
        for number, http in enumerate(self.https):
            found = await environment(http) | await local_hardware(http.base)
            facts |= {f"{number}.{name}": value for name, value in found.items()}
        return facts

    async def wait_idle(self, timeout_s: float = IDLE_WAIT_S) -> Idle:
        """Wait until no server runs or holds a request; says so if that cannot be seen. Raises `TargetUnreachable`."""
        began_s = anyio.current_time()
        pause_s, first = 0.02, None
        while True:
            outstanding = [await _outstanding(http) for http in self.https]
            waited_s = anyio.current_time() - began_s
            known = [count for count in outstanding if count is not None]
            if len(known) < len(outstanding):
                return Idle(
                    idle=None,
                    waited_s=waited_s,
                    text="idleness cannot be observed: neither /metrics nor /load shows it",
                )
            first = sum(known) if first is None else first
            if sum(known) == 0:
                return Idle(idle=True, waited_s=waited_s, text=f"idle after {waited_s:.1f} s", busy=first)
            if waited_s + pause_s > timeout_s:
                text = f"not idle after {waited_s:.0f} s: {sum(known):.0f} requests running or waiting"
                return Idle(idle=False, waited_s=waited_s, text=text, busy=first)
            await anyio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 1.5)

    async def warm(
        self,
        n: int,
        lengths: Sequence[tuple[int, int]],
        request_format: RequestFormat | None = None,
        *,
        concurrency: int = 1,
        timeout_s: float = WARM_TIMEOUT_S,
    ) -> list[float]:
        """Send `n` requests whose prompts no run uses; their E2E in seconds, in order of their sending.

        `lengths` are (input, output) tokens, taken in turn; URLs are taken in turn too. Raises `TargetUnfit` with the
        server's words at the first answer that is not 200, and `TargetUnreachable`.
        """
        fmt = request_format or RequestFormat()
        e2e_s = [0.0] * n
        slots = anyio.CapacityLimiter(concurrency)

        async def one(number: int) -> None:
            async with slots:
                body = warmup_body(self.model, fmt, *lengths[number % len(lengths)])
                http = self.https[number % len(self.https)]
                e2e_s[number] = (await timed_request(http, PATHS[fmt.endpoint], body, timeout_s))[0]

        try:
            async with anyio.create_task_group() as group:
                for number in range(n):
                    group.start_soon(one, number)
        except* (ClientLimited, TargetUnfit, Unreachable) as faults:
            raise _first(faults) from None
        return e2e_s

    async def capabilities(
        self,
        request_format: RequestFormat | None = None,
        *,
        extras: JsonMembers | None = None,
        ask: Adaptable | None = None,
    ) -> Capabilities:
        """How every server takes requests of this format; of several servers, what all of them take.

        Ten small requests a server at most, three as a rule. Raises `TargetUnfit` where no option would help.
        """
        form, found = request_format or RequestFormat(), []
        for http in self.https:
            probe = Probe(
                http=http,
                endpoint=replace(self.endpoint(form, extras), urls=(http.base,)),
                form=form,
                max_model_len=self.max_model_len,
                ask=ask or Adaptable(),
            )
            found.append(await probe.run())
            form = found[-1].format
        return weakest(found)

    async def started(self) -> dict[str, float | None]:
        """URL → when the server's process started, Unix seconds; `None` where it does not tell, or is not there."""
        found: dict[str, float | None] = {}
        for http in self.https:
            try:
                reading = await scrape(http)
            except Unreachable:  # it is being restarted
                reading = None
            found[http.base] = None if reading is None else reading.started
        return found

    async def wait_ready(self, timeout_s: float, progress: ProgressNote | None = None) -> None:
        """Wait until every server serves the model (again). Raises `TargetUnreachable` or `TargetUnfit`."""
        for http in self.https:
            await wait_ready(http, self.model, timeout_s=timeout_s, progress=progress)

    async def exact_text(self, form: RequestFormat, extras: JsonMembers) -> tuple[RequestFormat, str]:
        """The format with what makes its texts exact, and a sentence about it; as it is for token ids."""
        if form.prompt == "ids":
            return form, ""
        try:
            text = await exact_text(self.https, self.model, form, extras)
        except Untold as reason:
            return form, f"text prompts are about as long as planned, a word a token: {reason}"
        beyond = f"{text.overhead_tokens} tokens of each are the chat template's or special"
        return replace(form, text=text), f"text prompts are exact by the server's tokenizer; {beyond}"

    async def reset_cache(self, *, timeout_s: float = RESET_S) -> None:
        """Empty the prefix caches, an external one too, and read whether they were.

        Tries again where a server says that it is busy. Raises `TargetUnfit`.
        """
        for http in self.https:
            await self._reset_one(http, timeout_s)

    async def _reset_one(self, http: Http, timeout_s: float) -> None:
        began_s, pause_s = anyio.current_time(), 0.1
        while True:
            answer = await http.post("/reset_prefix_cache?reset_external=true")
            if answer.status in (404, 405):
                remedy = "start vLLM with VLLM_SERVER_DEV_MODE=1, or use the salt policy"
                raise TargetUnfit(f"{http.base}: there is no /reset_prefix_cache ({answer.status}); {remedy}")
            if answer.status != 200 and answer.status not in _BUSY:
                raise TargetUnfit(f"{http.base}: /reset_prefix_cache answers {answer.status}: {answer.excerpt}")
            # old servers answer 200 with nothing; only an explicit success is one
            if answer.status == 200 and reset_succeeded(answer):
                return
            left_s = timeout_s - (anyio.current_time() - began_s)
            if left_s <= 0:
                said = f"it answers {answer.status}: {answer.excerpt or 'nothing'}"
                raise TargetUnfit(f"{http.base}: the prefix cache was not reset within {timeout_s:g} s ({said})")
            idle = await self.wait_idle(left_s)
            if idle.idle is not False:
                await anyio.sleep(min(pause_s, left_s))
                pause_s = min(1.5 * pause_s, 1.0)


@asynccontextmanager
async def open_target(
    spec: str | Sequence[str],
    *,
    model: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: Tls | None = None,
    proxied: bool = False,
    ready_timeout_s: float = defaults.READY_TIMEOUT_S,
    request_timeout_s: float = 10.0,
    progress: ProgressNote | None = None,
) -> AsyncIterator[Target]:
    """Open what the user named: one or more URLs behind one target, or `emulator[:PROFILE]`.

    An emulator is started here and stopped when the context ends. `progress` gets messages while a server is waited
    for. `proxied`: a proxy from the environment is used, as the httpx transport does for the load. Raises `UsageError`,
    `TargetUnreachable`, `TargetUnfit`.
    """
    specs = (spec,) if isinstance(spec, str) else tuple(spec)
    sent = dict(headers or {})
    if api_key is not None:
        if any(name.lower() == "authorization" for name in sent):
            raise UsageError("give the authorization by --header or as an API key, not both")
        sent["authorization"] = f"Bearer {api_key}"
    async with AsyncExitStack() as stack:
        label, urls = ", ".join(specs), tuple(specs)
        if any(_is_own(one) for one in specs):
            if len(specs) > 1:
                raise UsageError(
                    "emulator and virtual cannot be combined with other targets; replicas are several URLs"
                )
            kind, _, profile = specs[0].partition(":")
            if kind == "virtual":
                raise UsageError(f"target {specs[0]} has no server to talk to: virtual time is not available here")
            emulated = await stack.enter_async_context(launch(profile or defaults.PROFILE))
            label, urls = f"emulator:{emulated.profile}", (emulated.url,)
        urls = tuple(base_url(url) for url in urls)
        if not urls or len(set(urls)) < len(urls):
            raise UsageError("give at least one target URL, and each once")
        https = [
            await stack.enter_async_context(
                Http(base=url, headers=sent, tls=tls or Tls(), timeout_s=request_timeout_s, proxied=proxied)
            )
            for url in urls
        ]
        cards = [await wait_ready(http, model, timeout_s=ready_timeout_s, progress=progress) for http in https]
        if len({card.name for card in cards}) > 1:
            named = ", ".join(f"{http.base}: {card.name}" for http, card in zip(https, cards, strict=True))
            raise TargetUnfit(f"the target's URLs serve different models ({named}); choose one with --model")
        lengths = [card.max_model_len for card in cards if card.max_model_len is not None]
        simulated = [EMULATOR_MARK in await version(http) for http in https]
        yield Target(
            label=label,
            simulated=any(simulated),
            urls=urls,
            model=cards[0].name,
            max_model_len=min(lengths, default=None),
            headers=sent,
            tls=tls or Tls(),
            https=tuple(https),
        )


def _is_own(spec: str) -> bool:
    return spec.partition(":")[0] in ("emulator", "virtual") and "://" not in spec


async def _outstanding(http: Http) -> float | None:
    reading: Scrape | None = await scrape(http)
    if reading is not None and reading.outstanding is not None:
        return reading.outstanding
    answer = await http.optional("/load")
    return server_load(answer) if answer is not None and answer.status == 200 else None


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    began_s = anyio.current_time()
    while True:
        try:
            return await ask()
        except Unreachable as error:
            if error.why != "timeout" or anyio.current_time() - began_s > PATIENCE_S:
                raise


def _first(group: BaseExceptionGroup[LoadgenError]) -> LoadgenError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
