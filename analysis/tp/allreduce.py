"""Measured all-reduce times: interpolated between the measured sizes, and α_p and B_p fitted to them.

Between two neighbouring sizes the time is taken as linear in S, because the screening model is (τ = α + 2(p−1)S/(p·B)):
then interpolation adds no error of its own. Straight lines on logarithmic scales would lie above that model by up to
1.5 % between sizes a factor of two apart. Outside of the measured sizes there is no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from analysis.tp.cost import Fabric, all_reduce_traffic_bytes

__all__ = ["FabricFit", "Microbenchmark", "NotFitted", "NotMeasured", "fit_fabric", "joined"]

_FEWEST = 3  # sizes: two always lie on a line


class NotMeasured(ValueError):
    """A size, a number of tokens or of ranks that was not measured; the message names the range, in one line."""


class NotFitted(ValueError):
    """The times give no α and B; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbenchmark:
    """nccl-tests' all-reduce: (payload bytes, seconds), ascending. `ranks`: p; `None` if the file does not say."""

    ranks: int | None
    times: tuple[tuple[int, float], ...]
    warnings: tuple[str, ...] = ()  # for whoever uses the times

    def all_reduce_s(self, payload_bytes: float) -> float | None:
        """τ_AR(S) between two measured sizes, linear in S; `None` outside of them."""
        for size, took in self.times:
            if size == payload_bytes:
                return took
        for (low, low_s), (high, high_s) in pairwise(self.times):
            if low < payload_bytes < high:
                return low_s + (high_s - low_s) * (payload_bytes - low) / (high - low)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFit:
    """α_p and B_p, and how well they describe the times; errors are (model − measured)/measured."""

    fabric: Fabric
    sizes: int
    rms: float
    largest: float  # of the absolute values
    largest_at_bytes: int


def fit_fabric(measured: Microbenchmark) -> FabricFit:
    """α_p and B_p by least squares over relative errors. Raises `NotFitted`.

    Relative, because times span five powers of ten and the longest would decide alone. α is at least 0.
    """
    if measured.ranks is None:
        raise NotFitted("the number of ranks is not known: pass the output with its header")
    if len(measured.times) < _FEWEST:
        raise NotFitted(f"{len(measured.times)} sizes, {_FEWEST} are needed: run all_reduce_perf with -b, -e and -f 2")
    size = np.array([one for one, _ in measured.times], dtype=np.float64)
    took = np.array([one for _, one in measured.times], dtype=np.float64)
    share = all_reduce_traffic_bytes(1, measured.ranks)  # bytes on the bus for one of payload
    design = np.column_stack((1 / took, share * size / took))
    scale = np.sqrt((design**2).mean(axis=0))
    found = np.linalg.lstsq(design / scale, np.ones_like(took), rcond=None)[0] / scale
    alpha_s, s_per_byte = float(found[0]), float(found[1])
    if alpha_s < 0:
        column = design[:, 1]
        alpha_s, s_per_byte = 0.0, float(column.sum() / (column**2).sum())
    if s_per_byte <= 0:
        raise NotFitted("larger payloads take no longer in it: measure up to sizes that the bandwidth limits (-e 128M)")
    error = (alpha_s + share * size * s_per_byte) / took - 1
    worst = int(np.abs(error).argmax())
    return FabricFit(
        fabric=Fabric(alpha_s=alpha_s, bus_bytes_per_s=1 / s_per_byte),
        sizes=len(took),
        rms=float(np.sqrt(np.mean(error**2))),
        largest=float(abs(error[worst])),
        largest_at_bytes=int(size[worst]),
    )


def joined(parts: Sequence[Microbenchmark]) -> Microbenchmark:
    """Several measurements of the same number of ranks as one: the median time of each size, all warnings."""
    times: dict[int, list[float]] = {}
    for part in parts:
        for size, took in part.times:
            times.setdefault(size, []).append(took)
    return Microbenchmark(
        ranks=parts[0].ranks,
        times=tuple((size, median(several)) for size, several in sorted(times.items())),
        warnings=tuple(dict.fromkeys(text for part in parts for text in part.warnings)),
    )
