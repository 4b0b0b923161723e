"""A plan of the reference model against its reference values, to the digit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.tp.config import Model
from analysis.tp.cost import Fabric, Shape, attention_products
from analysis.tp.plan import Budget, Plan, make_plan
from analysis.tp.steptimes import Costs

ORACLE = Path(__file__).resolve().parents[3] / "shared" / "oracles" / "tensor_parallel.json"


@dataclass(frozen=True)
class Reference:
    """What the file says, and the plan for its inputs."""

    said: Any
    plan: Plan


@pytest.fixture(scope="module")
def reference() -> Reference:
    if not ORACLE.exists():
        pytest.skip("the reference values are not beside this checkout")
    said = json.loads(ORACLE.read_text())
    given = said["inputs"]
    shape = Shape(
        hidden=given["H"], mlp=given["I"], layers=given["L"], heads=64, kv_heads=given["H_KV"] // 128, head_size=128,
        activation_bytes=given["activation_bytes"],
    )  # fmt: skip
    plan = make_plan(
        Model(shape=shape),
        ranks=[int(ranks) for ranks in said["threshold_T"]],
        tokens=[row[0] for row in said["speedup"]["rows"]],
        costs=Costs(
            flops_per_s=given["effective_flops"],
            fabric=Fabric(alpha_s=given["alpha_s"], bus_bytes_per_s=given["bus_bytes_per_s"]),
        ),
        budget=Budget(usable_bytes=None, runtime_bytes=0, kv_tokens=0, kv_element_bytes=2),
    )
    return Reference(said, plan)


def test_payload_collectives_and_traffic(reference: Reference) -> None:
    load = next(one for one in reference.plan.loads if one.tokens == 32)
    four = next(one for one in load.by_ranks if one.ranks == 4)
    assert load.payload_bytes == reference.said["payload_T32_p4_bytes"]
    assert reference.plan.collectives_per_step == reference.said["collectives_per_step"]
    assert four.traffic_bytes == reference.said["traffic_T32_p4_bytes_per_rank"]


def test_speedups(reference: Reference) -> None:
    ours = [[load.tokens, *(round(one.speedup or 0, 2) for one in load.by_ranks)] for load in reference.plan.loads]
    assert ours == reference.said["speedup"]["rows"]


def test_thresholds(reference: Reference) -> None:
    for split in reference.plan.splits:
        # 8 decimals; the last one for p = 8 is a unit above the exact quotient, 1.322777452
        assert split.threshold_tokens == pytest.approx(reference.said["threshold_T"][str(split.ranks)], abs=1e-8, rel=0)


def test_attention_products(reference: Reference) -> None:
    for row in reference.said["attention_products"]:
        assert attention_products(row["L"], row["O"]) == (row["prefill"], row["decode"])


def test_two_ranks_make_the_reference_product_in_integers(reference: Reference) -> None:
    """Gate and up matrix split by columns, down matrix by rows: exact, for matrices that give the reference product."""
    text = reference.said["sharding_identity"]
    product = json.loads(text[text.index("[[") : text.index("]]") + 2])
    x = np.array([[2, 2, 2, 1], [2, -1, -2, 0]])
    gate = np.array([[2, 2, 2, 1, 1, 2], [0, 2, 2, -1, 1, -2], [-2, 0, 2, 2, 0, -2], [2, -1, 1, 2, 1, 1]])
    up = np.array([[2, 1, -1, -1, 2, -2], [0, 1, 1, -2, -2, 2], [-2, 1, -1, 2, -1, 2], [-1, 2, -2, 1, 2, -2]])
    down = np.array(
        [[1, 1, -2, 1], [-3, 0, -3, 0], [-3, 0, -3, -1], [0, 3, -2, 2], [2, -3, 2, -2], [0, 0, -1, 1]])  # fmt: skip

    def through(part: slice) -> list[list[int]]:
        made: list[list[int]] = ((np.maximum(x @ gate[:, part], 0) * (x @ up[:, part])) @ down[part]).tolist()
        return made

    assert through(slice(0, 6)) == product
    first, second = through(slice(0, 3)), through(slice(3, 6))
    assert np.add(first, second).tolist() == product
    assert product not in (first, second)


def test_partial_products_of_a_split_mlp_sum_to_the_dense_one_in_floating_point() -> None:
    """The identity behind one all-reduce after the MLP, at a size where rounding shows, for every p."""
    rng = np.random.default_rng(11)
    x, gate, up = rng.standard_normal((5, 32)), rng.standard_normal((32, 96)), rng.standard_normal((32, 96))
    down = rng.standard_normal((96, 32))
    dense = (np.maximum(x @ gate, 0) * (x @ up)) @ down
    for ranks in (2, 3, 4, 8):
        parts = [
            (np.maximum(x @ gate[:, part], 0) * (x @ up[:, part])) @ down[part]
            for part in np.split(np.arange(96), ranks)
        ]
        assert np.allclose(sum(parts), dense, rtol=1e-12, atol=1e-12 * float(np.abs(dense).max()))
        assert not np.allclose(parts[0], dense)


def test_heads_split_over_ranks_sum_to_the_dense_attention_output() -> None:
    """The same behind the all-reduce after attention: ranks own whole heads, and rows of the output matrix."""
    rng = np.random.default_rng(12)
    heads, size, tokens = 4, 8, 6
    x, out = rng.standard_normal((tokens, 32)), rng.standard_normal((heads * size, 32))
    query, key, value = (rng.standard_normal((32, heads * size)) for _ in range(3))

    def attended(part: slice) -> np.ndarray[Any, np.dtype[np.float64]]:
        q, k, v = ((x @ matrix[:, part]).reshape(tokens, -1, size).swapaxes(0, 1) for matrix in (query, key, value))
        weights = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(size))
        mixed = (weights / weights.sum(axis=2, keepdims=True)) @ v
        summed: np.ndarray[Any, np.dtype[np.float64]] = mixed.swapaxes(0, 1).reshape(tokens, -1) @ out[part]
        return summed

    dense = attended(slice(0, heads * size))
    for ranks in (2, 4):
        width = heads * size // ranks
        parts = [attended(slice(at * width, (at + 1) * width)) for at in range(ranks)]
        assert np.allclose(sum(parts), dense, rtol=1e-12, atol=1e-12)
