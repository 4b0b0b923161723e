"""The settings that the emulator reports on GET /server_info: the profile's, in vLLM's sections and under its names."""

from __future__ import annotations

from typing import Any

import orjson

from loadgen.emulator.profiles import Profile

__all__ = ["server_info"]


def server_info(profile: Profile, *, as_json: bool) -> bytes:
    """The body; vLLM gives its settings as one string unless asked for JSON (`?config_format=json`)."""
    config = _config(profile)
    text = ", ".join(f"{key}={value!r}" for section in config.values() for key, value in section.items())
    return orjson.dumps({"vllm_config": config if as_json else text})


def _config(profile: Profile) -> dict[str, dict[str, Any]]:
    """What the profile says; a section that its kind does not have says nothing."""
    sections: dict[str, Any] = profile.model_dump(mode="json")
    model, parallel, card = sections.get("model"), sections.get("parallel"), sections.get("card")
    scheduler = sections.get("scheduler")
    config: dict[str, dict[str, Any]] = {"model_config": {"max_model_len": profile.server.max_model_len}}
    if model is not None:
        config["model_config"] |= {key: model[key] for key in ("hidden_size", "num_hidden_layers", "weight_bits")}
    config["scheduler_config"] = {"stream_interval": profile.server.stream_interval}
    if scheduler is not None:
        config["scheduler_config"] |= {
            "max_num_seqs": scheduler["max_num_seqs"],
            "max_num_batched_tokens": scheduler["max_num_batched_tokens"],
            "max_num_queued_reqs": scheduler["max_num_queued_reqs"],
            "policy": scheduler["scheduling_policy"],
            "enable_chunked_prefill": True,
        }
        config["cache_config"] = {
            "block_size": scheduler["block_size"],
            "enable_prefix_caching": scheduler["enable_prefix_caching"],
        }
    if parallel is not None:
        config["parallel_config"] = {
            "tensor_parallel_size": parallel["tensor_parallel_size"],
            "pipeline_parallel_size": 1,
            "data_parallel_size": parallel["replicas"],
        }
    if card is not None:
        config["cache_config"]["gpu_memory_utilization"] = card["gpu_memory_utilization"]
    return config
