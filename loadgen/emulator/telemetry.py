"""The metrics that the emulator serves on /metrics, under vLLM 0.32.0's names, types, labels and bucket bounds.

What happens at every token is one addition to a list; the text is made at a scrape. The engine's own times (queue,
prefill, decode, between tokens) are the model's instants, exact; time to first token and end to end are taken where
tokens are written, as vLLM takes them in its front end. What a server of this kind does not have (other cache tiers,
multi-modal inputs, a sleeping engine) has the value of a vLLM without it: zero. Missing: estimates of FLOPs and
bytes, and the web framework's own counts.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from loadgen.emulator.model import Emission, Gauges

__all__ = ["Telemetry"]

FINISHES: Final = ("stop", "length", "abort", "error", "repetition")
_REFUSALS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")
_COMPUTED, _CACHED = "local_compute", "local_cache_hit"
_SOURCES: Final = (_COMPUTED, _CACHED, "external_kv_transfer")
_TIERS: Final = ("device", "host", "p2p", "disk", "external_unspecified")

_TTFT: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_ITL: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_REQUEST: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                   480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_PASS: Final = tuple(float(tokens) for tokens in (1, 8, *(2**n for n in range(4, 15))))


def _one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to a limit, as vLLM bounds what is counted in tokens."""
    bounds = (digit * 10.0**exponent for exponent in range(len(str(limit))) for digit in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= limit)


class _Histogram:
    """Counts by upper bound, not cumulated, and the sum."""

    __slots__ = ("bounds", "counts", "name", "text", "total")

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`times` observations of one value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Telemetry(Collector):
    """Counters and histograms of one server; the model's own state is read at each scrape."""

    def __init__(self, model_name: str, max_model_len: int, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges
        self._labels = {"engine": "0", "model_name": model_name}
        self._created = time.time()
        self._generated = 0
        self._finished: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        lengths = _one_two_five(max_model_len)
        self._histograms: list[_Histogram] = []

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> _Histogram:
            self._histograms.append(_Histogram(name, text, bounds))
            return self._histograms[-1]

        self._prompt = histogram("request_prompt_tokens", "Number of prefill tokens processed.", lengths)
        self._output = histogram("request_generation_tokens", "Number of generation tokens processed.", lengths)
        self._most = histogram(
            "request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", lengths
        )
        self._n = histogram("request_params_n", "Histogram of the n request parameter.", (1.0, 2.0, 5.0, 10.0, 20.0))
        self._asked = histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths)
        self._ttft = histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT)
        self._itl = histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _ITL)
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", _ITL
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _REQUEST)
        phase = "Histogram of time spent in {} phase for request."
        self._queue = histogram("request_queue_time_seconds", phase.format("WAITING"), _REQUEST)
        self._inference = histogram("request_inference_time_seconds", phase.format("RUNNING"), _REQUEST)
        self._prefill = histogram("request_prefill_time_seconds", phase.format("PREFILL"), _REQUEST)
        self._decode = histogram("request_decode_time_seconds", phase.format("DECODE"), _REQUEST)
        self._preempted = histogram(
            "request_num_preemptions", "Histogram of the number of times a request was preempted.",
            (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
        )  # fmt: skip
        self._computed = histogram(
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).", lengths,
        )  # fmt: skip
        self._registry = registry = CollectorRegistry()
        for standard in (GCCollector, PlatformCollector, ProcessCollector):
            standard(registry=registry)
        registry.register(self)

    def refused(self) -> None:
        """A request met the queue limit."""
        self._refused[_REFUSALS[0]] += 1

    def first_token(self, waited_s: float, prompt_tokens: int, cached_tokens: int) -> None:
        """A request's first token was written so long after it arrived; its prompt was cached as far as that."""
        self._ttft.observe(waited_s)
        self._sources[_CACHED] += cached_tokens
        self._sources[_COMPUTED] += prompt_tokens - cached_tokens

    def tokens(self, count: int) -> None:
        """Output tokens were written."""
        self._generated += count

    def gap(self, seconds: float, tokens: int) -> None:
        """So many tokens of a request came out, each so long after the one before."""
        self._itl.observe(seconds, tokens)

    def left(self) -> None:
        """A client hung up before its answer was complete."""
        self._finished["abort"] += 1

    def finished(
        self, reason: str, *, arrived_ns: int, written_ns: int, first: Emission, last: Emission, prompt_tokens: int,
        output_tokens: int, max_tokens: int,
    ) -> None:  # fmt: skip
        """A request was answered; `first` and `last` are the model's first and last word on it."""
        self._finished[reason] += 1
        self._prompt.observe(prompt_tokens)
        self._output.observe(output_tokens)
        self._most.observe(output_tokens)
        self._n.observe(1)
        self._asked.observe(max_tokens)
        self._e2e.observe((written_ns - arrived_ns) / 1e9)
        decode_s = (last.at_ns - first.at_ns) / 1e9
        self._queue.observe((first.started_ns - arrived_ns) / 1e9)
        self._prefill.observe((first.at_ns - first.started_ns) / 1e9)
        self._decode.observe(decode_s)
        self._inference.observe((last.at_ns - first.started_ns) / 1e9)
        self._tpot.observe(decode_s / (output_tokens - 1) if output_tokens > 1 else 0.0)
        self._preempted.observe(last.preemptions)
        self._computed.observe(prompt_tokens - first.cached_tokens)

    def exposition(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """One scrape; prometheus_client's protocol."""
        now = self._gauges()
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", now.running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", now.waiting)
        yield self._gauge(
            "num_requests_waiting_by_reason", "Number of waiting requests by reason.",
            {"capacity": now.waiting, "deferred": 0}, by="reason",
        )  # fmt: skip
        yield self._gauge(
            "engine_sleep_state", "Engine sleep state.", {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
            by="sleep_state",
        )  # fmt: skip
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", now.kv_usage)
        cached = self._sources[_CACHED]
        for name, text, value in (
            ("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
             now.prefix_queried_tokens),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", now.prefix_hit_tokens),
            ("external_prefix_cache_queries", "External prefix cache queries.", 0),
            ("external_prefix_cache_hits", "External prefix cache hits.", 0),
            ("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", 0),
            ("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", 0),
            ("num_preemptions", "Cumulative number of preemption from the engine.", now.preemptions),
            ("prompt_tokens", "Number of prefill tokens processed.", self._sources.total()),
            ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached),
            ("generation_tokens", "Number of generation tokens processed.", self._generated),
        ):  # fmt: skip
            yield self._counter(name, text, value)
        by_source, by_tier = {name: self._sources[name] for name in _SOURCES}, dict.fromkeys(_TIERS, 0)
        yield self._counter("prompt_tokens_by_source", "Number of prompt tokens by source.", by_source, by="source")
        yield self._counter(
            "prompt_tokens_cached_by_source", "Prefix-cache hit tokens by the cache tier that supplied them.",
            by_tier | {"device": cached}, by="source",
        )  # fmt: skip
        yield self._counter(
            "request_success", "Count of successfully processed requests.",
            {reason: self._finished[reason] for reason in FINISHES}, by="finished_reason",
        )  # fmt: skip
        yield self._counter(
            "admission_rejections", "Number of admission attempts rejected by a queue limit, by reason.",
            {reason: self._refused[reason] for reason in _REFUSALS}, by="reason", without="engine",
        )  # fmt: skip
        passes = _Histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", _PASS)
        for tokens, times in now.passes.items():
            passes.observe(tokens, times)
        yield from map(self._histogram, (*self._histograms, passes))
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=("engine", *now.settings)
        )
        info.add_metric(("0", *now.settings.values()), 1)
        yield info

    def _gauge(self, name: str, text: str, value: float | Mapping[str, float], *, by: str = "") -> Metric:
        rows = self._rows(value, by)
        family = GaugeMetricFamily(f"vllm:{name}", text)
        for labels, number in rows:
            family.add_sample(family.name, labels, number)
        return family

    def _counter(
        self, name: str, text: str, value: float | Mapping[str, float], *, by: str = "", without: str = ""
    ) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text)
        for labels, number in self._rows(value, by):
            labels.pop(without, None)
            family.add_sample(f"{family.name}_total", labels, number)
            family.add_sample(f"{family.name}_created", labels, self._created)
        return family

    def _histogram(self, histogram: _Histogram) -> Metric:
        family = HistogramMetricFamily(f"vllm:{histogram.name}", histogram.text)
        below = 0
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            below += count
            family.add_sample(f"{family.name}_bucket", {**self._labels, "le": bound}, below)
        family.add_sample(f"{family.name}_count", self._labels, below)
        family.add_sample(f"{family.name}_sum", self._labels, histogram.total)
        family.add_sample(f"{family.name}_created", self._labels, self._created)
        return family

    def _rows(self, value: float | Mapping[str, float], by: str) -> Iterable[tuple[dict[str, str], float]]:
        if isinstance(value, Mapping):
            return [({**self._labels, by: key}, number) for key, number in value.items()]
        return [(dict(self._labels), value)]
