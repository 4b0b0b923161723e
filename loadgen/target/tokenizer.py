"""Text prompts of an exact length, by the server's own tokenizer: no vocabulary is downloaded or guessed.

Theory of operation. Nearly every tokenizer cuts a text before each space, so a text made of words that are one token
each with the space before them has as many tokens as words. Such words are looked for: the
common ones of `plan.prompts` first; where the vocabulary is another, the server is asked for the text of the token ids
that prompts may be made of. What a prompt has beyond its words (special tokens, the chat template, the opener, a first
word without a space) is then measured, and has to be the same for every one of some sample texts. Where it is not, or
where there is no tokenizer to ask, the reason is returned and prompts stay as approximate as without it.

All of this is a few hundred small requests, once, before any load. What is found is part of the request format, and so
of the workload's hash: prompts stay a pure function of the plan, and a run asks no server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.common.members import JsonMembers
from loadgen.plan.prompts import WORDS
from loadgen.plan.types import ExactText, RequestFormat
from loadgen.target.answers import detokenized, token_ids
from loadgen.target.http import Http, HttpResponse, Unreachable

__all__ = ["Untold", "exact_text", "token_count"]

OPENER: Final = "Text"
WORDS_MIN: Final = 128  # fewer would make prompts that resemble each other
WORDS_MAX: Final = 1024
IDS_MAX: Final = 8192  # asked for their text
_CHUNK: Final = 64
_SAMPLE: Final = 32
_SAMPLES: Final = ((1, 1), (7, 30), (100, 3))  # words of the user's and of the shared part
# members of a chat request that decide what its template makes of it
_TEMPLATE: Final = ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "tools")
_WORD: Final = re.compile(r" [A-Za-z]{2,}")


class Untold(Exception):
    """The server does not tell; the message says why."""


async def exact_text(
    https: Sequence[Http], model: str, form: RequestFormat, extras: JsonMembers | None = None
) -> ExactText:
    """The words of exact texts for all these servers; `extras` are the requests' further members. Raises `Untold`."""
    words = await _words(_Asker(https[0], model), form)
    template = (extras or JsonMembers()).only(_TEMPLATE)
    overheads = [await _overheads(_Asker(http, model), form, words, template) for http in https]
    if len(set(overheads)) > 1:
        raise Untold("the target's servers count the same text differently")
    plain, shared = overheads[0]
    return ExactText(opener=OPENER, words=words, overhead_tokens=plain, shared_overhead_tokens=shared)


async def token_count(http: Http, model: str, content: JsonMembers) -> int:
    """Tokens of a `prompt` or of `messages`, as a request with them would have. Raises `Untold`."""
    return len(await _Asker(http, model).ids(content))


@dataclass(frozen=True, slots=True)
class _Asker:
    http: Http
    model: str

    async def ids(self, content: JsonMembers) -> list[int]:
        ids = token_ids(await self._post("/tokenize", content))
        if ids is None:
            raise Untold(f"{self.http.base}/tokenize answers no token ids")
        return ids

    async def text(self, ids: Sequence[int]) -> str:
        text = detokenized(await self._post("/detokenize", JsonMembers.of(tokens=list(ids))))
        if text is None:
            raise Untold(f"{self.http.base}/detokenize answers no text")
        return text

    async def _post(self, path: str, content: JsonMembers) -> HttpResponse:
        try:
            answer = await self.http.post(path, JsonMembers.of(model=self.model) | content)
        except Unreachable as error:
            raise Untold(str(error)) from None
        if answer.status != 200 or not isinstance(answer.json(), dict):
            raise Untold(f"{self.http.base}{path} answers {answer.status}: {answer.excerpt}")
        return answer


async def _words(ask: _Asker, form: RequestFormat) -> tuple[str, ...]:
    common = [f" {word}" for word in WORDS]
    found = await _single(ask, common[:_SAMPLE])
    if 2 * len(found) > _SAMPLE:
        found += await _single(ask, common[_SAMPLE:])
    if len(found) < WORDS_MIN:
        found = await _single(ask, await _vocabulary(ask, form))
    if len(found) < WORDS_MIN:
        raise Untold(f"only {len(found)} words were found that are one token each")
    return tuple(found[:WORDS_MAX])


async def _single(ask: _Asker, words: Sequence[str]) -> list[str]:
    """Those of the words that are one token each, in their order."""
    opener = len(await ask.ids(JsonMembers.of(prompt=OPENER)))

    async def among(part: Sequence[str]) -> list[str]:
        tokens = len(await ask.ids(JsonMembers.of(prompt=OPENER + "".join(part)))) - opener
        if tokens == len(part):
            return list(part)
        if len(part) == 1:
            return []
        middle = len(part) // 2
        return await among(part[:middle]) + await among(part[middle:])

    found: list[str] = []
    for begin in range(0, len(words), _CHUNK):
        if len(found) < WORDS_MAX:
            found += await among(words[begin : begin + _CHUNK])
    return found


async def _vocabulary(ask: _Asker, form: RequestFormat) -> list[str]:
    """The words among the texts of the token ids that prompts may be made of, each once."""
    low, high = form.token_ids
    # spread over the range: neighbours in a vocabulary are alike
    ids = np.unique(np.linspace(low, high - 1, min(IDS_MAX, high - low)).astype(int)).tolist()
    line = await ask.ids(JsonMembers.of(prompt="\n", add_special_tokens=False))

    async def texts(part: Sequence[int]) -> list[str]:
        joined = [token for one in part for token in (*line, one)]
        pieces = (await ask.text([*joined, *line])).split("\n")[1:-1]
        if len(pieces) == len(part):
            return pieces
        if len(part) == 1:  # its text has a line break of its own
            return []
        middle = len(part) // 2
        return await texts(part[:middle]) + await texts(part[middle:])

    found: dict[str, None] = {}
    for begin in range(0, len(ids), _CHUNK):
        found |= dict.fromkeys(text for text in await texts(ids[begin : begin + _CHUNK]) if _WORD.fullmatch(text))
    return list(found)


async def _overheads(ask: _Asker, form: RequestFormat, words: Sequence[str], template: JsonMembers) -> tuple[int, int]:
    """Tokens beyond the words, without and with a shared part."""
    rng = np.random.default_rng(0)  # the same samples whenever it is asked

    def text(count: int) -> str:
        return OPENER + "".join(words[i] for i in rng.integers(len(words), size=count))

    seen: list[set[int]] = [set(), set()]
    for own, shared in _SAMPLES:
        if form.endpoint == "completions":
            tokens = len(await ask.ids(JsonMembers.of(prompt=text(own + shared))))
            for overheads in seen:
                overheads.add(tokens - own - shared)
            continue
        user = {"role": "user", "content": text(own)}
        seen[0].add(len(await ask.ids(JsonMembers.of(messages=[user]) | template)) - own)
        system = {"role": "system", "content": text(shared)}
        seen[1].add(len(await ask.ids(JsonMembers.of(messages=[system, user]) | template)) - own - shared)
    if any(len(overheads) > 1 for overheads in seen):
        raise Untold("a text has not as many tokens as words: the tokenizer joins words, or the template counts them")
    plain, shared_too = (overheads.pop() for overheads in seen)
    return plain, shared_too
