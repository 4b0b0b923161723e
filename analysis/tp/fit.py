"""Step-time constants of a server from its passes, by least squares.

The model (method, section 9; what `loadgen`'s simulated servers are made of): a pass of T tokens, of contexts C in sum
and Q query-key products of new prompts, on each of p ranks takes

    t = o + max(M_w/(p·B), a_T·T/(p·F)) + m·C/(p·B) + 4·h·d·L·Q/(p·F) + 2L·τ_AR(T)

M_w bytes of weights, m bytes of one token's keys and values, a_T FLOPs of a token's projections in all layers. Unknown
are o (overhead), 1/B (bytes/s that kernels reach) and 1/F (FLOPs/s). The all-reduce is not: in one run at one p its
start-up cannot be distinguished from o, nor its slope from 1/F, so it has to be measured elsewhere.

Without the maximum this is linear. With it, it is linear on each side of the T at which weights take as long as FLOPs:
every place for that T is tried, the one with the smallest sum of squares is refined until it agrees with the constants
it gives. Residuals count in shares of the pass that the model gives (weights from the fit before), for long passes are
off by more than short ones. Passes farther off than five robust standard deviations (and 1 %) are stalls, and left out.
Standard errors are a jackknife's over ten blocks of time, for passes near in time are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.records import Bools, Floats
from analysis.tp.cost import Fabric, Shape, collectives_per_step
from analysis.tp.passes import NotIdentified, Passes

__all__ = ["Estimate", "Fit", "Server", "fit_passes"]

MIN_PASSES = 200
MAX_RELATIVE_ERROR = 0.2
_BLOCKS = 10
_ROUNDS = 4
_TRIES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is known of a server beforehand: the model, how it is split, and its collectives."""

    shape: Shape
    ranks: int
    weight_bits: int
    kv_element_bytes: int
    fabric: Fabric

    def fixed_s(self, tokens: Floats) -> Floats:
        """The collectives of a pass, 2L·τ_AR."""
        if self.ranks == 1:
            return np.zeros_like(tokens)
        each = [self.fabric.all_reduce_s(self.shape.payload_bytes(int(one)), self.ranks) for one in tokens]
        return collectives_per_step(self.shape.layers) * np.array(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A constant and its standard error, in the same unit."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The constants, and how well they describe the passes they come from."""

    overhead_s: Estimate
    bytes_per_s: Estimate
    flops_per_s: Estimate
    passes: int  # used
    seen: int
    stalls: int  # left out for their residual
    duration_s: float  # median of a pass
    rms: float  # of the residuals, which are shares of the pass
    p50: float  # of their absolute values, and so on
    p95: float
    largest: float
    balance_tokens: float  # T from which on a pass is bound by FLOPs


def fit_passes(passes: Passes, server: Server) -> Fit:
    """The constants that describe the passes best. Raises `NotIdentified` where they do not pin every one down."""
    if len(passes.duration_s) < MIN_PASSES:
        why = f"; in {passes.crowded} somebody waited: measure below capacity" if passes.crowded else ""
        raise NotIdentified(
            f"{len(passes.duration_s)} of {passes.seen} passes are usable, {MIN_PASSES} are needed{why}"
        )
    if not passes.prompts.any():
        raise NotIdentified("no usable pass computes a prompt: nothing shows effective_tflops; use a longer run")
    problem = _Problem(passes, server)
    kept = np.ones(len(passes.duration_s), dtype=np.bool_)
    for _ in range(_ROUNDS):
        theta, cut = problem.best(kept)
        problem.share = 1 / problem.model_s(theta)
        off = np.abs(problem.residuals(theta))
        kept = off <= max(5 * 1.4826 * float(np.median(off[kept])), 0.01)
    theta, cut = problem.best(kept)
    error = _jackknife(problem, kept, cut)
    typical_s = float(np.median(passes.duration_s))
    _check(theta, error, typical_s)
    off = np.abs(problem.residuals(theta)[kept])
    p50, p95 = np.quantile(off, (0.5, 0.95), method="inverted_cdf")
    return Fit(
        overhead_s=Estimate(value=max(float(theta[0]), 0.0), error=float(error[0])),
        bytes_per_s=Estimate(value=float(1 / theta[1]), error=float(error[1] / theta[1] ** 2)),
        flops_per_s=Estimate(value=float(1 / theta[2]), error=float(error[2] / theta[2] ** 2)),
        passes=int(kept.sum()),
        seen=passes.seen,
        stalls=int((~kept).sum()),
        duration_s=typical_s,
        rms=float(np.sqrt(np.mean(off**2))),
        p50=float(p50),
        p95=float(p95),
        largest=float(off.max()),
        balance_tokens=cut,
    )


@dataclass(slots=True, eq=False)
class _Problem:
    """The design: columns for o, 1/B and 1/F, with what each side of the maximum adds."""

    passes: Passes
    server: Server
    share: Floats = field(init=False)  # 1 / what a pass takes by the fit before: what its residual is multiplied by
    wanted_s: Floats = field(init=False)
    common: Floats = field(init=False)  # shape (n, 3)
    weights: float = field(init=False)  # bytes a rank reads in a pass
    token_flops: float = field(init=False)  # a rank's, of a token's projections

    def __post_init__(self) -> None:
        passes, server, shape = self.passes, self.server, self.server.shape
        self.weights = shape.parameters * server.weight_bits / 8 / server.ranks
        self.token_flops = shape.layers * shape.projection_flops(1) / server.ranks
        kv_bytes = shape.kv_bytes_per_token(server.kv_element_bytes) / server.ranks
        product_flops = 4 * shape.heads * shape.head_size * shape.layers / server.ranks
        self.share = 1 / passes.duration_s.mean() * np.ones_like(passes.duration_s)
        self.wanted_s = passes.duration_s - server.fixed_s(passes.tokens)
        self.common = np.column_stack(
            (np.ones_like(passes.tokens), kv_bytes * passes.context, product_flops * passes.products)
        )

    def solve(self, kept: Bools, cut: float) -> Floats:
        """Least squares where passes below `cut` tokens are bound by bytes and the others by FLOPs."""
        design = self.common[kept].copy()
        tokens = self.passes.tokens[kept]
        bound = tokens >= cut
        design[~bound, 1] += self.weights
        design[bound, 2] += self.token_flops * tokens[bound]
        design *= self.share[kept, None]
        scale = np.sqrt((design**2).mean(axis=0))
        if (scale == 0).any():
            return np.full(3, np.nan)
        found, _, rank, _ = np.linalg.lstsq(design / scale, (self.wanted_s * self.share)[kept], rcond=1e-9)
        theta: Floats = found / scale if rank == 3 else np.full(3, np.nan)
        return theta

    def model_s(self, theta: Floats) -> Floats:
        """What the passes take by these constants, without collectives."""
        bound_s = np.maximum(self.weights * theta[1], self.token_flops * self.passes.tokens * theta[2])
        model_s: Floats = self.common @ theta + bound_s
        return model_s

    def residuals(self, theta: Floats) -> Floats:
        """What the passes took beyond the model, in shares."""
        residuals: Floats = (self.wanted_s - self.model_s(theta)) * self.share
        return residuals

    def best(self, kept: Bools) -> tuple[Floats, float]:
        """The constants of the best place for the maximum's corner, and that place."""
        levels = np.unique(self.passes.tokens[kept])  # each as often as any: passes with a prompt are few
        levels = levels[np.unique(np.linspace(0, len(levels) - 1, _TRIES).astype(np.int64))]
        found: list[tuple[float, Floats, float]] = []
        for cut in (*levels.tolist(), float("inf")):
            theta = self.solve(kept, cut)
            if np.isfinite(theta).all() and theta[1] > 0 and theta[2] > 0:
                found.append((float((self.residuals(theta)[kept] ** 2).sum()), theta, cut))
        if not found:
            raise NotIdentified(
                "no positive effective_gb_per_s and effective_tflops describe these passes: they are too much alike, "
                "or the profile's model is not the one that was measured"
            )
        least, theta, cut = min(found, key=lambda one: one[0])
        for _ in range(_TRIES):
            corner = float(self.weights * theta[1] / (self.token_flops * theta[2]))
            refined = self.solve(kept, corner)
            if not (np.isfinite(refined).all() and refined[1] > 0 and refined[2] > 0):
                break
            squares = float((self.residuals(refined)[kept] ** 2).sum())
            if squares >= least:
                break
            least, theta, cut = squares, refined, corner
        return theta, float(self.weights * theta[1] / (self.token_flops * theta[2]))


def _jackknife(problem: _Problem, kept: Bools, cut: float) -> Floats:
    """Standard errors of the three, leaving out one block of time after the other."""
    block = np.empty(len(kept), dtype=np.int64)
    block[kept] = np.arange(int(kept.sum())) * _BLOCKS // int(kept.sum())
    without = np.array([problem.solve(kept & (block != one), cut) for one in range(_BLOCKS)])
    spread = ((without - without.mean(axis=0)) ** 2).sum(axis=0)
    errors: Floats = np.sqrt((_BLOCKS - 1) / _BLOCKS * spread)
    return errors


def _check(theta: Floats, error: Floats, typical_s: float) -> None:
    """Raise where a constant is not pinned down."""
    hints = (
        ("effective_gb_per_s", "vary the context: longer prompts and outputs, and more than one rate"),
        ("effective_tflops", "vary the prompts: longer ones, so that passes with a prompt stand out"),
    )
    for (name, hint), value, off in zip(hints, theta[1:], error[1:], strict=True):
        if not off <= MAX_RELATIVE_ERROR * value:
            raise NotIdentified(f"the run does not identify {name} (± {100 * off / value:.0f} %): {hint}")
    if not error[0] <= 0.1 * typical_s:
        raise NotIdentified(
            f"the run does not identify overhead_ms (± {error[0] * 1e3:.2g} ms of passes of {typical_s * 1e3:.3g} ms): "
            "vary the context and the prompts"
        )
    if theta[0] < -2 * error[0] - 0.01 * typical_s:
        raise NotIdentified(
            f"passes are shorter than the model allows (overhead_ms = {theta[0] * 1e3:.3g}): the profile's model, its "
            "weight_bits or its ranks are not those that were measured"
        )
