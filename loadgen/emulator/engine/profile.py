"""`kind = "batching"`: a profile that describes a model, the cards it runs on and the scheduler in front of them.

What does not fit is refused when the profile is read, with the key that would have to change: weights beyond the card,
ranks that do not divide the model, a KV cache that cannot hold one context.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from analysis.tp.cost import Fabric, Shape, split_refusal
from loadgen.emulator.cost import Card, StepCost, kv_blocks, weight_bytes
from loadgen.emulator.engine.core import Engine
from loadgen.emulator.engine.model import BatchingModel
from loadgen.emulator.engine.noise import StepNoise
from loadgen.emulator.engine.serve import ServerArrivals, serve
from loadgen.emulator.engine.service_times import Int64s, ServiceTimes, interleaved
from loadgen.emulator.engine.types import Limits
from loadgen.emulator.profiles import Positive, Profile
from loadgen.plan.types import RunPlan

__all__ = ["BatchingProfile"]

Share = Annotated[float, Field(gt=0, le=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelShape(_Section):
    """A dense decoder, keys as in its config.json where it has them."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    weight_bits: Annotated[int, Field(ge=1, le=32)] = 16
    activation_bytes: Count = 2
    kv_cache_bytes: Count = 2  # of one element of a key or value


class CardRates(_Section):
    """One accelerator, with the rates that kernels reach on it."""

    memory_gb: Positive  # 10⁹ bytes
    gpu_memory_utilization: Share = 0.92
    runtime_gb: NotNegative = 2.0
    effective_tflops: Positive
    effective_gb_per_s: Positive


class Parallel(_Section):
    """How many cards, and what links them. All-reduce constants are needed for more than one rank."""

    tensor_parallel_size: Count = 1
    replicas: Count = 1
    all_reduce_alpha_us: NotNegative = 0.0
    all_reduce_bus_gb_per_s: Positive | None = None


class Scheduler(_Section):
    """vLLM's settings, by their names."""

    max_num_batched_tokens: Count = 8192
    max_num_seqs: Count = 256
    block_size: Count = 16
    enable_prefix_caching: bool = True
    max_num_queued_reqs: Annotated[int, Field(ge=1)] | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    num_gpu_blocks_override: Count | None = None


class StepTime(_Section):
    """What a step takes beside model and collectives, and how uneven steps are.

    `jitter` is the standard deviation of a lognormal factor of mean 1 on every step; a step stalls for `stall_ms` with
    probability `stall_share`. Two servers of one profile and different `seed` differ by nothing but luck.
    """

    overhead_ms: NotNegative
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    stall_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    stall_ms: NotNegative = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class BatchingProfile(Profile):
    """A continuous-batching server."""

    kind: Literal["batching"]
    model: ModelShape
    card: CardRates
    parallel: Parallel = Parallel()
    scheduler: Scheduler = Scheduler()
    step: StepTime

    @model_validator(mode="after")
    def _possible(self) -> Self:
        ranks, scheduler = self.parallel.tensor_parallel_size, self.scheduler
        if refusal := split_refusal(self.shape(), ranks):
            raise ValueError(f"key parallel.tensor_parallel_size: {refusal}")
        if ranks > 1 and self.parallel.all_reduce_bus_gb_per_s is None:
            raise ValueError("key parallel.all_reduce_bus_gb_per_s is missing: ranks exchange activations over a link")
        if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
            raise ValueError("key scheduler.max_num_batched_tokens must be at least max_num_seqs")
        blocks = self.blocks()
        if blocks <= 0:
            weights_gb = weight_bytes(self.shape(), self.model.weight_bits) / ranks / 1e9
            usable_gb = self.card.memory_gb * self.card.gpu_memory_utilization - self.card.runtime_gb
            raise ValueError(
                f"key card.memory_gb: weights of {weights_gb:.1f} GB a card leave no KV cache in {usable_gb:.1f} GB "
                "usable; use more ranks, fewer weight_bits or a larger card"
            )
        if blocks * scheduler.block_size < self.server.max_model_len:
            raise ValueError(
                f"key server.max_model_len: the KV cache holds {blocks * scheduler.block_size} tokens, fewer than one "
                f"context of {self.server.max_model_len}"
            )
        return self

    def shape(self) -> Shape:
        """The model's dimensions."""
        model = self.model
        return Shape(
            hidden=model.hidden_size,
            mlp=model.intermediate_size,
            layers=model.num_hidden_layers,
            heads=model.num_attention_heads,
            kv_heads=model.num_key_value_heads,
            head_size=model.head_dim,
            vocab=self.server.vocab_size,
            activation_bytes=model.activation_bytes,
        )

    def blocks(self) -> int:
        """KV blocks of one replica; not above 0 where the weights leave no room."""
        fits = kv_blocks(
            self._card(),
            self.shape(),
            ranks=self.parallel.tensor_parallel_size,
            weight_bits=self.model.weight_bits,
            kv_element_bytes=self.model.kv_cache_bytes,
            block_size=self.scheduler.block_size,
        )
        override = self.scheduler.num_gpu_blocks_override
        return fits if override is None or fits <= 0 else override

    def limits(self) -> Limits:
        """The scheduler's limits."""
        scheduler = self.scheduler
        return Limits(
            batched_tokens=scheduler.max_num_batched_tokens,
            seqs=scheduler.max_num_seqs,
            kv_blocks=self.blocks(),
            block_size=scheduler.block_size,
            prefix_caching=scheduler.enable_prefix_caching,
            queued=scheduler.max_num_queued_reqs,
            policy=scheduler.scheduling_policy,
        )

    def cost(self) -> StepCost:
        """What steps take; one for all runs of a profile, so that each step size is worked out once."""
        return self._cost

    @cached_property
    def _cost(self) -> StepCost:
        parallel = self.parallel
        return StepCost(
            shape=self.shape(),
            card=self._card(),
            fabric=Fabric(
                alpha_s=parallel.all_reduce_alpha_us * 1e-6,
                bus_bytes_per_s=(parallel.all_reduce_bus_gb_per_s or 1.0) * 1e9,
            ),
            ranks=parallel.tensor_parallel_size,
            weight_bits=self.model.weight_bits,
            kv_element_bytes=self.model.kv_cache_bytes,
            overhead_s=self.step.overhead_ms * 1e-3,
        )

    def noise(self, replica: int, before: int = 0) -> StepNoise | None:
        """The unevenness of one replica's steps, `before` of which it has behind it."""
        step = self.step
        if not step.jitter and not (step.stall_share and step.stall_ms):
            return None
        return StepNoise(
            seed=step.seed + replica,
            jitter=step.jitter,
            stall_share=step.stall_share,
            stall_ps=round(step.stall_ms * 1e9),
            before=before,
        )

    def build(self) -> BatchingModel:
        """An idle server; replicas take requests in turn."""
        replicas = range(self.parallel.replicas)
        return BatchingModel([Engine(self.limits(), self.cost(), self.noise(replica)) for replica in replicas])

    def serve(
        self,
        plan: RunPlan,
        output_tokens: Int64s,
        *,
        timeout_ns: int,
        until: int,
        cap: int | None = None,
        collapse: bool = True,
    ) -> ServiceTimes:
        """The plan in virtual time; see `engine.serve`. Raises `ValueError` for a cap in front of replicas.

        Each plan meets noise of its own, the same each time it is served: runs that shared it would not be independent.
        """
        replicas = self.parallel.replicas
        before = int(plan.schedule.sha256[12:24], 16)
        if cap is not None and replicas > 1:
            raise ValueError("a concurrency cap in front of replicas has no virtual time")
        traces = [
            serve(
                ServerArrivals(
                    at_ns=plan.schedule.at_ns[replica::replicas],
                    input_tokens=plan.input_tokens[replica::replicas],
                    output_tokens=output_tokens[replica::replicas],
                    prefix_tokens=plan.prefix_tokens[replica::replicas],
                    prefix_group=plan.prefix_group[replica::replicas],
                    blocks=None if plan.blocks is None else plan.blocks.take(np.arange(replica, len(plan), replicas)),
                ),
                limits=self.limits(),
                cost=self.cost(),
                noise=self.noise(replica, before),
                timeout_ns=timeout_ns,
                until=len(range(replica, until, replicas)),
                cap=cap,
                collapse=collapse,
            )
            for replica in range(replicas)
        ]
        return traces[0] if replicas == 1 else interleaved(traces)

    def _card(self) -> Card:
        card = self.card
        return Card(
            memory_bytes=card.memory_gb * 1e9,
            usable_share=card.gpu_memory_utilization,
            runtime_bytes=card.runtime_gb * 1e9,
            flops_per_s=card.effective_tflops * 1e12,
            memory_bytes_per_s=card.effective_gb_per_s * 1e9,
        )
