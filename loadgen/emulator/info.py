"""The settings that the emulator reports on GET /server_info: the profile's, in vLLM's sections and under its names."""

from __future__ import annotations

import orjson

from loadgen.emulator.engine.profile import BatchingProfile
from loadgen.emulator.profiles import Profile

__all__ = ["server_info"]

Setting = int | float | str | bool | None


def server_info(profile: Profile, *, as_json: bool) -> bytes:
    """The body; vLLM gives its settings as one string unless asked for JSON (`?config_format=json`)."""
    config = _config(profile)
    text = ", ".join(f"{key}={value!r}" for section in config.values() for key, value in section.items())
    return orjson.dumps({"vllm_config": config if as_json else text})


def _config(profile: Profile) -> dict[str, dict[str, Setting]]:
    """What the profile says; a section that its kind does not have says nothing."""
    config: dict[str, dict[str, Setting]] = {
        "model_config": {"max_model_len": profile.server.max_model_len},
        "scheduler_config": {"stream_interval": profile.server.stream_interval},
    }
    if not isinstance(profile, BatchingProfile):
        return config
    model, scheduler = profile.model, profile.scheduler
    config["model_config"] |= {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "weight_bits": model.weight_bits,
    }
    config["scheduler_config"] |= {
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_queued_reqs": scheduler.max_num_queued_reqs,
        "policy": scheduler.scheduling_policy,
        "enable_chunked_prefill": True,
    }
    config["cache_config"] = {
        "block_size": scheduler.block_size,
        "enable_prefix_caching": scheduler.enable_prefix_caching,
        "gpu_memory_utilization": profile.card.gpu_memory_utilization,
    }
    config["parallel_config"] = {
        "tensor_parallel_size": profile.parallel.tensor_parallel_size,
        "pipeline_parallel_size": 1,
        "data_parallel_size": profile.parallel.replicas,
    }
    return config
