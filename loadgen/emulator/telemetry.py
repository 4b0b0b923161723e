"""What the emulator tells of itself on /metrics, under vLLM's names, types and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from loadgen.emulator.model import Gauges

__all__ = ["Telemetry"]

_LABELS: Final = ("engine", "model_name")
# bucket bounds as vLLM 0.32.0 has them, seconds
_TTFT: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_E2E: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
               960.0, 1920.0, 7680.0)  # fmt: skip
FINISHES: Final = ("stop", "length", "abort", "error", "repetition")


class Telemetry:
    """Counters and histograms of one process; the model's own state is read at each scrape."""

    def __init__(self, model_name: str, gauges: Callable[[], Gauges]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        own = {"engine": "0", "model_name": model_name}

        def gauge(name: str, text: str, value: Callable[[Gauges], float]) -> None:
            family = Gauge(f"vllm:{name}", text, _LABELS, registry=registry)
            family.labels(**own).set_function(lambda: value(gauges()))

        gauge("num_requests_running", "Number of requests in model execution batches.", lambda g: g.running)
        gauge("num_requests_waiting", "Number of requests waiting to be processed.", lambda g: g.waiting)
        gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", lambda g: g.kv_usage)
        registry.register(_Totals(own, gauges))
        count = [Counter(f"vllm:{name}", text, _LABELS, registry=registry).labels(**own) for name, text in (
            ("prompt_tokens", "Number of prefill tokens processed."),
            ("generation_tokens", "Number of generation tokens processed."),
        )]  # fmt: skip
        self.prompt_tokens, self.generation_tokens = count
        success = Counter("vllm:request_success", "Count of successfully processed requests.",
                          ("engine", "finished_reason", "model_name"), registry=registry)  # fmt: skip
        self.finished = {reason: success.labels(finished_reason=reason, **own) for reason in FINISHES}
        self.ttft_s = Histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.",
                                _LABELS, buckets=_TTFT, registry=registry).labels(**own)  # fmt: skip
        self.e2e_s = Histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.",
                               _LABELS, buckets=_E2E, registry=registry).labels(**own)  # fmt: skip
        settings = gauges().settings
        info = Gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig",
                     ("engine", *settings), registry=registry)  # fmt: skip
        info.labels(engine="0", **settings).set(1)

    def exposition(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self._registry)


class _Totals(Collector):
    """Running totals that the model keeps."""

    def __init__(self, labels: dict[str, str], gauges: Callable[[], Gauges]) -> None:
        self._labels = labels
        self._gauges = gauges

    def collect(self) -> list[Metric]:
        now = self._gauges()
        rows = (
            ("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
             now.prefix_queried_tokens),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", now.prefix_hit_tokens),
            ("num_preemptions", "Cumulative number of preemption from the engine.", now.preemptions),
        )  # fmt: skip
        families: list[Metric] = []
        for name, text, value in rows:
            family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            families.append(family)
        return families
