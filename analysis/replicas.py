"""How the load of a run, or of all runs at a rate, fell on the URLs of a target.

A request is in flight at a replica from when it goes on the wire (its release, or the slot that it waited for; a
connect included) until it ends. N_j(t) is the number of those at replica j.

    request imbalance     p · max n_j / Σ n_j, n_j the cohort's requests that replica j got
    in-flight imbalance   p · max ∫N_j dt / Σ ∫N_j dt over the window

Both are the largest replica over the mean: 1 where p replicas are alike, p where one has all. A policy that counts
requests keeps the first one at 1 whatever the servers do; the second one shows that a server is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd

from analysis.cohort import mask, percentiles
from analysis.indicator import joint
from analysis.records import Ints, numbers, outcome_is
from analysis.schema import ERRORS
from analysis.slo import Slo
from analysis.verdict import Balance, Replica, SenderFacts

__all__ = ["IMBALANCE", "balance_of", "imbalance_text", "notable", "pooled"]

IMBALANCE: Final = 0.1  # of a replica's requests from the mean
IN_FLIGHT_IMBALANCE: Final = 0.25  # of its in-flight time; alike replicas near saturation differ by as much
_LUCK: Final = 3.0  # standard deviations of a count that random routing gives


def balance_of(requests: pd.DataFrame, sender: SenderFacts, slo: Slo) -> Balance | None:
    """The balance of one run from its whole request table with derived columns; `None` for a target of one URL.

    Requests, shares, attainment, errors and latencies are of the cohort's requests that went on the wire; in-flight
    numbers are of all requests, over the window or what the stop left of it. Of a run that was stopped early, requests
    that were cancelled before they were decided are no misses, so attainment is an upper bound.
    """
    if len(sender.urls) < 2:
        return None
    start_ns = sender.warmup_ns
    end_ns = min(start_ns + sender.window_ns, sender.stop_ns)
    target = numbers(requests, "target")
    among = mask(requests, warmup_ns=sender.warmup_ns, window_ns=sender.window_ns) & (target >= 0)
    ok, errors = outcome_is(requests, "ok"), outcome_is(requests, *ERRORS)
    met = joint(requests, slo)
    if sender.stopped_early:
        certain = (requests["certain_miss"] != "").to_numpy(dtype=np.bool_)
        met |= outcome_is(requests, "censored", "aborted") & ~certain
    latencies = {name: requests[name].to_numpy(dtype=np.float64) for name in ("ttft_s", "tpot_s", "e2e_s")}
    admitted = numbers(requests, "admitted_ns")
    begun_ns = np.where(admitted >= 0, admitted, numbers(requests, "released_ns"))
    ended_ns = numbers(requests, "ended_ns")
    rows = []
    for number, url in enumerate(sender.urls):
        own = among & (target == number)
        n = int(np.count_nonzero(own))
        on_wire = target == number
        mean, most = _in_flight(begun_ns[on_wire], ended_ns[on_wire], start_ns, end_ns)
        rows.append(
            Replica(
                url=url,
                requests=n,
                share=n / max(int(np.count_nonzero(among)), 1),
                attainment=int(np.count_nonzero(met[own])) / n if n else None,
                errors=int(np.count_nonzero(errors[own])),
                in_flight_mean=mean,
                in_flight_max=most,
                **{name: percentiles(values[own], ok[own]) for name, values in latencies.items()},
            )
        )
    return _balance(sender.routing, rows, attainment_is_bound=sender.stopped_early)


def pooled(balances: Sequence[Balance]) -> Balance | None:
    """The balance of several runs on the same URLs; `None` for none.

    Requests and errors are summed, attainment is that of all requests together, in-flight means are averaged over the
    runs (weighted alike), the maximum is the largest, and each percentile is the worst of the runs.
    """
    if not balances:
        return None
    total = sum(row.requests for one in balances for row in one.replicas)
    rows = []
    for runs in zip(*(one.replicas for one in balances), strict=True):
        n = sum(row.requests for row in runs)
        kept = sum(row.attainment * row.requests for row in runs if row.attainment is not None)
        rows.append(
            Replica(
                url=runs[0].url,
                requests=n,
                share=n / max(total, 1),
                attainment=kept / n if n else None,
                errors=sum(row.errors for row in runs),
                in_flight_mean=sum(row.in_flight_mean for row in runs) / len(runs),
                in_flight_max=max(row.in_flight_max for row in runs),
                ttft_s=_worst([row.ttft_s for row in runs]),
                tpot_s=_worst([row.tpot_s for row in runs]),
                e2e_s=_worst([row.e2e_s for row in runs]),
            )
        )
    bound = any(one.attainment_is_bound for one in balances)
    return _balance(balances[0].routing, rows, attainment_is_bound=bound)


def notable(balance: Balance) -> bool:
    """Whether an imbalance is worth a line: it decides nothing.

    Requests: a replica has 10 % more than the mean, and more than three standard deviations of random routing (a share
    1/p of n requests, √((p − 1)/n) of its mean). In-flight time: 25 % more than the mean.
    """
    replicas, n = len(balance.replicas), sum(row.requests for row in balance.replicas)
    if n == 0:
        return False
    by_luck = _LUCK * ((replicas - 1) / n) ** 0.5 if balance.routing == "random" else 0.0
    return _beyond(balance.request_imbalance, max(IMBALANCE, by_luck)) or _beyond(
        balance.in_flight_imbalance, IN_FLIGHT_IMBALANCE
    )


def imbalance_text(balance: Balance) -> str:
    """Both imbalances in words, and the replica that has the most where it has more than the mean."""
    of_requests = _at_most(balance.request_imbalance, balance, [row.requests for row in balance.replicas])
    of_time = _at_most(balance.in_flight_imbalance, balance, [row.in_flight_mean for row in balance.replicas])
    return f"largest over the mean (routing {balance.routing}): requests {of_requests}, in-flight time {of_time}"


def _at_most(imbalance: float | None, balance: Balance, values: Sequence[float]) -> str:
    if imbalance is None:
        return "none"
    number = f"{imbalance:.2f}"
    return number if number == "1.00" else f"{number} ({balance.replicas[values.index(max(values))].url})"


def _beyond(imbalance: float | None, limit: float) -> bool:
    return imbalance is not None and imbalance > 1 + limit


def _balance(routing: str, rows: Sequence[Replica], *, attainment_is_bound: bool) -> Balance:
    return Balance(
        routing=routing,
        replicas=tuple(rows),
        attainment_is_bound=attainment_is_bound,
        request_imbalance=_largest_over_mean([row.requests for row in rows]),
        in_flight_imbalance=_largest_over_mean([row.in_flight_mean for row in rows]),
    )


def _largest_over_mean(values: Sequence[float]) -> float | None:
    total = sum(values)
    return len(values) * max(values) / total if total > 0 else None


def _in_flight(begun_ns: Ints, ended_ns: Ints, start_ns: int, end_ns: int) -> tuple[float, int]:
    """Mean over time and maximum of the number in flight in [start, end)."""
    inside = (begun_ns < end_ns) & (ended_ns > start_ns)
    if end_ns <= start_ns or not inside.any():
        return 0.0, 0
    begun, ended = np.maximum(begun_ns[inside], start_ns), np.minimum(ended_ns[inside], end_ns)
    in_flight_ns = int((ended - begun).sum())
    at_once = np.arange(1, len(begun) + 1) - np.searchsorted(np.sort(ended), np.sort(begun), side="right")
    return in_flight_ns / (end_ns - start_ns), int(at_once.max())


def _worst(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Each percentile's largest value; `None` is a failure's infinity, and what is undefined is left out."""
    names = dict.fromkeys(name for one in found for name in one)
    worst: dict[str, float | None] = {}
    for name in names:
        values = [one[name] for one in found if name in one]
        known = [value for value in values if value is not None]
        worst[name] = max(known) if len(known) == len(values) else None
    return worst
