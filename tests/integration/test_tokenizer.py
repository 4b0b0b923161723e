"""Text prompts of exact lengths, from the emulator's tokenizer and from others that make it harder."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from loadgen.common.members import JsonMembers
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.bodies import Bodies
from loadgen.plan.lengths import Lengths, parse_law
from loadgen.plan.plan import make_plan
from loadgen.plan.types import NS, PlanRequest, RequestFormat, RunPlan, Window
from loadgen.target.http import Http
from loadgen.target.target import open_target
from loadgen.target.tokenizer import Untold, exact_text, token_count
from tests.integration.test_target import JSON, UP, Reply, server

COMPLETIONS, CHAT = RequestFormat(prompt="text"), RequestFormat(endpoint="chat", prompt="text")


def plan_of(form: RequestFormat, *, low: int = 60, shared: int = 0) -> RunPlan:
    return make_plan(
        PlanRequest(rate=2.0, root_seed=5, window=Window(warmup_ns=0, window_ns=20 * NS, tail_ns=0)),
        arrivals=Arrivals(),
        lengths=Lengths(
            input=parse_law(f"uniform:{low}..300"), output=parse_law("4"), shared_prefix=shared, prefix_groups=2
        ),
        format=form,
    )


def contents(plan: RunPlan) -> list[dict[str, Any]]:
    bodies = [json.loads(Bodies(plan, JsonMembers.of(model="m")).encode(i)) for i in range(len(plan))]
    return [{key: body[key] for key in ("prompt", "messages") if key in body} for body in bodies]


@pytest.mark.parametrize("shared", [0, 40])
@pytest.mark.parametrize("form", [COMPLETIONS, CHAT])
async def test_prompts_have_the_planned_tokens_by_the_server_s_own_count(
    emulator: str, form: RequestFormat, shared: int
) -> None:
    async with open_target(emulator) as target:
        exact, told = await target.exact_text(form, JsonMembers())
        assert told.startswith("text prompts are exact by the server's tokenizer")
        assert exact.text is not None
        plan = plan_of(exact, shared=shared)
        counts = [
            await token_count(target.https[0], target.model, JsonMembers.of(**content)) for content in contents(plan)
        ]
        assert counts == plan.input_tokens.tolist()
        assert len(set(map(str, contents(plan)))) == len(plan)
        assert plan.workload_sha256 != plan_of(form, shared=shared).workload_sha256  # the words are in the hash
        assert (await target.exact_text(form, JsonMembers()))[0] == exact


async def test_a_shared_prefix_is_the_same_text_for_a_group(emulator: str) -> None:
    async with open_target(emulator) as target:
        for form in (COMPLETIONS, CHAT):
            plan = plan_of((await target.exact_text(form, JsonMembers()))[0], shared=40)
            begins = [
                c["messages"][0]["content"] if "messages" in c else " ".join(c["prompt"].split(" ")[:30])
                for c in contents(plan)
            ]
            assert len(set(begins)) == 2


async def test_token_ids_need_no_tokenizer(emulator: str) -> None:
    async with open_target(emulator) as target:
        assert await target.exact_text(RequestFormat(), JsonMembers()) == (RequestFormat(), "")


class Foreign:
    """A vocabulary without English words: made-up ones at 1000.., a line break at 10, else a token a character."""

    def __init__(self, *, template: bool = True, joins: bool = False) -> None:
        self.words = {f" {''.join(chr(97 + n // 26**k % 26) for k in range(4))}x": 1000 + n for n in range(0, 3000, 2)}
        self.texts = {one: word for word, one in self.words.items()} | {10: "\n"}
        self.template, self.joins = template, joins

    def ids(self, text: str) -> list[int]:
        ids = [
            one
            for part in re.findall(r" [a-z]+|\n|[^ \n]+| ", text)
            for one in ([self.words[part]] if part in self.words else [10] if part == "\n" else list(part.encode()))
        ]
        if not self.joins:
            return ids
        merged: list[int] = []  # some pairs become one token, as with a tokenizer that looks beyond spaces
        for one in ids:
            if not merged or min(one, merged[-1]) < 1000 or (one + merged[-1]) % 4:
                merged.append(one)
        return merged

    def __call__(self, path: str, request: bytes) -> Reply:
        asked = json.loads(request.partition(b"\r\n\r\n")[2] or b"{}")
        if path == "/tokenize" and "messages" in asked:
            if not self.template:
                return 400, JSON, b'{"error":{"message":"no chat template"}}'
            text = "".join(f"<{m['role']}>{m['content'].strip()}\n" for m in asked["messages"])
            return 200, JSON, json.dumps({"tokens": self.ids(text + "<assistant>")}).encode()
        if path == "/tokenize":
            return 200, JSON, json.dumps({"tokens": self.ids(asked["prompt"])}).encode()
        if path == "/detokenize":
            text = "".join(self.texts.get(one, "?") for one in asked["tokens"])
            return 200, JSON, json.dumps({"prompt": text}).encode()
        return UP.get(path) or (404, JSON, b"{}")  # type: ignore[return-value]


async def test_a_vocabulary_without_the_common_words_is_asked_for_its_own() -> None:
    form = replace(CHAT, token_ids=(1000, 1600))
    async with server(Foreign()) as url, Http(base=url) as http:
        text = await exact_text([http], "m", form)
        assert len(text.words) == 300  # every other id is a word
        plan = plan_of(replace(form, text=text), low=90, shared=70)
        counts = [await token_count(http, "m", JsonMembers.of(**content)) for content in contents(plan)]
        assert counts == plan.input_tokens.tolist()


@pytest.mark.parametrize(
    ("pages", "form", "reason"),
    [
        (UP, COMPLETIONS, "/tokenize answers 404"),
        ({"/tokenize": (200, JSON, b'{"tokens":"many"}')}, COMPLETIONS, "answers no token ids"),
        (Foreign(template=False), CHAT, "/tokenize answers 400: no chat template"),
        (Foreign(), replace(COMPLETIONS, token_ids=(10, 100)), "only 0 words were found that are one token each"),
    ],
)
async def test_where_lengths_cannot_be_exact_the_reason_is_told(pages: Any, form: RequestFormat, reason: str) -> None:
    async with server(pages) as url, Http(base=url) as http:
        with pytest.raises(Untold, match=reason):
            await exact_text([http], "m", form)


async def test_a_tokenizer_that_joins_words_is_not_trusted() -> None:
    async with server(Foreign(joins=True)) as url, Http(base=url) as http:
        with pytest.raises(Untold, match="the tokenizer joins words"):
            await exact_text([http], "m", COMPLETIONS)
