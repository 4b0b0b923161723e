"""Plans of recorded workloads: prompts share what the block ids say, in every form and on both kinds of server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from loadgen.common.members import JsonMembers
from loadgen.emulator.engine.serve import recorded_chain
from loadgen.emulator.profiles import load_profile
from loadgen.emulator.virtual import simulate_run
from loadgen.plan.bodies import Bodies
from loadgen.plan.prompts import Prompts
from loadgen.plan.trace_plan import recorded_plan
from loadgen.plan.types import PlanRequest, RequestFormat, RunPlan, Window
from loadgen.send.api import SendOptions
from traces.prefix import cached_tokens
from traces.trace import BlockHashes, Trace

S = 1_000_000_000
IDS = [[0, 1, 2], [0, 1, 3], [0, 4], [5], [0, 1, 2, 6], []]
INPUTS = [48, 40, 30, 9, 70, 20]  # the last block of a request may be partial; 70 tokens go beyond 4 blocks of 16


def trace(ids: list[list[int]] = IDS, inputs: list[int] = INPUTS, *, block: int = 16, gap_s: float = 1.0) -> Trace:
    n = len(ids)
    return Trace(
        at_ns=np.arange(n) * round(gap_s * S),
        input_tokens=np.array(inputs),
        output_tokens=np.full(n, 3),
        line=np.arange(n) + 1,
        outcome=np.zeros(n),
        hashes=BlockHashes(
            ids=np.array([one for row in ids for one in row], dtype=np.int64),
            starts=np.concatenate(([0], np.cumsum([len(row) for row in ids]))),
            block_tokens=block,
        ),
    )


def plan(piece: Trace, *, root: int = 1, form: RequestFormat | None = None, **more: Any) -> RunPlan:
    window = Window(warmup_ns=0, window_ns=piece.span_ns + S, tail_ns=60 * S)
    key = more.pop("content_key", None)
    request = PlanRequest(rate=1.0, root_seed=root, window=window, content_key=key)
    return recorded_plan(request, piece, piece.at_ns, format=form or RequestFormat(), **more)


def common(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> int:
    n = min(one.size, other.size)
    same = one[:n] == other[:n]
    return n if same.all() else int(np.argmin(same))


def test_prompts_begin_alike_exactly_as_far_as_their_block_ids() -> None:
    prompts = Prompts(plan(trace()))
    ids = [prompts.ids(i) for i in range(len(IDS))]
    assert [row.size for row in ids] == INPUTS
    assert common(ids[0], ids[1]) == 32
    assert common(ids[0], ids[2]) == common(ids[1], ids[2]) == 16
    assert common(ids[0], ids[4]) == 48
    assert common(ids[0], ids[3]) == common(ids[0], ids[5]) == 0
    # what lies behind the last block is the request's own
    assert len({row[-4:].tobytes() for row in ids}) == len(ids)


def test_a_body_does_not_depend_on_order_and_text_shares_the_same_words() -> None:
    for form in (RequestFormat(), RequestFormat(prompt="text"), RequestFormat(endpoint="chat", prompt="text")):
        one, other = Bodies(plan(trace(), form=form), JsonMembers()), Bodies(plan(trace(), form=form), JsonMembers())
        forwards = [one.encode(i) for i in range(6)]
        assert [other.encode(i) for i in reversed(range(6))] == forwards[::-1]
    texts = [orjson.loads(body)["messages"][0]["content"].split() for body in forwards]
    assert [len(text) for text in texts] == INPUTS
    assert texts[0][:32] == texts[1][:32]
    assert texts[0][32:40] != texts[1][32:40]


def test_tails_are_what_the_prompts_end_with() -> None:
    made = plan(trace())
    tails = Prompts(made).tail_ids(4)
    assert all(tails[i].tolist() == Prompts(made).ids(i)[-4:].tolist() for i in range(6))
    longer = Prompts(made).tail_ids(40)
    assert longer[0].tolist() == Prompts(made).ids(0)[-40:].tolist()
    assert longer[3].tolist() == [0] * 31 + Prompts(made).ids(3).tolist()


def test_runs_do_not_warm_each_other_unless_they_are_given_one_content() -> None:
    first = [Prompts(plan(trace(), root=root)).ids(0) for root in (1, 2)]
    assert common(*first) < 3
    shared = [Prompts(plan(trace(), root=root, content_root=7)).ids(0) for root in (1, 2)]
    assert common(*shared) == 48
    unpaired = Prompts(plan(trace(), content_key=(2.0, 1))).ids(0)
    assert common(first[0], unpaired) < 3


def test_the_workload_hash_covers_blocks_and_turns() -> None:
    base = trace()
    other_id = trace([[0, 1, 9], *IDS[1:]])
    other_size = trace(block=32)
    turns = Trace(**{name: getattr(base, name) for name in base.__slots__} | {
        "session": np.zeros(6), "parent": np.arange(6) - 1,
    })  # fmt: skip
    without = Trace(**{name: getattr(base, name) for name in base.__slots__} | {"hashes": None})
    hashes = {plan(one).workload_sha256 for one in (base, other_id, other_size, turns, without)}
    assert len(hashes) == 5
    assert plan(trace()).workload_sha256 == plan(base).workload_sha256


@pytest.mark.parametrize("size", [16, 8, 32, 12, 5])
def test_blocks_of_a_server_are_named_alike_exactly_where_prompts_are_alike(size: int) -> None:
    made = plan(trace())
    prompts = Prompts(made)

    def named(i: int) -> list[Any]:
        chain = recorded_chain(IDS[i], 16, INPUTS[i], size)
        return [(key, number) for key, blocks in chain for number in range(blocks)]

    for one in range(6):
        for other in range(one):
            a, b = named(one), named(other)
            alike = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            assert alike == common(prompts.ids(one), prompts.ids(other)) // size


def test_virtual_time_hits_what_the_ids_imply() -> None:
    piece = trace([[0, 1, 2], [0, 1, 3], [0, 4], [0, 1, 3, 5]], [1500, 1536, 1024, 1600], block=512, gap_s=20.0)
    made = plan(piece)
    profile = load_profile("llama8b-80gb")
    requests = simulate_run(made, profile, SendOptions(timeout_s=60.0)).requests
    assert requests["cached_tokens"].tolist() == [0, 1024, 512, 1536]
    assert requests["prefix_tokens_planned"].tolist() == cached_tokens(piece).tolist() == [0, 1024, 512, 1536]
    # a plan that shares nothing finds nothing
    assert simulate_run(replace(made, blocks=None), profile, SendOptions()).requests["cached_tokens"].sum() == 0
