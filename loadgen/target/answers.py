"""What a server's small pages say, read from their JSON: whatever is missing or of another kind counts as absent.

`_members` is the only place where an answer's JSON is taken apart by its keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from analysis.text import bounded
from loadgen.target.http import HttpResponse

__all__ = [
    "ListedModel",
    "ServerInfo",
    "detokenized",
    "listed_models",
    "reset_succeeded",
    "server_info",
    "server_load",
    "server_version",
    "token_count",
    "token_ids",
]

_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "model_config": ("dtype", "quantization", "enforce_eager", "max_model_len"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                        "enable_expert_parallel"),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "max_num_queued_reqs",
                         "policy", "async_scheduling", "stream_interval"),
}  # fmt: skip
# what the server's machine and libraries are, of the page's "system_env"
_ENVIRONMENT: Final = ("os", "cpu_info", "torch_version", "cuda_runtime_version", "cudnn_version",
                       "nvidia_driver_version", "nvidia_gpu_models", "gpu_topo", "rocm_version",
                       "hip_runtime_version")  # fmt: skip
_NCCL: Final = re.compile(r"nvidia-nccl-cu\d+==(\S+)")
_ENVIRONMENT_CHARS: Final = 4000  # a topology matrix of 8 cards is 1,500


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model as /v1/models tells of it. `facts` are those that an identity holds, as text."""

    name: str
    max_model_len: int | None
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Of /server_info, what is listed here: the rest of that page may hold secrets."""

    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def listed_models(answer: HttpResponse) -> tuple[ListedModel, ...] | None:
    """The models of /v1/models that have a name; `None` where the answer is no list of models."""
    data = _members(answer.json()).get("data")
    if not isinstance(data, list):
        return None
    cards = [_members(card) for card in data]
    return tuple(
        ListedModel(
            name=card["id"],
            max_model_len=length if isinstance(length := card.get("max_model_len"), int) and length > 0 else None,
            facts={name: bounded(str(card[name])) for name in ("root", "max_model_len") if card.get(name) is not None},
        )
        for card in cards
        if isinstance(card.get("id"), str)
    )


def server_info(answer: HttpResponse) -> ServerInfo:
    """What /server_info tells of vLLM's settings, its machine and its libraries."""
    page = _members(answer.json())
    config, reported = _members(page.get("vllm_config")), _members(page.get("system_env"))
    settings = {
        f"{section.removesuffix('_config')}.{name}": bounded(str(held[name]))
        for section, names in _SETTINGS.items()
        for held in [_members(config.get(section))]
        for name in names
        if name in held
    }
    environment = {
        f"env.{name}": bounded(str(reported[name]), _ENVIRONMENT_CHARS) for name in _ENVIRONMENT if reported.get(name)
    }
    if (nccl := _NCCL.search(str(reported.get("pip_packages")))) is not None:
        environment["env.nccl_version"] = bounded(nccl[1])
    return ServerInfo(settings=settings, environment=environment)


def server_version(answer: HttpResponse) -> str | None:
    """The version that /version tells, not made safe."""
    reported = _members(answer.json()).get("version")
    return None if reported is None else str(reported)


def server_load(answer: HttpResponse) -> float | None:
    """The requests that /load counts."""
    load = _members(answer.json()).get("server_load")
    return float(load) if isinstance(load, int | float) else None


def reset_succeeded(answer: HttpResponse) -> bool:
    """Whether a reset of the cache says so itself: old servers answer 200 with nothing."""
    return _members(answer.json()).get("success") is True


def token_ids(answer: HttpResponse) -> list[int] | None:
    """The ids that /tokenize tells."""
    ids = _members(answer.json()).get("tokens")
    return ids if isinstance(ids, list) and all(type(one) is int and one >= 0 for one in ids) else None


def token_count(answer: HttpResponse) -> int | None:
    """The count that /tokenize tells."""
    count = _members(answer.json()).get("count")
    return count if isinstance(count, int) else None


def detokenized(answer: HttpResponse) -> str | None:
    """The text that /detokenize tells."""
    text = _members(answer.json()).get("prompt")
    return text if isinstance(text, str) else None


def _members(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
