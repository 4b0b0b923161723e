"""Metrics of servers, machines and GPUs: the table of names, and their values in one run.

`METRICS` is the one place that knows what servers call things: a canonical name, its kind, how it adds up over labels
(engines, models, devices), and the names it goes by, the first of which that a source has being taken. Readings are
made into numbers by `analysis.server_metrics.readings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import pandas as pd

from analysis.records import Floats
from analysis.schema import TARGET_COLUMNS

__all__ = ["METRICS", "STARTED", "Metric", "Observation", "ServerView", "SourceReport", "wanted"]

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity. `names` are samples without `_sum`, `_count`, `_bucket`; with `{label="value"}` only such rows."""

    kind: Kind
    names: tuple[str, ...]
    group: str
    across: Literal["sum", "max", "mean"] = "sum"  # over the labels of one reading of a gauge
    buckets: bool = False  # its distribution is wanted as well
    scale: float = 1.0
    server: bool = True  # reported by the server itself, not a sum over two kinds of sources


def _queue(kind: Kind, *names: str) -> Metric:
    return Metric(kind=kind, names=names, group="server queue")


def _phase(*names: str) -> Metric:
    return Metric(kind="histogram", names=names, group="server times")


def _counted(group: str, *names: str) -> Metric:
    return Metric(kind="counter", names=names, group=group)


def _device(group: str, *names: str, scale: float = 1.0) -> Metric:
    return Metric(kind="gauge", names=names, group=group, across="mean", scale=scale, server=False)


# newer names first; vllm: V1 and what V0 called it, sglang:, TGI (tgi_), llama.cpp (llamacpp:), LMDeploy (lmdeploy:),
# NIM (bare names), Triton's TensorRT-LLM backend (nv_trt_llm_)
METRICS: Final[dict[str, Metric]] = {
    "running": _queue(
        "gauge", "vllm:num_requests_running", "sglang:num_running_reqs", "tgi_batch_current_size",
        "llamacpp:requests_processing", "lmdeploy:num_requests_running", "num_requests_running",
        'nv_trt_llm_request_metrics{request_type="scheduled"}',
    ),
    "waiting": _queue(
        "gauge", "vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size", "llamacpp:requests_deferred",
        "lmdeploy:num_requests_waiting", "num_requests_waiting", 'nv_trt_llm_request_metrics{request_type="waiting"}',
    ),
    "queue_s": _phase(
        "vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "tgi_request_queue_duration",
        "lmdeploy:request_queue_time_seconds",
    ),
    "prefill_s": _phase("vllm:request_prefill_time_seconds", "lmdeploy:request_prefill_time_seconds"),
    "decode_s": _phase("vllm:request_decode_time_seconds", "lmdeploy:request_decode_time_seconds"),
    "inference_s": _phase(
        "vllm:request_inference_time_seconds", "tgi_request_inference_duration",
        "lmdeploy:request_inference_time_seconds",
    ),
    "ttft_s": _phase(
        "vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds",
        "lmdeploy:time_to_first_token_seconds", "time_to_first_token_seconds",
    ),
    "itl_s": _phase(
        "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds", "tgi_request_mean_time_per_token_duration",
        "lmdeploy:time_per_output_token_seconds", "time_per_output_token_seconds",
    ),
    "e2e_s": _phase(
        "vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds", "tgi_request_duration",
        "lmdeploy:e2e_request_latency_seconds", "e2e_request_latency_seconds",
    ),
    "kv_usage": Metric(
        kind="gauge", group="KV cache", across="max",
        names=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage",
               "llamacpp:kv_cache_usage_ratio", "lmdeploy:gpu_cache_usage_perc", "gpu_cache_usage_perc",
               'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}'),
    ),
    "preemptions": _counted("KV cache", "vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_queries": _counted(
        "prefix cache", "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total",
    ),
    "prefix_hits": _counted(
        "prefix cache", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
    "external_prefix_hits": _counted("prefix cache", "vllm:external_prefix_cache_hits_total"),
    "prompt_tokens": _counted(
        "tokens", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total",
        "prompt_tokens_total",
    ),
    "generation_tokens": _counted(
        "tokens", "vllm:generation_tokens_total", "sglang:generation_tokens_total", "llamacpp:tokens_predicted_total",
        "generation_tokens_total",
    ),
    "iteration_tokens": Metric(
        kind="histogram", group="tokens", names=("vllm:iteration_tokens_total",), buckets=True
    ),
    "finished": _counted(
        "requests", "vllm:request_success_total", "sglang:num_requests_total", "tgi_request_success",
        "request_success_total",
    ),
    "rejections": _counted("requests", "vllm:admission_rejections_total"),
    "aborted": _counted(
        "requests", 'vllm:request_success_total{finished_reason="abort"}', "sglang:num_aborted_requests_total",
    ),
    "drafts": _counted("speculative decoding", "vllm:spec_decode_num_drafts_total"),
    "draft_tokens": _counted("speculative decoding", "vllm:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": _counted("speculative decoding", "vllm:spec_decode_num_accepted_tokens_total"),
    "accept_rate": Metric(
        kind="gauge", group="speculative decoding", across="mean", names=("sglang:spec_accept_rate",)
    ),
    "gpu_busy": _device("GPU", "DCGM_FI_DEV_GPU_UTIL", "nvidia_smi_utilization_gpu_percent", scale=0.01),
    "sm_active": _device("SMs of the GPU", "DCGM_FI_PROF_SM_ACTIVE"),
    "dram_active": _device("GPU memory bandwidth", "DCGM_FI_PROF_DRAM_ACTIVE"),
    "memory_busy": _device(
        "GPU memory bandwidth", "DCGM_FI_DEV_MEM_COPY_UTIL", "nvidia_smi_utilization_memory_percent", scale=0.01
    ),
    "nvlink_tx_bytes_per_s": _device("GPU links", "DCGM_FI_PROF_NVLINK_TX_BYTES"),
    "pcie_tx_bytes_per_s": _device("GPU links", "DCGM_FI_PROF_PCIE_TX_BYTES"),
    "gpu_power_w": _device("GPU", "DCGM_FI_DEV_POWER_USAGE", "nvidia_smi_power_draw_watts"),
    "gpu_clock_mhz": _device("GPU", "DCGM_FI_DEV_SM_CLOCK", "nvidia_smi_clocks_sm_mhz"),
    "node_cpu_user_s": Metric(
        kind="counter", group="server machine", server=False, names=('node_cpu_seconds_total{mode="user"}',)
    ),
    "node_receive_bytes": Metric(
        kind="counter", group="server machine", server=False, names=("node_network_receive_bytes_total",)
    ),
    "node_transmit_bytes": Metric(
        kind="counter", group="server machine", server=False, names=("node_network_transmit_bytes_total",)
    ),
    "client_cpu_s": Metric(
        kind="counter", group="client CPU", server=False, names=("client_process_cpu_seconds_total",)
    ),
    "client_machine_busy_s": Metric(
        kind="counter", group="client CPU", server=False, names=('client_machine_cpu_seconds_total{mode="busy"}',)
    ),
    "client_machine_idle_s": Metric(
        kind="counter", group="client CPU", server=False, names=('client_machine_cpu_seconds_total{mode="idle"}',)
    ),
    "client_receive_bytes": Metric(
        kind="counter", group="client network", server=False,
        names=('client_network_bytes_total{direction="receive"}',),
    ),
    "client_transmit_bytes": Metric(
        kind="counter", group="client network", server=False,
        names=('client_network_bytes_total{direction="transmit"}',),
    ),
}  # fmt: skip
STARTED: Final = "process_start_time_seconds"


def wanted() -> str:
    """A regular expression (multi-line) for the lines of a metrics page that the table knows."""
    plain: set[str] = {re.escape(STARTED)}
    for metric in METRICS.values():
        for name in metric.names:
            base = re.escape(name.partition("{")[0])
            if metric.kind == "histogram":
                base += r"(?:_sum|_count|_bucket)" if metric.buckets else r"(?:_sum|_count)"
            plain.add(base)
    return rf"^(?:{'|'.join(sorted(plain))})[ {{].*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """How reading one source went in one run. `why` is its last failure in words."""

    name: str
    scrapes: int
    failures: int = 0
    why: str = ""
    took_p50_ms: float | None = None
    took_max_ms: float | None = None
    thinned: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """One run as its sources saw it.

    `metrics`: canonical name -> gauges {"mean", "max"} over the window, counters {"n"} and histograms {"n", "mean"}
    over the run, in the unit of the name's ending; where wanted with "p50", "p90", "p99" as upper bounds of buckets,
    and "le_B", the number of at most B, for each bucket.
    `waiting_at_s` and `waiting` are the samples of the waiting gauge, all replicas added up, seconds since t0.
    """

    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sources: tuple[SourceReport, ...] = ()
    restarts: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()
    engines: int = 0
    span_s: float = 0.0  # from the first reading to the last
    waiting_at_s: Floats = field(default_factory=lambda: np.empty(0))
    waiting: Floats = field(default_factory=lambda: np.empty(0))

    def value(self, metric: str, statistic: str) -> float | None:
        """One number, or `None` if it was not measured."""
        return self.metrics.get(metric, {}).get(statistic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The metrics of one run: a table with TARGET_COLUMNS, its sources, and the cost of reading them.

    `targets` are the sources that are the target's own pages.
    """

    series: pd.DataFrame
    sources: tuple[SourceReport, ...] = ()
    interval_s: float = 0.0
    cpu_s: float = 0.0  # of the process that watched
    targets: tuple[str, ...] = ()

    @classmethod
    def nothing(cls, why: str, targets: Sequence[str] = ()) -> Observation:
        """No readings, and the reason."""
        columns = {name: np.empty(0, dtype=object if kind == "str" else kind) for name, kind in TARGET_COLUMNS.items()}
        reports = tuple(SourceReport(name=name, scrapes=0, failures=1, why=why) for name in targets)
        return cls(series=pd.DataFrame(columns), sources=reports, targets=tuple(targets))
