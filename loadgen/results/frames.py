"""The tables of a results directory as pandas frames, the runs of many files under one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.cohort import mask
from analysis.report.types import CapacityAnswer
from analysis.verdict import Balance
from loadgen.common.errors import ResultsError
from loadgen.results.events import read_events
from loadgen.results.store import read_ledger

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["events", "rates", "replicas", "requests", "runs"]

_RANGES: Final = ("realised_rate", "sent_rate", "attainment", "goodput", "token_goodput")
_LEFT_OUT: Final = {"worst", "buckets", "missed_by", "floor", "check", "balance", *_RANGES}
_LATENCIES: Final = ("ttft_s", "tpot_s", "e2e_s")
_OF_THE_RUN: Final = ("started", "seconds", "requests", "tokens")
_SCALAR: Final = (str, bool, int, float, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A row of `runs` whose tables are wanted."""

    folder: Path
    warmup_ns: int
    window_ns: int


def rates(answer: CapacityAnswer) -> pd.DataFrame:
    """The rows of `rates` and `proofs` of an answer: `kind` is explore or prove, a range is `…_min` and `…_max`."""
    rows = []
    for kind, found in (("explore", answer.rates), ("prove", answer.proofs)):
        for row in found:
            ranges = {name: getattr(row, name) or (None, None) for name in _RANGES}
            rows.append(
                {
                    "kind": kind,
                    "status": row.check,
                    **{name: getattr(row, name) for name in _names(row) if name not in _LEFT_OUT},
                    **{f"missed_by_{metric}": count for metric, count in row.missed_by.items()},
                    **{
                        f"{name}_{end}": pair[at]
                        for name, pair in ranges.items()
                        for at, end in enumerate(("min", "max"))
                    },
                    **_percentiles(row.worst),
                    **_imbalances(row.balance),
                }
            )
    return pd.DataFrame(rows)


def runs(directory: Path) -> pd.DataFrame:
    """A row a line of the ledger. Raises `ResultsError`."""
    rows = []
    for line in read_ledger(directory):
        verdict, asked = line.verdict, line.run
        rows.append(
            {
                "run": asked.key,
                "variant": asked.variant,
                **{name: getattr(line, name) for name in _OF_THE_RUN},
                **{name: getattr(asked, name) for name in _names(asked) if name not in ("key", "variant")},
                **{
                    name: value
                    for name in _names(verdict)
                    if isinstance(value := getattr(verdict, name), _SCALAR) and name not in (*_names(asked), "balance")
                },
                "reason": verdict.reason,
                "blame": verdict.blame,
                **_percentiles(verdict.summary),
                **_imbalances(verdict.balance),
                "warmup_ns": line.window.warmup_ns,
                "window_ns": line.window.window_ns,
            }
        )
    return pd.DataFrame(rows, columns=None if rows else ["run", "variant", "rate"])


def replicas(directory: Path) -> pd.DataFrame:
    """A row for each run in the ledger and URL of its target; of a target of one URL none. Raises `ResultsError`."""
    rows = []
    for line in read_ledger(directory):
        balance = line.verdict.balance
        for number, replica in enumerate(() if balance is None else balance.replicas):
            rows.append(
                {
                    "run": line.run.key,
                    "rate": line.run.rate,
                    "target": number,
                    **{name: getattr(replica, name) for name in _names(replica) if name not in _LATENCIES},
                    **_percentiles({name: getattr(replica, name) for name in _LATENCIES}),
                }
            )
    return pd.DataFrame(rows, columns=None if rows else ["run", "rate", "target", "url"])


def requests(directory: Path, chosen: pd.DataFrame, *, cohort: bool, columns: Sequence[str] | None) -> pd.DataFrame:
    """The request tables of those rows of `runs`. Raises `ResultsError`."""
    wanted = None if columns is None else list(dict.fromkeys([*columns, *(["scheduled_ns"] if cohort else [])]))

    def read(run: _Chosen) -> pd.DataFrame:
        path = run.folder / "requests.parquet"
        try:
            there = pq.read_schema(path).names
            if missing := sorted(set(wanted or ()) - set(there)):
                raise ResultsError(f"{path}: has no column {missing[0]}; it has {', '.join(there)}")
            found: pd.DataFrame = pq.read_table(path, columns=wanted).to_pandas()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ResultsError(f"{path}: {str(error).splitlines()[0]}") from None
        if cohort:
            found = found[mask(found, warmup_ns=run.warmup_ns, window_ns=run.window_ns)]
        return found if columns is None else found[list(columns)]

    return _stacked(directory, chosen, read)


def events(directory: Path, chosen: pd.DataFrame) -> pd.DataFrame:
    """The event tables of those rows of `runs`. Raises `ResultsError`."""
    return _stacked(directory, chosen, lambda run: read_events(run.folder))


def _stacked(directory: Path, chosen: pd.DataFrame, read: Callable[[_Chosen], pd.DataFrame]) -> pd.DataFrame:
    tables = []
    for row in chosen.to_dict("records"):
        folder = directory / "runs" / str(row["variant"]) / str(row["run"])
        table = read(_Chosen(folder=folder, warmup_ns=row["warmup_ns"], window_ns=row["window_ns"]))
        tables.append(table.assign(run=row["run"], rate=row["rate"])[["run", "rate", *table.columns]])
    return pd.concat(tables, ignore_index=True)


def _names(value: DataclassInstance) -> list[str]:
    return [field.name for field in fields(value)]


def _percentiles(summary: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """`ttft_s_p95` and the like; where most never came, the percentile is infinite."""
    return {f"{metric}_{name}": value for metric, values in summary.items() for name, value in values.items()}


def _imbalances(balance: Balance | None) -> dict[str, float | None]:
    """Columns that are there for a target of several URLs."""
    if balance is None:
        return {}
    return {name: getattr(balance, name) for name in ("request_imbalance", "in_flight_imbalance")}
