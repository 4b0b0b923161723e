"""Numbers from the metrics that were read during a run.

Readings are a table (TARGET_COLUMNS of analysis.schema), one row a sample as its source wrote it. Counters and
histograms are reported as their increase over the run; a fall of one is a restart, after which it counts from zero (as
Prometheus' `increase` does). Gauges are reported as mean and maximum over the measured window.
Engines, models and replicas are added up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.records import NS_PER_S, Floats
from analysis.server_metrics.types import METRICS, STARTED, Metric, Observation, ServerView, SourceReport

__all__ = ["observe"]

_RANKS: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})  # SGLang tells the same from each rank
_HELD: Final = 3  # readings that a replica's last value stands for while it is silent
_GROUPS: Final = tuple(dict.fromkeys(metric.group for metric in METRICS.values()))
_OPTIONAL: Final = frozenset({"speculative decoding", "requests", "tokens"})  # nothing to miss where there is none


def observe(observation: Observation, *, start_ns: int, end_ns: int) -> ServerView:
    """A run's readings as numbers; gauges over [start, end), the measured window. O(n log n).

    Where the target's own pages tell a quantity of the server, no other source speaks for it.
    """
    series, sources, targets = observation.series, observation.sources, observation.targets
    began = series["at_ns"].eq(series.groupby("source")["at_ns"].transform("min"))
    series = series.assign(first=began.groupby([series[c] for c in ("source", "metric", "labels")]).transform("any"))
    by_metric = {str(name): rows for name, rows in series.groupby("metric", sort=False)}
    found: dict[str, dict[str, float]] = {}
    restarts = dict(_restarts(by_metric.get(STARTED), set(targets)))
    waiting = (np.empty(0), np.empty(0))
    engines = 0
    for name, metric in METRICS.items():
        rows = _rows(by_metric, metric, targets)
        if rows is None:
            continue
        if metric.kind == "gauge":
            at_ns, values = _gauge(rows, metric)
            inside = (at_ns >= start_ns) & (at_ns < end_ns)
            if name == "waiting":
                waiting = (at_ns / NS_PER_S, values)
                engines = len(rows.groupby(["source", "labels"]))
            if inside.any():
                among = values[inside] * metric.scale
                found[name] = {"mean": float(among.mean()), "max": float(among.max())}
        elif metric.kind == "counter":
            found[name] = {"n": _increase(rows, restarts)}
        elif summary := _histogram(rows, metric, restarts):
            found[name] = summary
    if (drafts := found.get("draft_tokens")) and drafts["n"] > 0 and "accepted_tokens" in found:
        found["accept_rate"] = {"mean": found["accepted_tokens"]["n"] / drafts["n"]}
    return ServerView(
        metrics=found,
        sources=tuple(sources),
        restarts=tuple(f"{source}: {why}" for source, why in restarts.items()),
        not_measured=tuple(_not_measured(found, sources, targets)),
        engines=engines,
        span_s=float(series["at_ns"].max() - series["at_ns"].min()) / NS_PER_S if len(series) else 0.0,
        waiting_at_s=waiting[0],
        waiting=waiting[1],
    )


def _rows(by_metric: Mapping[str, pd.DataFrame], metric: Metric, targets: Sequence[str]) -> pd.DataFrame | None:
    """The rows of the first name that each source has; only the target's own where these have any."""
    taken: dict[str, pd.DataFrame] = {}
    for name in metric.names:
        base, _, condition = name.partition("{")
        suffixes = ("",) if metric.kind != "histogram" else ("_sum", "_count", "_bucket")
        known = [by_metric[base + suffix] for suffix in suffixes if base + suffix in by_metric]
        if not known:
            continue
        rows = pd.concat(known) if len(known) > 1 else known[0]
        if condition:
            label, _, value = condition.rstrip("}").partition("=")
            rows = rows[_has(rows["labels"], label, value.strip('"'))]
        for source, own in rows.groupby("source", sort=False):
            taken.setdefault(str(source), own)
    if metric.server and any(source in taken for source in targets):
        taken = {source: rows for source, rows in taken.items() if source in targets}
    return pd.concat(list(taken.values())) if taken else None


def _has(labels: pd.Series, label: str, value: str) -> pd.Series:
    verdicts = {text: _labels(text).get(label) == value for text in labels.unique()}
    return labels.map(verdicts).astype(bool)


def _labels(text: str) -> dict[str, str]:
    return dict(json.loads(text)) if text else {}


def _shared(text: str) -> str:
    """The labels without those by which ranks of one engine repeat one another."""
    kept = {name: value for name, value in _labels(text).items() if name not in _RANKS}
    return json.dumps(kept, sort_keys=True)


def _gauge(rows: pd.DataFrame, metric: Metric) -> tuple[Any, Floats]:
    """(at_ns, value) of the whole target: over labels within one reading, then over replicas."""
    names = {text: _shared(text) for text in rows["labels"].unique()}
    keyed = rows.assign(engine=rows["labels"].map(names))
    one = keyed.groupby(["source", "at_ns", "engine"])["value"].max()
    wide = one.groupby(["source", "at_ns"]).agg(metric.across).unstack("source").sort_index()
    sources = wide.shape[1]
    if sources > 1:
        wide = wide.ffill(limit=_HELD * sources).dropna()
    whole = wide.agg(metric.across, axis=1)
    return whole.index.to_numpy(dtype=np.int64), whole.to_numpy(dtype=np.float64)


def _series(rows: pd.DataFrame) -> Iterator[tuple[str, str, Floats, bool]]:
    """(source, labels, values in order of time, whether it was there from the source's first reading)."""
    for (source, labels), own in rows.sort_values("at_ns", kind="stable").groupby(["source", "labels"], sort=False):
        yield str(source), str(labels), own["value"].to_numpy(dtype=np.float64), bool(own["first"].iloc[0])


def _rise(values: Floats, from_start: bool) -> tuple[float, bool]:
    """(increase, whether it fell on the way). A series that appears amid a run began at zero."""
    steps = np.diff(values) if from_start else np.diff(values, prepend=0.0)
    fell = steps < 0
    after = values[1:] if from_start else values
    return float(np.where(fell, after, steps).sum()), bool(fell.any())


def _increase(rows: pd.DataFrame, restarts: dict[str, str]) -> float:
    by_engine: dict[tuple[str, str], float] = {}
    for source, labels, values, from_start in _series(rows):
        rise, fell = _rise(values, from_start)
        if fell:
            restarts.setdefault(source, f"the counter {rows['metric'].iloc[0]} fell: the server restarted")
        key = (source, _shared(labels))
        by_engine[key] = max(by_engine.get(key, 0.0), rise)
    return sum(by_engine.values())


def _histogram(rows: pd.DataFrame, metric: Metric, restarts: dict[str, str]) -> dict[str, float]:
    parts = {suffix: rows[rows["metric"].str.endswith(suffix)] for suffix in ("_sum", "_count", "_bucket")}
    n = _increase(parts["_count"], restarts) if len(parts["_count"]) else 0.0
    summary = {"n": n}
    if n > 0 and len(parts["_sum"]):
        summary["mean"] = _increase(parts["_sum"], restarts) / n
    if n > 0 and metric.buckets and len(parts["_bucket"]):
        below: dict[float, float] = {}
        for _, labels, values, from_start in _series(parts["_bucket"]):
            bound = float(_labels(labels).get("le", "nan"))
            below[bound] = below.get(bound, 0.0) + _rise(values, from_start)[0]
        bounds = sorted(bound for bound in below if np.isfinite(bound))
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            summary[name] = next((bound for bound in bounds if below[bound] >= share * n), np.nan)
        summary |= {f"le_{bound:g}": below[bound] for bound in bounds}
    return {name: value for name, value in summary.items() if np.isfinite(value)}


def _restarts(rows: pd.DataFrame | None, targets: set[str]) -> Iterator[tuple[str, str]]:
    if rows is None:
        return
    for source, own in rows.groupby("source"):
        starts = own.sort_values("at_ns")["value"].to_numpy()
        if str(source) in targets and starts[-1] - starts[0] > 0.5:
            yield str(source), f"its process started anew {starts[-1] - starts[0]:.0f} s after the one before"


def _not_measured(found: Collection[str], sources: Sequence[SourceReport], targets: Sequence[str]) -> Iterator[str]:
    """What a reader would look for and not find, with the reason where a page of the target refused."""
    failed = {source.name: source.why for source in sources if source.why and not source.scrapes}
    for source in (*targets, *(name for name in failed if name not in targets)):
        if source in failed:
            yield f"{source}: {failed[source]}"
    missing = [
        group for group in _GROUPS
        if group not in _OPTIONAL and not any(m.group == group and name in found for name, m in METRICS.items())
    ]  # fmt: skip
    if missing:
        yield ", ".join(missing)
