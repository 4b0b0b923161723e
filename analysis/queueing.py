"""Queues whose answers are known: what the judge, the search and the emulator are held against."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.records import Ints, columns

__all__ = ["fcfs", "fcfs_requests", "mm1_capacity", "mm1_sojourn_quantile", "pollaczek_khinchine_wait_s"]

Number = TypeVar("Number", np.int64, np.float64)


def fcfs(arrivals: npt.NDArray[Number], services: npt.NDArray[Number]) -> tuple[npt.NDArray[Number], ...]:
    """(start, finish) of each request at a single first-come-first-served server; all of shape (n,) and one unit.

    start_i = max(arrival_i, finish_{i−1}) (Lindley), unrolled with S_i the sum of the first i services:
    finish_i = S_i + max_{j≤i}(arrival_j − S_{j−1}). Exact in int64. `arrivals` are sorted upwards.
    """
    worked = np.cumsum(services)
    finish = worked + np.maximum.accumulate(arrivals - (worked - services))
    return finish - services, finish


def fcfs_requests(arrivals_ns: Ints, services_ns: Ints) -> pd.DataFrame:
    """What an ideal client would record of that queue: one token a request, headers when service starts."""
    start, finish = fcfs(arrivals_ns, services_ns)
    done = dict.fromkeys(("first_token_ns", "last_token_ns", "ended_ns"), finish)
    made = dict.fromkeys(("scheduled_ns", "released_ns", "sent_ns"), arrivals_ns)
    once = dict.fromkeys(("output_tokens", "output_tokens_planned", "token_events", "token_reads"), 1)
    said = {"outcome": "ok", "http_status": 200, "finish_reason": "length", "output_tokens_source": "usage"}
    return columns(len(finish), {**made, "headers_ns": start, **done, **once, **said})


def mm1_capacity(*, service_rate: float, bound_s: float, share: float) -> float:
    """Largest arrival rate at which an M/M/1 queue keeps `share` of sojourns within `bound_s`; negative: none does.

    The sojourn is Exp(μ − λ), so P(sojourn ≤ B) = 1 − e^{−(μ−λ)B} ≥ q gives λ* = μ − ln(1/(1 − q))/B.
    """
    return service_rate - math.log(1 / (1 - share)) / bound_s


def mm1_sojourn_quantile(*, rate: float, service_rate: float, share: float) -> float:
    """The `share` quantile of an M/M/1 queue's sojourn, seconds. Raises `ValueError` without a steady state."""
    if rate >= service_rate:
        raise ValueError(f"no steady state: arrivals at {rate}/s reach the service rate of {service_rate}/s")
    return math.log(1 / (1 - share)) / (service_rate - rate)


def pollaczek_khinchine_wait_s(*, rate: float, mean_s: float, second_moment_s2: float) -> float:
    """Mean wait of an M/G/1 queue, λE[S²]/(2(1 − λE[S])); E[S²] = E[S]² gives M/D/1, 2E[S]² gives M/M/1.

    Raises `ValueError` without a steady state.
    """
    load = rate * mean_s
    if load >= 1:
        raise ValueError(f"no steady state: load {load:.3g} is not below 1")
    return rate * second_moment_s2 / (2 * (1 - load))
