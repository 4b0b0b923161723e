"""Metrics pages read as the observer reads them, for tests of what is made of the readings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd

from analysis.server_metrics.types import Observation, SourceReport, wanted
from loadgen.target.scraper import read_page

URL = "http://a:8000"
CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures" / "vllm_0.32.0"
WANTED = re.compile(wanted().encode(), re.MULTILINE)


def observation(
    *readings: tuple[float, str], source: str = URL, targets: tuple[str, ...] = (URL,), reports: tuple[str, ...] = ()
) -> Observation:
    """Readings (at_s, page) of one source."""
    rows = [
        (round(at_s * 1e9), source, metric, json.dumps(dict(labels), sort_keys=True) if labels else "", value)
        for at_s, page in readings
        for metric, labels, value in read_page(page.encode(), WANTED)
    ]
    series = pd.DataFrame(rows, columns=["at_ns", "source", "metric", "labels", "value"])
    sources = (SourceReport(name=source, scrapes=len(readings)), *(SourceReport(name=name, scrapes=0, failures=1,
               why="answers 401 (a key is wanted)") for name in reports))  # fmt: skip
    return Observation(series=series, sources=sources, targets=targets)


def together(*observations: Observation) -> Observation:
    """Several sources in one run."""
    return Observation(
        series=pd.concat([one.series for one in observations], ignore_index=True),
        sources=tuple(source for one in observations for source in one.sources),
        targets=tuple(dict.fromkeys(target for one in observations for target in one.targets)),
    )
