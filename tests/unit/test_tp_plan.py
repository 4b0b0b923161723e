"""Predictions, thresholds and memory of a plan; reference values where they are beside this checkout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.tp.allreduce import Microbenchmark
from analysis.tp.config import Model
from analysis.tp.cost import Fabric, Shape
from analysis.tp.plan import Budget, Plan, Split, make_plan
from analysis.tp.steptimes import Costs
from analysis.tp.types import TokenTimes

SHAPE = Shape(hidden=8192, mlp=28672, layers=80, heads=64, kv_heads=8, head_size=128, vocab=128256)
MODEL = Model(shape=SHAPE)
FABRIC = Fabric(alpha_s=8e-6, bus_bytes_per_s=1.5e11)
CONSTANT = Costs(flops_per_s=1.2e14, fabric=FABRIC)
BUDGET = Budget(usable_bytes=73.6e9, runtime_bytes=2e9, kv_tokens=100_000, kv_element_bytes=2)
TOKENS = (1, 4, 8, 16, 32)
PER_TOKEN_S = 80 * SHAPE.projection_flops(1) / 1.2e14


def plan(costs: Costs = CONSTANT, model: Model = MODEL, ranks: tuple[int, ...] = (2, 4, 8), **budget: float) -> Plan:
    return make_plan(model, ranks=ranks, tokens=TOKENS, costs=costs, budget=replace(BUDGET, **budget))


def split(made: Plan, ranks: int) -> Split:
    return next(one for one in made.splits if one.ranks == ranks)


def measured(*ranks: int, sizes: tuple[int, ...] = tuple(1 << power for power in range(13, 21))) -> Costs:
    """nccl-tests that agree with the model."""
    return Costs(
        flops_per_s=1.2e14,
        measured={
            p: Microbenchmark(ranks=p, times=tuple((size, FABRIC.all_reduce_s(size, p)) for size in sizes))
            for p in ranks
        },
    )


def test_measured_times_that_agree_with_the_model_give_its_predictions() -> None:
    by_model, by_nccl = plan(), plan(measured(2, 4, 8))
    for ours, theirs in zip(by_nccl.loads, by_model.loads, strict=True):
        assert [one.speedup for one in ours.by_ranks] == pytest.approx([one.speedup for one in theirs.by_ranks])
    for ranks in (2, 4, 8):
        found = split(by_nccl, ranks)
        assert found.threshold_tokens == pytest.approx(split(by_model, ranks).threshold_tokens)
        assert found.threshold == "up to T = 64, the largest measured"


def test_outside_of_the_measured_sizes_and_ranks_there_is_no_prediction() -> None:
    made = plan(measured(4, sizes=(65536, 131072)), ranks=(2, 4))
    said = {(load.tokens, one.ranks): (one.speedup, one.why) for load in made.loads for one in load.by_ranks}
    assert said[4, 4][0] == pytest.approx(1.81, abs=0.005)
    assert said[1, 4] == (
        None, ("p = 4: S = 16384 B is outside of what nccl-tests measured, 65536 to 131072 B",))  # fmt: skip
    assert said[4, 2] == (None, ("p = 2: no nccl-tests of 2 ranks, only of 4",))
    # at T = 4, the smallest that was measured, it is faster already
    assert (split(made, 4).threshold_tokens, split(made, 4).threshold) == (
        None, "faster at all measured T, 4 to 8")  # fmt: skip
    assert split(made, 2).threshold == "not known: no nccl-tests of 2 ranks"
    apart = replace(measured(4, sizes=(65536, 131072)), projections=TokenTimes(pairs=((16.0, 1.0), (32.0, 1.0))))
    assert split(plan(apart), 4).threshold == "the measured ranges of T do not overlap"
    slow = Costs(flops_per_s=1.2e14, measured={4: Microbenchmark(ranks=4, times=((16384, 1e-3), (524288, 1e-3)))})
    assert split(plan(slow), 4).threshold == "not up to T = 32, the largest that was measured"


def test_warnings_of_measured_times_reach_the_plan() -> None:
    costs = measured(2, 4)
    doubtful = replace(costs, measured={p: replace(one, warnings=(f"of {p}",)) for p, one in costs.measured.items()})
    assert plan(doubtful, ranks=(4, 8)).warnings == ("p = 4: of 4",)
    assert plan(costs).warnings == ()


def test_a_profile_by_tokens_stands_in_for_a_constant_a() -> None:
    same = Costs(projections=TokenTimes(pairs=((1.0, PER_TOKEN_S), (64.0, 64 * PER_TOKEN_S))), fabric=FABRIC)
    for ours, theirs in zip(plan(same).loads, plan().loads, strict=True):
        assert [one.speedup for one in ours.by_ranks] == pytest.approx([one.speedup for one in theirs.by_ranks])
    assert split(plan(same), 4).threshold_tokens == pytest.approx(split(plan(), 4).threshold_tokens)
    # a step that reads all weights takes as long for one token as for eight: what is saved is larger
    flat = Costs(projections=TokenTimes(pairs=((1.0, 20e-3), (8.0, 20e-3))), fabric=FABRIC)
    made = plan(flat)
    assert made.loads[0].projections_s == 20e-3
    assert made.loads[0].by_ranks[1].speedup == pytest.approx(20e-3 / (5e-3 + 160 * FABRIC.all_reduce_s(16384, 4)))
    assert made.loads[4].projections_s is None
    assert made.loads[4].by_ranks[1].why == ("T = 32 is outside of what the TP=1 profile holds, 1 to 8",)
    assert split(made, 4).threshold == "faster at all measured T, 1 to 8"


def test_time_for_all_else_makes_a_split_matter_less() -> None:
    without, with_it = plan().loads[4].by_ranks[1], plan(replace(CONSTANT, other_s=10e-3)).loads[4].by_ranks[1]
    assert with_it.step_s == pytest.approx((without.step_s or 0) + 10e-3)
    assert 1 < (with_it.speedup or 0) < (without.speedup or 0)


def test_without_times_sizes_and_memory_remain() -> None:
    made = plan(Costs())
    load = made.loads[4]
    assert (load.payload_bytes, load.projections_s, load.by_ranks[1].speedup) == (524288, None, None)
    assert load.by_ranks[1].traffic_bytes == 125829120
    no_times = "t_proj,1 is not known: give --a, --a-from or --tflops"
    assert load.by_ranks[1].why == ("τ_AR is not known: give --alpha and --bandwidth, or --nccl", no_times)
    assert plan(Costs(fabric=FABRIC)).loads[0].by_ranks[0].why == (no_times,)
    assert split(made, 8).feasible
    assert plan(usable_bytes=None).splits[0].feasible is None


def test_memory_of_a_rank_is_told_by_its_parts() -> None:
    memory = split(plan(), 4).memory
    assert memory is not None
    assert memory.weight_bytes == pytest.approx(SHAPE.parameters * 2 / 4)
    assert memory.kv_bytes == pytest.approx(100_000 * 2 * 80 * 1024 * 2 / 4)
    assert memory.rank_bytes == pytest.approx(memory.weight_bytes + memory.kv_bytes + 2e9)
    assert memory.margin_bytes == pytest.approx(73.6e9 - memory.rank_bytes)
    assert [one.feasible for one in plan().splits] == [False, True, True]
    alone = plan().alone
    assert alone.weight_bytes == pytest.approx(SHAPE.parameters * 2)
    assert alone.fits is False
    assert plan(usable_bytes=alone.rank_bytes).alone.fits


def test_weights_of_fewer_bits_leave_payload_and_vocabulary_as_they_are() -> None:
    made = plan(model=replace(MODEL, weight_bits=4))
    memory = split(made, 4).memory
    assert memory is not None
    vocabulary = 2 * 128256 * 8192
    assert memory.weight_bytes == pytest.approx(((SHAPE.parameters - vocabulary) / 2 + vocabulary * 2) / 4)
    assert made.loads[0].payload_bytes == plan().loads[0].payload_bytes


def test_a_tied_vocabulary_is_counted_once_and_whole_where_p_does_not_divide_it() -> None:
    odd = Model(shape=replace(SHAPE, vocab=50257), tied=True)
    made = plan(model=odd)
    memory = split(made, 4).memory
    assert memory is not None
    layers = 80 * SHAPE.projection_flops(1) // 2
    assert made.parameters == layers + 50257 * 8192
    assert memory.weight_bytes == pytest.approx(2 * (layers / 4 + 50257 * 8192))
    assert split(made, 4).notes == ("4 ranks do not divide the vocabulary of 50257: counted whole on each rank",)


def test_more_ranks_than_kv_heads_replicate_them_and_end_the_model() -> None:
    made = plan(ranks=(8, 16))
    kept, twice = (split(made, ranks).memory for ranks in (8, 16))
    assert kept is not None
    assert twice is not None
    assert twice.kv_bytes == kept.kv_bytes
    assert twice.weight_bytes > kept.weight_bytes / 2
    assert split(made, 16).stop == "p = 16 > 8 KV heads: each is kept on 2 ranks"
    assert split(made, 16).threshold_tokens is None
    assert all(load.by_ranks[1].speedup is None for load in made.loads)


@pytest.mark.parametrize(
    ("shape", "ranks", "said"),
    [(SHAPE, 3, "3 ranks do not divide heads = 64"),
     (replace(SHAPE, mlp=28674), 4, "4 ranks do not divide mlp = 28674"),
     (replace(SHAPE, kv_heads=6, heads=48), 4, "4 ranks do not divide kv_heads = 6"),
     (replace(SHAPE, kv_heads=1, heads=12), 8, "8 ranks do not divide heads = 12")],
)  # fmt: skip
def test_ranks_that_do_not_divide_the_model_are_refused(shape: Shape, ranks: int, said: str) -> None:
    made = plan(model=Model(shape=shape), ranks=(ranks,))
    assert split(made, ranks).refusal == said
    assert split(made, ranks).memory is None
    assert made.loads[0].by_ranks == ()


def test_a_link_whose_bandwidth_eats_what_is_saved_never_pays() -> None:
    made = plan(Costs(flops_per_s=1.2e14, fabric=Fabric(alpha_s=8e-6, bus_bytes_per_s=1e9)))
    assert split(made, 4).threshold == "never: the bandwidth eats what the split saves"
