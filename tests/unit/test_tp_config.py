"""config.json of several families, and those that the model of tensor parallelism does not fit."""

from __future__ import annotations

import json

import pytest

from analysis.tp.config import BadConfig, model_of_config

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
# as published: parameters without norms and biases
FAMILIES = {
    "llama-3.1-8b": (LLAMA, 8.030e9),
    "qwen3-0.6b": (  # head_dim of its own, tied
        {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "tie_word_embeddings": True, "torch_dtype": "bfloat16"}, 0.596e9),
    "gemma-7b": (  # tied by default
        {"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000}, 8.538e9),
    "mistral-7b": (
        {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "dtype": "bfloat16"}, 7.242e9),
    "phi-2": (  # no gate
        {"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": None, "vocab_size": 51200}, 2.779e9),
    "gpt-neox-20b": (
        {"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
         "num_attention_heads": 64, "vocab_size": 50432, "use_parallel_residual": True}, 20.55e9),
    "gpt2": (  # names of its own, I = 4H, position embeddings left out
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "vocab_size": 50257},
        0.1235e9),
    "falcon-7b": (  # one KV head, whatever num_kv_heads says
        {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
         "num_kv_heads": 71, "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024}, 6.922e9),
    "falcon-40b": (
        {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
         "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True, "vocab_size": 65024}, 41.30e9),
    "qwen-7b": (  # its width counts gate and up together
        {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
         "num_attention_heads": 32, "vocab_size": 151936}, 7.721e9),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_published_models_follow_from_their_config(family: str) -> None:
    config, parameters = FAMILIES[family]
    model = model_of_config(json.dumps(config).encode())
    shape = model.shape
    counted = shape.layers * shape.projection_flops(1) // 2 + (1 if model.tied else 2) * shape.vocab * shape.hidden
    assert counted == pytest.approx(parameters, rel=2e-3)
    assert not model.inapplicable


def test_what_needs_a_word_is_noted() -> None:
    assert "parallel" in model_of_config(json.dumps(FAMILIES["gpt-neox-20b"][0]).encode()).notes[0]
    unknown = model_of_config(json.dumps(LLAMA | {"model_type": "new\x1b[31m"}).encode())
    assert "is not known here: its MLP is taken as gated" in unknown.notes[0]
    assert unknown.notes[0].isprintable()
    inside = model_of_config(json.dumps({"model_type": "mllama", "text_config": LLAMA}).encode())
    assert inside.notes == ("of a multimodal model, the text part alone",)
    assert (inside.name, inside.context_tokens) == ("llama", 131072)


@pytest.mark.parametrize(
    ("keys", "bits"),
    [({}, 16), ({"torch_dtype": "float32"}, 32), ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, 4),
     ({"quantization_config": {"quant_method": "fp8"}}, 8), ({"quantization_config": {"load_in_4bit": True}}, 4),
     ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
         "group_0": {"weights": {"num_bits": 4, "type": "int"}}}}}, 4),
     ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, 4),
     ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, 8)],
)  # fmt: skip
def test_bits_of_weights_leave_activations_as_they_are(keys: dict[str, str], bits: int) -> None:
    model = model_of_config(json.dumps(LLAMA | keys).encode())
    assert model.weight_bits == bits
    assert model.shape.activation_bytes == (4 if bits == 32 else 2)


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"num_local_experts": 8}, "a mixture of experts (num_local_experts = 8)"),
     ({"n_routed_experts": 256, "kv_lora_rank": 512}, "latent attention (kv_lora_rank)"),
     ({"mamba_d_state": 128}, "layers that are no attention (mamba_d_state)"),
     ({"moe_num_experts": [64, 64]}, "a mixture of experts (moe_num_experts = 64)"),
     ({"block_configs": [{}]}, "layers of different widths (block_configs)"),
     ({"is_encoder_decoder": True}, "an encoder and a decoder")],
)  # fmt: skip
def test_models_of_another_kind_say_why_the_accounting_does_not_hold(keys: dict[str, int], said: str) -> None:
    assert said in "; ".join(model_of_config(json.dumps(LLAMA | keys).encode()).inapplicable)


def test_a_quantised_model_without_bits_says_so() -> None:
    model = model_of_config(json.dumps(LLAMA | {"quantization_config": {"quant_method": "new"}}).encode())
    assert (model.weight_bits, len(model.notes)) == (16, 1)
    assert "quantization_config names no bits: weights are taken as of 16 bits; --weight-bits" in model.notes[0]


@pytest.mark.parametrize("keys", [{"num_key_value_heads": 5}, {"num_attention_heads": 8192}])
def test_heads_that_cannot_be_are_refused(keys: dict[str, int]) -> None:
    with pytest.raises(BadConfig, match=r"attention heads, .* KV heads and a hidden size of 4096 do not go together"):
        model_of_config(json.dumps(LLAMA | keys).encode())


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "many", 1 << 40, [1]])
def test_a_size_that_is_no_count_is_named(value: object) -> None:
    with pytest.raises(BadConfig, match="intermediate_size is "):
        model_of_config(json.dumps(LLAMA | {"intermediate_size": value}).encode())
