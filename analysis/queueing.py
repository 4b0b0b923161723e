"""Queues with known waiting times: references for judge, search and emulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from analysis.records import Floats

__all__ = [
    "fcfs",
    "md1_wait_share",
    "mg1_wait_shares",
    "mm1_capacity",
    "pollaczek_khinchine_wait_s",
]

Number = TypeVar("Number", np.int64, np.float64)


def fcfs(arrivals: npt.NDArray[Number], services: npt.NDArray[Number]) -> tuple[npt.NDArray[Number], ...]:
    """(start, finish) of each request at a single first-come-first-served server; all of shape (n,) and one unit.

    start_i = max(arrival_i, finish_{i−1}) (Lindley), unrolled with S_i the sum of the first i services:
    finish_i = S_i + max_{j≤i}(arrival_j − S_{j−1}). Exact in int64. `arrivals` are sorted upwards.
    """
    worked = np.cumsum(services)
    finish = worked + np.maximum.accumulate(arrivals - (worked - services))
    return finish - services, finish


def mm1_capacity(*, service_rate: float, bound_s: float, share: float) -> float:
    """Largest arrival rate at which an M/M/1 queue keeps `share` of sojourns within `bound_s`; negative: none does.

    The sojourn is Exp(μ − λ), so P(sojourn ≤ B) = 1 − e^{−(μ−λ)B} ≥ q gives λ* = μ − ln(1/(1 − q))/B.
    """
    return service_rate - math.log(1 / (1 - share)) / bound_s


def pollaczek_khinchine_wait_s(*, rate: float, mean_s: float, second_moment_s2: float) -> float:
    """Mean wait of an M/G/1 queue, λE[S²]/(2(1 − λE[S])); E[S²] = E[S]² gives M/D/1, 2E[S]² gives M/M/1.

    Raises `ValueError` without a steady state.
    """
    load = _below_one(rate * mean_s)
    return rate * second_moment_s2 / (2 * (1 - load))


def md1_wait_share(*, rate: float, service_s: float, within_s: float) -> float:
    """P(wait ≤ t) of an M/D/1 queue, Erlang's (1 − ρ) Σ_{k ≤ t/D} e^{−λ(kD − t)} [λ(kD − t)]^k / k!.

    The terms alternate and grow: good to ten digits while λt is below about 20. Raises `ValueError` without a steady
    state.
    """
    load = _below_one(rate * service_s)
    # a t that is a whole number of services up to rounding belongs to the next term, which is 0 there
    terms = range(math.floor(within_s / service_s + 1e-9) + 1)
    powers = ((rate * (k * service_s - within_s), k) for k in terms)
    return (1 - load) * math.fsum(math.exp(-x) * x**k / math.factorial(k) for x, k in powers)


def mg1_wait_shares(
    *, rate: float, limited_mean_s: Callable[[Floats], Floats], until_s: float, step_s: float
) -> Floats:
    """P(wait ≤ t) of an M/G/1 queue at t = 0, step, 2·step … until, shape (n + 1,).

    `limited_mean_s(t)` is E[min(S, t)], S the service. The wait's distribution F solves Takács' renewal equation
    F(t) = 1 − ρ + λ ∫₀ᵗ F(t − u)·P(S > u) du, here with F linear between the points and the other factor integrated
    exactly, so that steps of S cost nothing where they fall on the points. Error O(step²). Raises `ValueError` without
    a steady state.
    """
    steps = round(until_s / step_s)
    load = _below_one(rate * float(limited_mean_s(np.array([np.inf]))[0]))
    at_s: Floats = step_s * np.arange(steps + 1, dtype=np.float64)
    cells = np.diff(limited_mean_s(at_s))
    share = np.empty(steps + 1)
    share[0] = 1 - load
    for n in range(1, steps + 1):
        between = (share[1:n][::-1] + share[: n - 1][::-1]) / 2
        known = share[n - 1] * cells[0] / 2 + float(between @ cells[1:n])
        share[n] = (1 - load + rate * known) / (1 - rate * cells[0] / 2)
    return share


def _below_one(load: float) -> float:
    if load >= 1:
        raise ValueError(f"no steady state: load {load:.3g} is not below 1")
    return load
