"""The tables of a results directory as pandas frames, the runs of many files under one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.cohort import mask
from analysis.verdict import RunVerdict
from loadgen.common.errors import ResultsError
from loadgen.results.answer import told
from loadgen.results.events import read_events
from loadgen.results.store import read_ledger

__all__ = ["events", "rates", "requests", "runs"]

_RANGES: Final = ("realised_rate", "sent_rate", "attainment", "goodput", "token_goodput")
_LEFT_OUT: Final = {"worst", "buckets", "missed_by", "floor", "check", *_RANGES}
_OF_THE_RUN: Final = ("variant", "started", "seconds", "requests", "tokens")
_SCALAR: Final = (str, bool, int, float, type(None))


def rates(answer: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of `rates` and `proofs` of an answer: `kind` is explore or prove, a range is `…_min` and `…_max`."""
    rows = []
    for kind, found in (("explore", answer["rates"]), ("prove", answer["proofs"])):
        for row in found:
            ranges = {name: row[name] or (None, None) for name in _RANGES}
            rows.append(
                {
                    "kind": kind,
                    "status": row["check"],
                    **{name: value for name, value in row.items() if name not in _LEFT_OUT},
                    **{f"missed_by_{metric}": count for metric, count in row["missed_by"].items()},
                    **{
                        f"{name}_{end}": pair[at]
                        for name, pair in ranges.items()
                        for at, end in enumerate(("min", "max"))
                    },
                    **_percentiles(row["worst"]),
                }
            )
    return pd.DataFrame(rows)


def runs(directory: Path) -> pd.DataFrame:
    """A row a line of the ledger. Raises `ResultsError`."""
    rows = []
    names = [field.name for field in fields(RunVerdict)]
    for (request, verdict), line in zip(told(directory), read_ledger(directory), strict=True):
        asked = asdict(request)
        of_verdict = {name: getattr(verdict, name) for name in names}
        rows.append(
            {
                "run": asked.pop("key"),
                **{name: line.get(name) for name in _OF_THE_RUN},
                **asked,
                **{
                    name: value
                    for name, value in of_verdict.items()
                    if isinstance(value, _SCALAR) and name not in asked
                },
                "reason": verdict.reason,
                "blame": verdict.blame,
                **_percentiles(verdict.summary),
                "warmup_ns": line["window"]["warmup_ns"],
                "window_ns": line["window"]["window_ns"],
            }
        )
    return pd.DataFrame(rows, columns=None if rows else ["run", "variant", "rate"])


def requests(directory: Path, chosen: pd.DataFrame, *, cohort: bool, columns: Sequence[str] | None) -> pd.DataFrame:
    """The request tables of those rows of `runs`. Raises `ResultsError`."""
    wanted = None if columns is None else list(dict.fromkeys([*columns, *(["scheduled_ns"] if cohort else [])]))

    def read(folder: Path, run: Mapping[str, Any]) -> pd.DataFrame:
        path = folder / "requests.parquet"
        try:
            there = pq.read_schema(path).names
            if missing := sorted(set(wanted or ()) - set(there)):
                raise ResultsError(f"{path}: has no column {missing[0]}; it has {', '.join(there)}")
            found: pd.DataFrame = pq.read_table(path, columns=wanted).to_pandas()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ResultsError(f"{path}: {str(error).splitlines()[0]}") from None
        if cohort:
            found = found[mask(found, warmup_ns=run["warmup_ns"], window_ns=run["window_ns"])]
        return found if columns is None else found[list(columns)]

    return _stacked(directory, chosen, read)


def events(directory: Path, chosen: pd.DataFrame) -> pd.DataFrame:
    """The event tables of those rows of `runs`. Raises `ResultsError`."""
    return _stacked(directory, chosen, lambda folder, _: read_events(folder))


def _stacked(
    directory: Path, chosen: pd.DataFrame, read: Callable[[Path, Mapping[str, Any]], pd.DataFrame]
) -> pd.DataFrame:
    tables = []
    for row in chosen.to_dict("records"):
        run: dict[str, Any] = {str(name): value for name, value in row.items()}
        table = read(directory / "runs" / str(run["variant"]) / str(run["run"]), run)
        tables.append(table.assign(run=run["run"], rate=run["rate"])[["run", "rate", *table.columns]])
    return pd.concat(tables, ignore_index=True)


def _percentiles(summary: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`ttft_s_p95` and the like; where most never came, the percentile is infinite."""
    return {
        f"{metric}_{name}": float("inf") if value == "inf" else value
        for metric, values in summary.items()
        for name, value in values.items()
    }
