"""Reading a server's /metrics: prometheus text in, a handful of numbers out; what is not there is `None`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from loadgen.target.http import Http

__all__ = ["Scrape", "parse", "scrape"]

Samples = Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One reading: sample name → its (labels, value) rows, as the server wrote them."""

    samples: Samples

    def total(self, name: str) -> float | None:
        """The sum of a sample over all its labels (engines, models); `None` if there is none."""
        rows = self.samples.get(name)
        return sum(value for _, value in rows) if rows else None

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of an info metric's first row; empty if there is none."""
        rows = self.samples.get(name)
        return rows[0][0] if rows else {}

    @property
    def outstanding(self) -> float | None:
        """Requests the server runs or holds waiting; `None` if it does not tell both."""
        running, waiting = self.total("vllm:num_requests_running"), self.total("vllm:num_requests_waiting")
        return None if running is None or waiting is None else running + waiting

    @property
    def prefix_hits(self) -> float | None:
        """Prompt tokens found in the prefix cache since the server started, the external cache included."""
        own, other = self.total("vllm:prefix_cache_hits_total"), self.total("vllm:external_prefix_cache_hits_total")
        return None if own is None else own + (other or 0.0)

    @property
    def prefix_queries(self) -> float | None:
        """Prompt tokens looked up in the prefix cache since the server started."""
        return self.total("vllm:prefix_cache_queries_total")

    @property
    def started(self) -> float | None:
        """When the server's process started, Unix seconds."""
        return self.total("process_start_time_seconds")


def parse(text: str) -> Scrape | None:
    """The samples of an exposition; `None` if it is not one."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    except Exception:  # the parser raises anything on a hostile text
        return None
    return Scrape(samples={name: tuple(rows) for name, rows in samples.items()})


async def scrape(http: Http) -> Scrape | None:
    """Read /metrics once; `None` where it is absent, behind a key, too long or not an exposition.

    Raises `Unreachable` where the server answers nothing at all.
    """
    answer = await http.optional("/metrics")
    if answer is None or answer.status != 200 or answer.truncated or answer.is_html:
        return None
    return parse(answer.body.decode(errors="replace"))
