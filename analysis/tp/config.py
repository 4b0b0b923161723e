"""A decoder's dimensions from its Hugging Face `config.json`, and whether the model of tensor parallelism fits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from analysis.text import bounded
from analysis.tp.cost import Shape
from analysis.tp.names import ELEMENT_BYTES

__all__ = ["BadConfig", "Model", "element_bytes", "model_of_config"]

_LARGEST: Final = 1 << 32
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "n_embed")
_MLP: Final = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_HEAD_SIZE: Final = ("head_dim", "kv_channels")
_VOCAB: Final = ("vocab_size", "padded_vocab_size")
_CONTEXT: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_GATED: Final = frozenset({
    "baichuan", "chatglm", "cohere", "cohere2", "exaone", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4",
    "granite", "internlm2", "internlm3", "llama", "minicpm", "ministral", "mistral", "mistral3", "olmo", "olmo2",
    "phi3", "qwen", "qwen2", "qwen2_5_vl_text", "qwen2_vl", "qwen3", "qwen3_vl_text", "smollm3", "stablelm",
})  # fmt: skip
_UNGATED: Final = frozenset({
    "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "nemotron", "opt",
    "phi", "starcoder2",
})  # fmt: skip
_TIED: Final = frozenset({  # by default, without a key
    "bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "mpt",
    "opt", "starcoder2",
})  # fmt: skip
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_STATES: Final = (
    "ssm_cfg", "state_size", "ssm_state_size", "mamba_d_state", "mamba_d_ssm", "linear_num_value_heads",
    "linear_attn_config", "attn_layer_period",
)  # fmt: skip
_PARTS: Final = ("text_config", "llm_config", "language_config")  # of a multimodal model


class BadConfig(ValueError):
    """No config.json of a dense decoder; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A shape and what else decides about a split. `inapplicable`: why the model of method section 9 does not hold."""

    shape: Shape
    name: str = ""
    tied: bool = False  # one matrix is embedding and output
    weight_bits: float = 16  # of the layers' matrices
    context_tokens: int | None = None
    inapplicable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def element_bytes(name: str) -> int:
    """Bytes of an element of this type (`bfloat16`, `float16`, `half`, `float32`, …). Raises `BadConfig`."""
    size = ELEMENT_BYTES.get(name.lower().removeprefix("torch."))
    if size is None:
        raise BadConfig(f"{bounded(name, 40)!r} is not an element type: write bfloat16, float16 or float32")
    return size


def model_of_config(text: bytes) -> Model:
    """The model that a config.json describes; of a multimodal one, its text part. Raises `BadConfig`."""
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadConfig(f"not valid JSON ({error}): pass the model's config.json") from None
    notes: list[str] = []
    if not isinstance(config, dict):
        raise BadConfig("not a JSON object: pass the model's config.json")
    if part := next((config[key] for key in _PARTS if isinstance(config.get(key), dict)), None):
        config = {**config, **part}
        notes.append("of a multimodal model, the text part alone")
    keys = _Keys(config)
    name = bounded(str(config.get("model_type") or ""), 40)
    heads = keys.size(_HEADS)
    hidden = keys.size(_HIDDEN)
    kv_heads = keys.size(_KV_HEADS, heads)
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        kv_heads = 1  # as Falcon means it, whatever num_kv_heads says
    if heads % kv_heads or heads > hidden:
        raise BadConfig(
            f"{heads} attention heads, {kv_heads} KV heads and a hidden size of {hidden} do not go together"
        )
    mlp = keys.size(_MLP, 4 * hidden if name in _UNGATED else None)
    element = element_bytes(str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"))
    if name not in _GATED | _UNGATED:
        said = f"model_type {name}" if name else "a config without model_type"
        notes.append(f"{said} is not known here: its MLP is taken as gated (gate, up, down)")
    if config.get("use_parallel_residual") or config.get("parallel_attn"):
        notes.append(
            "attention and MLP are parallel: servers may reduce both in one all-reduce a layer, L calls a step"
        )
    shape = Shape(
        hidden=hidden,
        mlp=mlp // 2 if name == "qwen" else mlp,  # the first Qwen counts gate and up together
        layers=keys.size(_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_size=keys.size(_HEAD_SIZE, hidden // heads),
        vocab=keys.size(_VOCAB),
        activation_bytes=element,
        mlp_matrices=2 if name in _UNGATED else 3,
    )
    bits = keys.weight_bits(8 * element)
    if bits is None:
        notes.append(
            f"quantization_config names no bits: weights are taken as of {8 * element} bits; --weight-bits says better"
        )
    return Model(
        shape=shape,
        name=name,
        tied=config.get("tie_word_embeddings", name in _TIED) is True,
        weight_bits=bits or 8 * element,
        context_tokens=keys.size(_CONTEXT, 0) or None,
        inapplicable=tuple(keys.inapplicable()),
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Keys:
    config: Mapping[str, object]

    def size(self, names: tuple[str, ...], otherwise: int | None = None) -> int:
        """The first of these keys that has a value."""
        key = next((one for one in names if self.config.get(one) is not None), names[0])
        value = self.config.get(key)
        if value is None and otherwise is not None:
            return otherwise
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _LARGEST:
            said = "is missing" if value is None else f"is {bounded(str(value), 40)}"
            raise BadConfig(f"{key} {said}: pass the config.json of a dense decoder (Llama, Qwen, Mistral, …)")
        return value

    def weight_bits(self, otherwise: int) -> float | None:
        """Bits of a quantised weight, else those of the element type; `None` where it is quantised and no key says."""
        quantised = self.config.get("quantization_config")
        if not isinstance(quantised, dict):
            return otherwise
        groups = quantised.get("config_groups")  # compressed-tensors
        group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            quantised = {"bits": weights.get("num_bits"), **quantised}
        bits = quantised.get("bits") or quantised.get("w_bit")
        if isinstance(bits, int) and not isinstance(bits, bool) and 0 < bits <= 32:
            return bits
        method = " ".join(str(quantised.get(key, "")) for key in ("quant_method", "quant_algo")).lower()
        if "fp8" in method or quantised.get("load_in_8bit") is True:
            return 8
        return 4 if "fp4" in method or quantised.get("load_in_4bit") is True else None

    def inapplicable(self) -> list[str]:
        reasons = []
        for key in _EXPERTS:
            count = self.config.get(key)  # a list where layers differ
            most = max((one for one in count if isinstance(one, int)), default=0) if isinstance(count, list) else count
            if isinstance(most, int) and most > 1:
                reasons.append(f"a mixture of experts ({key} = {most}): F_mlp is not 6THI, and experts may be spread")
                break
        if self.config.get("kv_lora_rank"):
            reasons.append("latent attention (kv_lora_rank): its KV cache and projections are not those of heads")
        if key := next((one for one in _STATES if self.config.get(one)), ""):
            reasons.append(f"layers that are no attention ({key})")
        if self.config.get("block_configs"):
            reasons.append("layers of different widths (block_configs)")
        if self.config.get("is_encoder_decoder") is True:
            reasons.append("an encoder and a decoder (is_encoder_decoder)")
        return reasons
