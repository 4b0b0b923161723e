"""How a server takes requests, found out by at most ten small ones, never by its name.

Theory of operation. The first request asks for everything at once, in the shape the load will have. A server that takes
it is done with at one request (three with the proof of the cache salt, see `salt`). One that refuses it is asked for
the barest request there is, and then for each feature in turn on top of what was taken so far. What a server takes is
not what it does (unknown members are mostly ignored with a 200), so the answer is held against the request: reported
prompt tokens, output tokens, events.

What is refused is left out where that is safe: the limit's other name, usage, the salt, token ids unless the user asked
for them. Where it would change the work (forced lengths, the temperature), the user has to choose; the message
names the options.

Prompts come from the system's entropy, not from any plan's seed, so no run meets them in a cache.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import anyio
import numpy as np

from loadgen.common.errors import TargetUnfit
from loadgen.common.members import JsonMembers
from loadgen.plan.types import RequestFormat
from loadgen.send.api import Endpoint
from loadgen.send.openai import ParsedResponse
from loadgen.target.capabilities import Capabilities
from loadgen.target.findings import Adaptable, ProbeResults, gathered, judged
from loadgen.target.generating import Generated, Generator, generator
from loadgen.target.http import Http, HttpResponse
from loadgen.target.metrics import Scrape, scrape
from loadgen.target.salt import Lookup, SaltSupport, judge_salt

__all__ = ["PROBE_REQUESTS", "PROBE_TIMEOUT_S", "NoEndpoint", "Probe", "timed_request", "warmup_body"]

DEFAULT_BLOCK_TOKENS: Final = 16
OUTPUT_TOKENS: Final = 16
_BLOCK_DIGITS: Final = 6  # Python refuses to read a number of thousands of digits
PROBE_TIMEOUT_S: Final = 60.0
PROBE_REQUESTS: Final = 10  # at most
_SPECIAL_TOKENS: Final = 8  # a server may put so many of its own before a prompt
_REFUSALS: Final = (400, 422, 500, 501)  # some servers answer 500 to an unexpected member
_LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


class NoEndpoint(TargetUnfit):
    """The server does not have the path that requests are sent to."""


def warmup_body(model: str, fmt: RequestFormat, input_tokens: int, output_tokens: int) -> JsonMembers:
    """A whole-answer request of about these lengths with a prompt never used before.

    Token ids give the length exactly; text has two characters a token at most, for a tokenizer is not known here.
    """
    rng = np.random.default_rng(secrets.randbits(128))
    body = JsonMembers.of(**{"model": model, fmt.limit_field: output_tokens, "temperature": fmt.temperature})
    if fmt.endpoint == "completions" and fmt.prompt == "ids":
        body |= JsonMembers.of(prompt=rng.integers(*fmt.token_ids, size=max(1, input_tokens)).tolist())
    else:
        letters = rng.choice(_LETTERS, size=max(8, input_tokens)).tobytes().decode()
        text = " ".join(letters[start : start + 4] for start in range(0, len(letters), 4))
        chat = fmt.endpoint == "chat"
        body |= JsonMembers.of(messages=[{"role": "user", "content": text}]) if chat else JsonMembers.of(prompt=text)
    if fmt.stop == "forced":
        body |= JsonMembers.of(ignore_eos=True, min_tokens=output_tokens)
    return body


async def timed_request(http: Http, path: str, body: JsonMembers, timeout_s: float) -> tuple[float, HttpResponse]:
    """Seconds from the request to its whole answer, and the answer. Raises `TargetUnfit` unless it is 200."""
    began_s = anyio.current_time()
    answer = await http.post(path, body, timeout_s=timeout_s)
    if answer.status != 200:
        raise TargetUnfit(f"{http.base}: {path} answers {answer.status}: {answer.excerpt}")
    return anyio.current_time() - began_s, answer


@dataclass(slots=True, kw_only=True)
class Probe:
    """Asks one server; `run` once."""

    http: Http
    endpoint: Endpoint  # of this server alone
    form: RequestFormat
    max_model_len: int | None = None
    ask: Adaptable = field(default_factory=Adaptable)
    _generator: Generator = field(init=False)
    _refused: dict[str, str] = field(default_factory=dict)  # feature → the server's words
    _salt: SaltSupport = field(default_factory=lambda: SaltSupport(proof="untried", text="not needed"))
    _length: int = 0
    _continuous: bool = False
    _before: Scrape | None = None

    async def run(self) -> Capabilities:
        """Ask. Raises `TargetUnfit` for a server that no option helps with, `TargetUnreachable`, `ClientLimited`."""
        async with generator(self.endpoint, proxied=self.http.proxied) as self._generator:
            return await self._run()

    async def _run(self) -> Capabilities:
        self._before = await scrape(self.http) if self.ask.salt else None
        settings = self._before.labels("vllm:cache_config_info") if self._before is not None else {}
        size = settings.get("block_size", "")
        block = int(size) if size.isdecimal() and len(size) <= _BLOCK_DIGITS else DEFAULT_BLOCK_TOKENS
        self._length = max(1, min(max(256, 4 * block), (self.max_model_len or 4096) - OUTPUT_TOKENS))
        self._continuous = self.ask.continuous and self.form.usage
        body, answer = await self._post(self.form, salt=self.ask.salt)
        if answer.answer.status != 200:
            body, answer = await self._narrow(answer.answer)
        reading = self._read(answer)
        if self.form.prompt == "ids" and reading.input_tokens > self._length + _SPECIAL_TOKENS:
            self._refused["ids"] = f"{reading.input_tokens} prompt tokens reported for {self._length} ids"
            self.form = replace(self.form, prompt="text")
            body, answer = await self._post(self.form, salt="cache_salt" in body)
            reading = self._read(answer)
        if "cache_salt" in body:
            self._salt = await self._prove_salt(body, reading, settings)
        seen = ProbeResults(
            form=self.form,
            reading=reading,
            wait_s=answer.wait_s,
            input_tokens=self._length,
            output_tokens=OUTPUT_TOKENS,
            refused=self._refused,
            continuous=self._continuous,
            salt=self._salt,
            ask=self.ask,
        )
        findings, needs = judged(seen)
        return Capabilities(
            format=self.form,
            salt=self._salt,
            findings=findings,
            needs=needs,
            unfit=(gathered(seen),) if gathered(seen) else (),
            requests=self._generator.sent,
            events_per_read=reading.events_per_read if reading.stream else None,
        )

    async def _post(self, form: RequestFormat, *, salt: bool = False) -> tuple[JsonMembers, Generated]:
        body = self.endpoint.extras | warmup_body(self.endpoint.model, form, self._length, OUTPUT_TOKENS)
        body |= JsonMembers.of(stream=form.stream)
        if form.stream and form.usage:
            continuous = {"continuous_usage_stats": True} if self._continuous else {}
            body |= JsonMembers.of(stream_options={"include_usage": True, **continuous})
        if salt:
            body |= _salted()
        return body, await self._again(body)

    async def _again(self, body: JsonMembers) -> Generated:
        """Raises where no other shape of request would help."""
        came = await self._generator.post(body, output_tokens=OUTPUT_TOKENS, timeout_s=PROBE_TIMEOUT_S)
        answer, path = came.answer, self.endpoint.path
        where = f"{self.http.base}: {path}"
        if answer.status in (429, 503):
            later = f", Retry-After {answer.retry_after}" if answer.retry_after else ""
            remedy = "it is at its limit before any load: wait, or have the limit raised"
            raise TargetUnfit(f"{where} rejects a single request ({answer.status}{later}): {answer.excerpt}; {remedy}")
        if answer.status in (404, 405):
            raise NoEndpoint(f"{where} is not there ({answer.status}: {answer.excerpt})")
        if answer.status != 200 and answer.status not in _REFUSALS:
            raise TargetUnfit(f"{where} answers {answer.status}: {answer.excerpt}")
        return came

    async def _narrow(self, refusal: HttpResponse) -> tuple[JsonMembers, Generated]:
        """From the barest request up to all that is taken; `self.form` becomes that."""
        self._continuous = False
        asked, form = self.form, replace(self.form, prompt="text", stop="natural", usage=False)
        body, answer = await self._post(form)
        if answer.answer.status != 200:
            self._refused["limit"] = answer.answer.excerpt
            form = replace(form, limit_field="max_completion_tokens")
            body, answer = await self._post(form)
        if answer.answer.status != 200 and form.temperature != 1:
            self._refused["temperature"] = answer.answer.excerpt
            form = replace(form, temperature=1.0)
            body, answer = await self._post(form)
        if answer.answer.status != 200:
            raise TargetUnfit(f"{self.http.base}: {self.endpoint.path} answers {refusal.status}: {refusal.excerpt}")
        for feature, change in (
            ("usage", {"usage": asked.usage}),
            ("ids", {"prompt": asked.prompt}),
            ("forced", {"stop": asked.stop}),
        ):
            trial = replace(form, **change)
            if trial == form:
                continue
            tried, said = await self._post(trial)
            if said.answer.status == 200:
                form, body, answer = trial, tried, said
            else:
                self._refused[feature] = said.answer.excerpt
        if self.ask.salt:
            self._before = await scrape(self.http)
            tried, said = await self._post(form, salt=True)
            if said.answer.status == 200:
                body, answer = tried, said
            else:
                self._salt = SaltSupport(proof="refused", text=f"refused: {said.answer.excerpt}")
        self.form = form
        return body, answer

    def _read(self, came: Generated) -> ParsedResponse:
        """The answer of a 200, which the load has to be able to count as ok."""
        if came.outcome != "ok" or came.reading is None:
            where = f"{self.http.base}: {self.endpoint.path} answers 200, but not as OpenAI's API does"
            raise TargetUnfit(f"{where}: {came.fault} (a run counts it as {came.outcome})")
        return came.reading

    async def _prove_salt(self, body: JsonMembers, reading: ParsedResponse, settings: Mapping[str, str]) -> SaltSupport:
        """Send the same prompt under its salt and under another, and watch the prefix cache's hits."""
        if settings.get("enable_prefix_caching") == "False":
            return SaltSupport(proof="no_cache", text="the server caches no prefixes: every prompt is cold")
        filled = await scrape(self.http)
        first = Lookup(cached_tokens=reading.cached_tokens, before=self._before, after=filled)
        if first.hits is None:
            return judge_salt(first, first, first, prompt_tokens=self._length)
        same = self._read(await self._again(body))
        repeated = await scrape(self.http)
        other = self._read(await self._again(body | _salted()))
        after = await scrape(self.http)
        return judge_salt(
            first,
            Lookup(cached_tokens=same.cached_tokens, before=filled, after=repeated),
            Lookup(cached_tokens=other.cached_tokens, before=repeated, after=after),
            prompt_tokens=max(reading.input_tokens, self._length if self.form.prompt == "ids" else 1),
        )


def _salted() -> JsonMembers:
    return JsonMembers.of(cache_salt=secrets.token_hex(8))
