"""Arrival instants: renewal processes drawn completely before the run, and never changed.

Gaps are drawn at unit mean, summed, and divided by λ: Poisson gaps are Exp(1), Gamma gaps have shape k and scale 1/k
(CV = 1/√k), constant gaps are 1. The first arrival comes after one full gap. In a window of length T from 0 the count
then has mean λT + (CV² - 1)/2 and variance → λT·CV² (method, section 4); nothing here rescales the instants to meet
λT, which is what would destroy that variance. The same generator gives the same unit draws at every λ: the schedule at
2λ is the schedule at λ squeezed.

A recorded `Schedule` enters at the same place as these. `Modulated` arrivals are not a renewal process,
but their gaps come at unit mean from the same kind of stream, so all of this holds for them too.

Exactness. Draws are summed in float64 in blocks of 4,096, and the sum of the blocks before is carried as whole
nanoseconds plus a fraction below one. Within a block a partial sum is below 2^13 gaps, so an addition is off by at
most 2^-41 gaps and a block by at most 2^-29; 10^7 arrivals (2,442 blocks) by at most 5·10^-6 gaps, and by some 10^-9
in practice, since the errors do not line up. A plain float64 running sum would reach 10^-2 at worst. Rounding to
nanoseconds happens last, once for each instant, and is carried nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadgen.plan.types import NS, Int64s, Schedule

__all__ = ["Arrivals", "Modulated", "schedule_count", "schedule_horizon"]

_BLOCK = 4096
_MAX_NS = 2**62
_MAX_ARRIVALS = 20_000_000  # a plan of 1.1 GB: beyond it a typo is likelier than a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A renewal process up to its rate: the law of its unit gaps."""

    kind: Literal["poisson", "gamma", "constant"] = "poisson"
    shape: float = 1.0  # k of gamma, also called burstiness; ignored by the others

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shape) and self.shape > 0):
            raise ValueError(f"gamma arrivals need a shape k above 0, not {self.shape}")

    @classmethod
    def gamma(cls, *, shape: float | None = None, cv: float | None = None) -> Arrivals:
        """Gamma gaps by shape k or by coefficient of variation (k = 1/CV²). Raises `ValueError` unless given one."""
        if (shape is None) == (cv is None):
            raise ValueError("gamma arrivals need either burstiness (the shape k) or cv")
        if cv is not None:
            if not (math.isfinite(cv) and cv > 0):
                raise ValueError(f"gamma arrivals need a cv above 0, not {cv}")
            shape = cv**-2
        assert shape is not None
        return cls(kind="gamma", shape=shape)

    @property
    def cv(self) -> float:
        """Coefficient of variation of the gaps."""
        return {"poisson": 1.0, "gamma": 1 / math.sqrt(self.shape), "constant": 0.0}[self.kind]

    def unit_gaps(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
        """The next `count` gaps of mean 1; two calls give what one call for the sum would."""
        if self.kind == "poisson":
            return rng.standard_exponential(count)
        if self.kind == "gamma":
            return rng.standard_gamma(self.shape, count) / self.shape
        return np.ones(count)

    def gap_blocks(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
        """Unit gaps without end, in blocks."""
        while True:
            yield self.unit_gaps(rng, _BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulated:
    """A Poisson process whose rate jumps between two values (a two-state MMPP), up to its mean rate, which is 1.

    `low` and `high` are multiples of the mean rate; `up` and `down` are jumps per mean gap. At another rate all of it
    is scaled in time, the stays included.
    """

    low: float
    high: float
    up: float  # low -> high
    down: float  # high -> low

    def __post_init__(self) -> None:
        values = (self.low, self.high, self.up, self.down)
        if not all(map(math.isfinite, values)) or self.low < 0 or min(values[1:]) <= 0:
            raise ValueError(f"modulated arrivals need finite rates and jumps above 0, not {values}")
        mean = (self.down * self.low + self.up * self.high) / (self.up + self.down)
        if abs(mean - 1) > 1e-9:
            raise ValueError(f"modulated arrivals have a mean rate of {mean:g}, not 1")

    def gap_blocks(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
        """Unit gaps without end, in blocks; the state at 0 is drawn from its equilibrium."""
        high = bool(rng.random() < self.up / (self.up + self.down))
        start = last = 0.0  # of the present stay, and the latest arrival, both counted from the end of the latest block
        held: list[npt.NDArray[np.float64]] = []
        count = 0
        while True:
            stay = rng.exponential(1 / (self.down if high else self.up))
            arrivals = rng.poisson((self.high if high else self.low) * stay)
            at = np.sort(rng.uniform(start, start + stay, size=arrivals))
            start, high = start + stay, not high
            if not arrivals:
                continue
            held.append(np.diff(at, prepend=last))
            last, count = float(at[-1]), count + arrivals
            if count >= _BLOCK:
                gaps = np.concatenate(held)
                whole = count - count % _BLOCK
                yield from gaps[:whole].reshape(-1, _BLOCK)
                held, count = [gaps[whole:]], count - whole
                start, last = start - last, 0.0


def schedule_horizon(
    arrivals: Arrivals | Modulated, rate: float, horizon_ns: int, rng: np.random.Generator
) -> Schedule:
    """All arrivals before `horizon_ns`; their number is what it turns out to be.

    The schedule of a longer horizon begins with this one. Raises `ValueError` for a rate or horizon out of range.
    """
    _check_rate(rate)
    if not 0 <= horizon_ns <= _MAX_NS:
        raise ValueError(f"a horizon of {horizon_ns} ns is out of range")
    expected = rate * horizon_ns / NS
    if expected > _MAX_ARRIVALS:
        raise ValueError(f"{rate:g}/s over {horizon_ns / NS:g} s is {expected:.3g} requests, above {_MAX_ARRIVALS:,}")
    kept: list[Int64s] = []
    for block in _instants(arrivals, rate, rng):
        if block[-1] >= horizon_ns:
            kept.append(block[: int(np.searchsorted(block, horizon_ns, side="left"))])
            break
        kept.append(block)
    return Schedule(at_ns=_joined(kept))


def schedule_count(
    arrivals: Arrivals | Modulated, rate: float, *, warmup_ns: int, cohort: int, tail_ns: int, rng: np.random.Generator
) -> tuple[Schedule, int]:
    """Arrivals until `cohort` of them lie at or after `warmup_ns`, then `tail_ns` more; and where the window ends, ns.

    The window ends one nanosecond after the cohort's last instant (after the last of its ties), hence its length is
    what is random. Raises `ValueError`.
    """
    _check_rate(rate)
    if cohort < 1 or cohort > _MAX_ARRIVALS or warmup_ns < 0 or tail_ns < 0:
        raise ValueError(
            f"a cohort of {cohort} requests with {warmup_ns} ns before and {tail_ns} ns after is not a run"
        )
    kept: list[Int64s] = []
    before = seen = 0  # arrivals before the warm-up's end, and in all
    end_ns = horizon_ns = _MAX_NS  # not known yet
    for block in _instants(arrivals, rate, rng):
        kept.append(block)
        before += int(np.searchsorted(block, warmup_ns, side="left"))
        seen += block.size
        if end_ns == _MAX_NS and seen - before >= cohort:
            end_ns = int(block[block.size - (seen - before - cohort) - 1]) + 1
            horizon_ns = end_ns + tail_ns
        if block[-1] >= horizon_ns:
            break
        if seen > _MAX_ARRIVALS:
            raise ValueError(f"this plan has more than {_MAX_ARRIVALS:,} requests")
    at_ns = _joined(kept)
    return Schedule(at_ns=at_ns[: int(np.searchsorted(at_ns, horizon_ns, side="left"))]), end_ns


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"a rate is a number of requests/s above 0, not {rate}")


def _joined(blocks: list[Int64s]) -> Int64s:
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)


def _instants(arrivals: Arrivals | Modulated, rate: float, rng: np.random.Generator) -> Iterator[Int64s]:
    """Blocks of instants without end; see the module's word on exactness."""
    scale = NS / rate
    whole, fraction = 0, 0.0
    for gaps in arrivals.gap_blocks(rng):
        sums = np.cumsum(gaps)
        sums *= scale
        sums += fraction
        last = float(sums[-1])
        if not last < _MAX_NS - whole:
            raise ValueError(f"at {rate:g} requests/s the schedule runs past 146 years")
        yield np.rint(sums, out=sums).astype(np.int64) + whole
        whole += math.floor(last)
        fraction = last - math.floor(last)
