"""A decoder's dimensions from its Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from analysis.text import bounded
from analysis.tp.cost import Shape
from analysis.tp.names import ELEMENT_BYTES

__all__ = ["BadConfig", "element_bytes", "shape_of_config"]

_LARGEST: Final = 1 << 32


class BadConfig(ValueError):
    """No config.json of a dense decoder; the message says why, in one line."""


def element_bytes(name: str) -> int:
    """Bytes of an element of this type (`bfloat16`, `float16`, `half`, `float32`, …). Raises `BadConfig`."""
    size = ELEMENT_BYTES.get(name.lower().removeprefix("torch."))
    if size is None:
        raise BadConfig(f"{bounded(name, 40)!r} is no element type: write bfloat16, float16 or float32")
    return size


def shape_of_config(text: bytes) -> Shape:
    """The shape that a config.json describes; of a multimodal model, its text part. Raises `BadConfig`."""
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadConfig(f"not valid JSON ({error}): pass the model's config.json") from None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}
    if not isinstance(config, dict):
        raise BadConfig("not a JSON object: pass the model's config.json")
    heads = _size(config, "num_attention_heads")
    hidden = _size(config, "hidden_size")
    element = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    return Shape(
        hidden=hidden,
        mlp=_size(config, "intermediate_size"),
        layers=_size(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", heads),
        head_size=_size(config, "head_dim", hidden // heads),
        vocab=_size(config, "vocab_size"),
        activation_bytes=element_bytes(str(element)),
    )


def _size(config: Mapping[str, object], key: str, otherwise: int | None = None) -> int:
    value = config.get(key)
    if value is None and otherwise is not None:
        value = otherwise
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _LARGEST:
        said = "is missing" if value is None else f"is {bounded(str(value), 40)}"
        raise BadConfig(f"{key} {said}: pass the config.json of a dense decoder (Llama, Qwen, Mistral, …)")
    return value
