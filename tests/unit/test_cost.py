"""What a step of the emulated server takes, and what its memory holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.tp.cost import attention_products, step_s
from loadgen.common.errors import UsageError
from loadgen.emulator.cost import StepCost, kv_blocks, weight_bytes
from loadgen.emulator.engine.core import Engine
from loadgen.emulator.engine.types import Sequence
from loadgen.emulator.profiles import load_profile, profile_names

PROFILES = Path(__file__).resolve().parents[2] / "loadgen" / "emulator" / "profiles"


def batching(name: str) -> Any:
    return load_profile(name)


def test_a_small_step_reads_the_weights_and_a_large_one_computes() -> None:
    profile = batching("llama8b-80gb")
    cost: StepCost = profile.cost()
    shape = profile.shape()
    assert weight_bytes(shape, 16) == pytest.approx(16.06e9, rel=1e-3)
    assert cost.base_ps(1) == cost.base_ps(64) == pytest.approx((16.06e9 / 1.63e12 + 0.002) * 1e12, rel=1e-3)
    computed_s = 32 * shape.projection_flops(8192) / 187e12 + 0.002
    assert cost.base_ps(8192) == pytest.approx(computed_s * 1e12, rel=1e-9)


def test_a_split_step_is_the_accounting_s() -> None:
    # where compute rules, the base is t_proj,1/p + 2L·τ_AR + overhead
    for ranks in (1, 2, 4, 8):
        profile = batching(f"llama70b-tp{ranks}")
        cost = profile.cost()
        expected_s = step_s(cost.shape, cost.fabric, tokens=4096, ranks=ranks, flops_per_s=1.2e14, other_s=0.002)
        assert cost.base_ps(4096) == pytest.approx(expected_s * 1e12, rel=1e-9)


def test_a_lone_request_takes_its_prefill_and_its_products() -> None:
    profile = batching("llama8b-80gb")
    cost = profile.cost()
    engine = Engine(profile.limits(), cost)
    engine.add(Sequence(0, 1000, 3))
    prefill, *decodes = (engine.step() for _ in range(3))
    products, _ = attention_products(1000, 3)
    assert prefill.duration_ps == cost.base_ps(1000) + 1000 * cost.context_ps + products * cost.product_ps
    assert [step.duration_ps for step in decodes] == [cost.base_ps(1) + n * cost.context_ps for n in (1001, 1002)]
    assert decodes[-1].finished
    assert engine.step().steps == 0


def test_memory_is_what_weights_and_workspace_leave() -> None:
    profile = batching("llama8b-80gb")
    # 85·0.92 − 2 − 16.06 GB, of 131,072 bytes a token, in blocks of 16
    assert profile.blocks() == int((85e9 * 0.92 - 2e9 - weight_bytes(profile.shape(), 16)) // (16 * 131_072))
    card = replace(profile.cost().card, memory_bytes=16e9)
    assert kv_blocks(card, profile.shape(), ranks=1, weight_bits=16, kv_element_bytes=2, block_size=16) < 0


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("llama70b-tp1", "weight_bits = 4", "weight_bits = 16", "key card.memory_gb: weights of 141.1 GB a card"),
        (
            "llama70b-tp4",
            "tensor_parallel_size = 4",
            "tensor_parallel_size = 3",
            "key parallel.tensor_parallel_size: 3 ranks",
        ),
        ("llama70b-tp8", "num_key_value_heads = 8", "num_key_value_heads = 4", "8 ranks do not divide kv_heads = 4"),
        ("llama70b-tp2", "all_reduce_bus_gb_per_s = 150.0", "", "key parallel.all_reduce_bus_gb_per_s is missing"),
        (
            "llama8b-80gb",
            "max_model_len = 32768",
            "max_model_len = 999999",
            "key server.max_model_len: the KV cache holds",
        ),
        (
            "llama8b-80gb",
            "max_num_batched_tokens = 8192",
            "max_num_batched_tokens = 64",
            "key scheduler.max_num_batched",
        ),
        ("llama8b-80gb", "overhead_ms = 2.0", "overhead_ms = 2.0\nturbo = 1", "unknown key step.turbo"),
        ("llama8b-80gb", "head_dim = 128", "", "key model.head_dim: Field required"),
    ],
)
def test_an_impossible_profile_is_refused_with_its_key(
    tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    text = (PROFILES / f"{name}.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        load_profile(str(path))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"emulator profile {path}: ")
    assert "\n" not in str(caught.value)


def test_a_service_is_a_mixture_or_a_law(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for service, said in (
        ("mean_ms = 5.0", "mean_ms and weibull_shape go together"),
        ("", "give either times_ms and shares, or mean_ms and weibull_shape"),
        ("mean_ms = 5.0\nweibull_shape = 1\ntimes_ms = [1.0]\nshares = [1.0]", "give either times_ms and shares, or"),
    ):
        path.write_text(f'kind = "fcfs"\ndescription = "mine"\n[service]\n{service}\n')
        with pytest.raises(UsageError, match=said):
            load_profile(str(path))


def test_every_profile_of_the_known_kinds_is_there() -> None:
    tps = {f"llama70b-tp{ranks}" for ranks in (1, 2, 4, 8)}
    assert {"mm1", "md1", "mg1", "llama8b-80gb", "llama70b-replicas"} | tps <= set(profile_names())
