"""Small requests of our own: warm-up, and the proof that a cache salt makes a prompt cold.

Their prompts come from the system's entropy, not from any plan's seed, so no run meets them in a cache.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import numpy as np

from loadgen.errors import TargetUnfit
from loadgen.plan.types import RequestFormat
from loadgen.target.http import Answer, Http
from loadgen.target.metrics import Scrape, scrape

__all__ = ["SaltSupport", "prove_salt", "timed_request", "warmup_body"]

Proof = Literal["proved", "no_cache", "ignored", "unproved", "refused"]
DEFAULT_BLOCK_TOKENS: Final = 16
PROBE_TIMEOUT_S: Final = 60.0
_LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltSupport:
    """What is known of a server's `cache_salt`.

    `proved`: an equal prompt hit the cache under its salt and did not under a new one. `no_cache`: the server says it
    caches no prefixes, or an equal prompt under an equal salt hit nothing though it was looked up, so every prompt is
    cold. `ignored`: the new salt hit. `unproved`: hits cannot be seen. `refused`: the server answers an error to it.
    """

    proof: Proof
    text: str

    @property
    def accepted(self) -> bool:
        """Whether `cache_salt` may be sent."""
        return self.proof != "refused"

    @property
    def proved(self) -> bool:
        """Whether equal prompts in two runs with two salts are known to be cold."""
        return self.proof in ("proved", "no_cache")


def warmup_body(model: str, fmt: RequestFormat, input_tokens: int, output_tokens: int) -> dict[str, Any]:
    """A whole-answer request of about these lengths with a prompt never used before.

    Token ids give the length exactly; text has two characters a token at most, for a tokenizer is not known here.
    """
    rng = np.random.default_rng(secrets.randbits(128))
    body: dict[str, Any] = {"model": model, "max_tokens": output_tokens, "temperature": fmt.temperature}
    if fmt.endpoint == "completions" and fmt.prompt == "ids":
        body["prompt"] = rng.integers(*fmt.token_ids, size=max(1, input_tokens)).tolist()
    else:
        letters = rng.choice(_LETTERS, size=max(8, input_tokens)).tobytes().decode()
        text = " ".join(letters[start : start + 4] for start in range(0, len(letters), 4))
        prompt = {"messages": [{"role": "user", "content": text}]} if fmt.endpoint == "chat" else {"prompt": text}
        body |= prompt
    if fmt.stop == "forced":
        body |= {"ignore_eos": True, "min_tokens": output_tokens}
    return body


async def timed_request(http: Http, path: str, body: Mapping[str, Any], timeout_s: float) -> tuple[float, Answer]:
    """Seconds from the request to its whole answer, and the answer. Raises `TargetUnfit` unless it is 200."""
    began_s = anyio.current_time()
    answer = await http.post(path, body, timeout_s=timeout_s)
    if answer.status != 200:
        raise TargetUnfit(f"{http.base}: {path} answers {answer.status}: {answer.excerpt}")
    return anyio.current_time() - began_s, answer


async def prove_salt(http: Http, path: str, model: str, fmt: RequestFormat, max_model_len: int | None) -> SaltSupport:
    """Send one prompt under salt A twice and under salt B once, and watch the prefix cache's hits.

    Hits are read from each answer's cached tokens, else from the server's counters. Raises `TargetUnfit` if the same
    request is refused without a salt too, and `TargetUnreachable`.
    """
    before = await scrape(http)
    settings = before.labels("vllm:cache_config_info") if before is not None else {}
    block = int(settings["block_size"]) if settings.get("block_size", "").isdecimal() else DEFAULT_BLOCK_TOKENS
    length = min(max(256, 4 * block), (max_model_len or 4096) - 1)
    body = warmup_body(model, fmt, length, 1)
    salt_a, salt_b = secrets.token_hex(8), secrets.token_hex(8)
    answer = await http.post(path, {**body, "cache_salt": salt_a}, timeout_s=PROBE_TIMEOUT_S)
    if answer.status in (400, 422):
        await timed_request(http, path, body, PROBE_TIMEOUT_S)
        return SaltSupport(proof="refused", text=f"cache_salt is refused: {answer.excerpt}")
    if answer.status != 200:
        raise TargetUnfit(f"{http.base}: {path} answers {answer.status}: {answer.excerpt}")
    if settings.get("enable_prefix_caching") == "False":
        return SaltSupport(proof="no_cache", text="the server caches no prefixes: every prompt is cold")
    filled = await scrape(http)
    same = await timed_request(http, path, {**body, "cache_salt": salt_a}, PROBE_TIMEOUT_S)
    repeated = await scrape(http)
    other = await timed_request(http, path, {**body, "cache_salt": salt_b}, PROBE_TIMEOUT_S)
    after = await scrape(http)
    same_hits, other_hits = _hits(same[1], filled, repeated), _hits(other[1], repeated, after)
    return _judge(same_hits, other_hits, looked_up=_looked_up(before, repeated) >= 2 * length)


def _judge(same_hits: float | None, other_hits: float | None, *, looked_up: bool) -> SaltSupport:
    if other_hits:
        text = f"cache_salt is ignored: an equal prompt with a new salt found {other_hits:.0f} cached tokens"
        return SaltSupport(proof="ignored", text=text)
    if same_hits is None or other_hits is None:
        text = "cache_salt is accepted, unproved: the server shows no prefix-cache hits"
        return SaltSupport(proof="unproved", text=text)
    if same_hits > 0:
        text = (
            f"cache_salt is proved: an equal prompt found {same_hits:.0f} cached tokens with its salt, 0 with a new one"
        )
        return SaltSupport(proof="proved", text=text)
    if looked_up:
        return SaltSupport(
            proof="no_cache", text="an equal prompt with an equal salt found nothing cached: all are cold"
        )
    text = "cache_salt is accepted, unproved: an equal prompt with an equal salt found nothing cached either"
    return SaltSupport(proof="unproved", text=text)


def _hits(answer: Answer, before: Scrape | None, after: Scrape | None) -> float | None:
    """Prompt tokens one request found cached: its own word, else the counters' difference; `None` if neither tells."""
    parsed = answer.json()
    usage = parsed.get("usage") if isinstance(parsed, dict) else None
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if isinstance(cached, int):
        return float(cached)
    if before is None or after is None or before.prefix_hits is None or after.prefix_hits is None:
        return None
    return after.prefix_hits - before.prefix_hits


def _looked_up(before: Scrape | None, after: Scrape | None) -> float:
    queries = [reading.prefix_queries if reading is not None else None for reading in (before, after)]
    return queries[1] - queries[0] if queries[0] is not None and queries[1] is not None else 0.0
