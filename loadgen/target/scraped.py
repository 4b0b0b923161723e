"""Lines of JSON between the observer and its process (`loadgen.target.scraper`), as types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from loadgen.common.tls import Tls
from loadgen.send.address import socket_path

__all__ = ["Page", "Scraped", "ScraperConfig", "SourceReadings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A metrics page. `headers` may hold a key: they go to the target's own pages alone."""

    name: str
    url: str
    socket: str | None = None  # path of a Unix socket
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_target(cls, base: str, headers: Mapping[str, str]) -> Page:
        """The page of a server at a base URL."""
        unix = socket_path(base)
        url = "http://localhost" if unix else base
        return cls(name=base, url=f"{url}/metrics", socket=unix, headers=dict(headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScraperConfig:
    """The first line to the process."""

    sources: tuple[Page, ...]
    tls: Tls
    interval_s: float
    wanted: str  # a pattern of the lines that are parsed
    client_pid: int
    smi: bool  # ask nvidia-smi too

    @staticmethod
    def parse(line: bytes) -> ScraperConfig:
        """From its JSON."""
        raw = orjson.loads(line)
        pages = tuple(Page(**page) for page in raw.pop("sources"))
        return ScraperConfig(sources=pages, tls=Tls(**raw.pop("tls")), **raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReadings:
    """All readings of one source in one run."""

    name: str
    series: list[tuple[str, str]]  # metric, labels as JSON
    scrapes: list[tuple[int, list[int], list[float]]]  # CLOCK_MONOTONIC ns, places in `series`, values
    failures: int
    why: str  # the last failure
    thinned: int  # every so many-th reading was kept
    took_ms: tuple[float, float] | None  # median and longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """An answer of the process: empty but at the end of a run."""

    sources: tuple[SourceReadings, ...] = ()
    cpu_s: float = 0.0

    @staticmethod
    def parse(line: bytes) -> Scraped:
        """From its JSON. Raises `orjson.JSONDecodeError`."""
        raw = orjson.loads(line)
        return Scraped(sources=tuple(SourceReadings(**source) for source in raw["sources"]), cpu_s=raw["cpu_s"])
