from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pytest

from loadgen.common.errors import UsageError
from loadgen.common.members import JsonMembers
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.bodies import Bodies, BodyRing
from loadgen.plan.lengths import Lengths, parse_law
from loadgen.plan.plan import make_plan
from loadgen.plan.prompts import WORDS, Prompts
from loadgen.plan.types import NS, ExactText, PlanRequest, RequestFormat, RunPlan, Window

SLOT = {"model": "org/model-7b", "cache_salt": "0123456789abcdef"}
MEMBERS = JsonMembers.of(**SLOT)


def make(
    form: RequestFormat | None = None, lengths: Lengths | None = None, rate: float = 20.0, root_seed: int = 3
) -> RunPlan:
    return make_plan(
        PlanRequest(rate=rate, root_seed=root_seed, window=Window(warmup_ns=0, window_ns=20 * NS, tail_ns=0)),
        arrivals=Arrivals(),
        lengths=lengths or Lengths(input=parse_law("uniform:1..90"), output=parse_law("uniform:1..9")),
        format=form or RequestFormat(),
    )


def decoded(plan: RunPlan, slot: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    bodies = Bodies(plan, MEMBERS if slot is None else JsonMembers.of(**slot))
    return [json.loads(bodies.encode(i)) for i in range(len(plan))]


@pytest.mark.parametrize("stop", ["forced", "natural"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("endpoint", "prompt"), [("completions", "ids"), ("completions", "text"), ("chat", "text")]
)  # fmt: skip
def test_a_body_has_these_members_and_no_others(
    endpoint: Literal["completions", "chat"],
    prompt: Literal["ids", "text"],
    stream: bool,
    stop: Literal["forced", "natural"],
) -> None:
    plan = make(RequestFormat(endpoint=endpoint, prompt=prompt, stop=stop, stream=stream, temperature=0.5))
    for i, body in enumerate(decoded(plan)):
        content = body.pop("messages" if endpoint == "chat" else "prompt")
        output = plan.output_tokens[i]
        limits = {"min_tokens": output, "ignore_eos": True} if stop == "forced" else {}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        assert body == SLOT | {"max_tokens": output, "temperature": 0.5, "stream": stream} | limits | options
        if prompt == "ids":
            assert len(content) == plan.input_tokens[i]
            assert all(type(token) is int and 1000 <= token < 4000 for token in content)
            continue
        if endpoint == "chat":
            assert [message["role"] for message in content] == ["user"]
            content = content[0]["content"]
        words = content.split(" ")
        assert len(words) == plan.input_tokens[i]
        assert set(words) <= set(WORDS)


def test_a_server_s_other_name_for_the_limit_and_a_stream_without_usage() -> None:
    for body in decoded(make(RequestFormat(limit_field="max_completion_tokens", usage=False))):
        assert body["max_completion_tokens"] == body["min_tokens"] >= 1
        assert not {"max_tokens", "stream_options"} & body.keys()
    with pytest.raises(UsageError, match="max_completion_tokens"):
        Bodies(make(), JsonMembers.of(max_completion_tokens=5))


def test_members_appear_once() -> None:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    json.loads(Bodies(make(), MEMBERS | JsonMembers.of(top_p=0.9)).encode(0), object_pairs_hook=once)


def test_the_slot_holds_any_json_and_may_be_empty() -> None:
    extras = {"model": 'a"b\\ü', "vllm_xargs": {"a": [1, None]}}
    assert extras.items() <= decoded(make(), extras)[0].items()
    assert set(decoded(make(), {})[0]) == {
        "prompt", "max_tokens", "min_tokens", "ignore_eos", "temperature", "stream", "stream_options",
    }  # fmt: skip


def test_a_slot_that_would_contradict_the_workload_is_refused() -> None:
    with pytest.raises(UsageError, match="'max_tokens' is set by the workload"):
        Bodies(make(), JsonMembers.of(max_tokens=3))
    with pytest.raises(UsageError, match="no JSON form"):
        JsonMembers.of(model=object())


def test_the_slot_changes_nothing_else() -> None:
    plan = make()
    one, other = (
        Bodies(plan, JsonMembers.of(model="a")).encode(4),
        Bodies(plan, JsonMembers.of(model="bcd", cache_salt="s")).encode(4),
    )
    assert one.removeprefix(b'{"model":"a"') == other.removeprefix(b'{"model":"bcd","cache_salt":"s"')


def test_bodies_do_not_depend_on_the_order_or_the_number_of_workers() -> None:
    plan = make()
    forwards = [Bodies(plan, MEMBERS).encode(i) for i in range(len(plan))]
    bodies = Bodies(plan, MEMBERS)
    order = np.random.default_rng(0).permutation(len(plan))
    assert {int(i): bodies.encode(int(i)) for i in order} == dict(enumerate(forwards))
    for workers in (1, 3):
        rings = [BodyRing(Bodies(plan, MEMBERS), np.arange(w, len(plan), workers)) for w in range(workers)]
        for ring in rings:
            ring.fill(0, 10**9)
        assert [rings[i % workers].take(i) for i in range(len(plan))] == forwards


def test_a_first_block_belongs_to_one_request_of_one_seed() -> None:
    lengths = Lengths(input=parse_law("16"))
    plans = [make(lengths=lengths, rate=200.0, root_seed=seed) for seed in (1, 2, 3)]
    blocks = [Prompts(plan).ids(i).tobytes() for plan in plans for i in range(len(plan))]
    assert len(blocks) > 10_000
    assert len(set(blocks)) == len(blocks)


def test_tokens_are_spread_evenly_over_their_range() -> None:
    plan = make(RequestFormat(token_ids=(10, 30)), Lengths(input=parse_law("2000")))
    prompts = Prompts(plan)
    counts = np.bincount(np.concatenate([prompts.ids(i) for i in range(len(plan))]).astype(int))
    total = counts.sum()
    assert set(counts[:10]) == {0}
    assert counts.size == 30
    assert np.all(np.abs(counts[10:] - total / 20) < 5 * np.sqrt(total / 20))


def test_a_prefix_is_shared_within_its_group_and_by_nobody_else() -> None:
    plan = make(lengths=Lengths(input=parse_law("uniform:30..60"), shared_prefix=40, prefix_groups=3))
    prompts = Prompts(plan)
    texts: dict[int, list[int]] = {}
    for i in sorted(range(len(plan)), key=lambda i: -plan.prefix_tokens[i]):
        ids, group, shared = prompts.ids(i).tolist(), int(plan.prefix_group[i]), int(plan.prefix_tokens[i])
        assert len(ids) == plan.input_tokens[i]
        assert shared == min(40, plan.input_tokens[i] - 1)
        whole = texts.setdefault(group, ids[:shared])
        assert ids[:shared] == whole[:shared]
    assert sorted(texts) == [0, 1, 2]
    assert len({tuple(text[:3]) for text in texts.values()}) == 3
    own = [tuple(prompts.ids(i).tolist()[40:]) for i in range(len(plan)) if plan.input_tokens[i] >= 48]
    assert len(set(own)) == len(own)


def test_a_chat_shares_its_instructions() -> None:
    lengths = Lengths(input=parse_law("50"), shared_prefix=40, prefix_groups=2)
    plan = make(RequestFormat(endpoint="chat", prompt="text"), lengths)
    systems = set()
    for body in decoded(plan):
        system, user = body["messages"]
        assert (system["role"], user["role"]) == ("system", "user")
        assert (len(system["content"].split()), len(user["content"].split())) == (40, 10)
        systems.add(system["content"])
    assert len(systems) == 2


def test_text_completions_carry_prefix_and_own_words() -> None:
    plan = make(RequestFormat(prompt="text"), Lengths(input=parse_law("50"), shared_prefix=40))
    prompts = [body["prompt"].split(" ") for body in decoded(plan)]
    assert {len(words) for words in prompts} == {50}
    assert len({tuple(words[:40]) for words in prompts}) == 1


def test_tails_are_what_the_prompts_end_with() -> None:
    lengths = Lengths(input=parse_law("uniform:1..30"), shared_prefix=12, prefix_groups=3)
    plan = make(lengths=lengths)
    prompts = Prompts(plan)
    tails = prompts.tail_ids(8)
    for i in range(len(plan)):
        ids = prompts.ids(i).tolist()
        assert tails[i].tolist() == ([0] * 8 + ids)[-8:]


def test_there_are_256_different_words() -> None:
    assert len(set(WORDS)) == len(WORDS) == 256


class Ticking:
    """A clock that advances by a fixed step at every reading."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns, self.step_ns = 0, step_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


def ring(plan: RunPlan, *, step_ns: int = 0, **bounds: Any) -> BodyRing:
    return BodyRing(Bodies(plan, MEMBERS), clock=Ticking(step_ns), **bounds)


def test_the_ring_goes_no_further_ahead_than_it_may() -> None:
    plan = make()
    held = ring(plan, max_ahead_s=2.0)
    held.fill(0, 1)
    assert len(held) == np.count_nonzero(plan.schedule.at_ns <= 2 * NS)
    held.fill(3 * NS, 1)
    assert len(held) == np.count_nonzero(plan.schedule.at_ns <= 5 * NS)


def test_the_ring_holds_no_more_than_it_may_and_goes_on_when_there_is_room() -> None:
    plan = make(lengths=Lengths(input=parse_law("100")))
    held = ring(plan, max_bytes=10_000)
    held.fill(0, 1)
    largest = max(len(Bodies(plan, MEMBERS).encode(i)) for i in range(len(plan)))
    assert 10_000 <= held.ready_bytes < 10_000 + largest
    assert held.fill(0, 1) == 0
    before = len(held)
    for i in range(5):
        held.take(i)
    assert held.fill(0, 1) == 5
    assert len(held) == before


def test_fill_stops_when_the_lent_time_is_up() -> None:
    plan = make(lengths=Lengths(input=parse_law("50")))
    held = ring(plan, step_ns=1000)
    assert held.fill(0, 5_500) == 5  # each costs 1 us: a sixth would end after 5.5 us
    assert held.fill(0, 900) == 0  # one is known not to fit
    assert held.fill(0, 0) == 0
    assert held.fill(0, 10**9) == len(plan) - 5


def test_a_pause_while_encoding_does_not_stop_the_ring_for_good() -> None:
    plan = make(lengths=Lengths(input=parse_law("50")))
    clock = Ticking(1000)
    held = BodyRing(Bodies(plan, MEMBERS), clock=clock)
    held.fill(0, 3000)
    clock.step_ns = 10**9
    held.fill(0, 10**10)
    clock.step_ns = 1000
    assert held.fill(0, 5_500) == 5


def test_a_body_that_is_not_ready_is_made_and_counted() -> None:
    plan = make()
    bodies = Bodies(plan, MEMBERS)
    held = ring(plan)
    assert held.take(0) == bodies.encode(0)
    assert held.starved == 1
    held.fill(0, 1)
    assert len(held) == len(plan) - 1  # the one that was taken is not made again
    assert held.take(1) == bodies.encode(1)
    assert held.starved == 1


def test_requests_that_are_passed_over_free_their_memory() -> None:
    plan = make()
    held = ring(plan)
    held.fill(0, 1)
    for i in range(0, len(plan), 7):
        assert held.take(i) == Bodies(plan, MEMBERS).encode(i)
    assert held.starved == 0
    last = Bodies(plan, MEMBERS).encode(len(plan) - 1)
    assert held.take(len(plan) - 1) == last
    assert (len(held), held.ready_bytes) == (0, 0)


def test_the_ring_skips_what_was_taken_beyond_it() -> None:
    plan = make()
    held = ring(plan, max_bytes=1)
    held.fill(0, 1)
    held.take(10)
    held.fill(0, 1)
    assert held.take(11) == Bodies(plan, MEMBERS).encode(11)
    assert held.starved == 1


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("shared", [0, 12])
def test_exact_texts_have_the_planned_tokens_and_share_what_was_planned(
    endpoint: Literal["completions", "chat"], shared: int
) -> None:
    text = ExactText(opener="Go", words=(" a", " b", " c", " d"), overhead_tokens=3, shared_overhead_tokens=7)
    plan = make(
        RequestFormat(endpoint=endpoint, prompt="text", text=text),
        Lengths(input=parse_law("uniform:1..30"), shared_prefix=shared, prefix_groups=2),
    )
    prompts = Prompts(plan)
    begun: dict[int, set[str]] = {}
    for i in range(len(plan)):
        first, own = prompts.words(i)
        in_chat = endpoint == "chat" and plan.prefix_tokens[i] > 0
        overhead = text.shared_overhead_tokens if in_chat else text.overhead_tokens
        assert own.startswith("Go")
        assert first.startswith("Go") == in_chat
        words = (first + own).replace("Go", "").split()
        # below its overhead a prompt is as long as that
        assert len(words) + overhead == max(plan.input_tokens[i], overhead)
        length = int(plan.prefix_tokens[i])
        assert length == min(shared, plan.input_tokens[i] - 1) or length == shared == 0
        if length == 12 and plan.input_tokens[i] > 20:
            count = length - (text.shared_overhead_tokens - text.overhead_tokens if in_chat else text.overhead_tokens)
            begun.setdefault(int(plan.prefix_group[i]), set()).add(" ".join(words[:count]))
    assert all(len(texts) == 1 for texts in begun.values())
    assert len(set.union(set(), *begun.values())) == (2 if shared else 0)
