"""Named transforms of a trace: cut a window, change the rate, spread ties. None is applied unless asked for.

Every transform returns a `Transformed`: the new trace, the transform's name with its parameters, and what became of
rate, CV and dispersion, to be printed beside every result (method, section 11). Random ones take a seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from traces.describe import ArrivalShape, arrival_shape
from traces.errors import TraceError
from traces.trace import NS, BlockHashes, Trace

__all__ = ["RateMethod", "Transformed", "change_rate", "find_tick", "jitter_within_tick", "lap", "scale_time",
           "superpose", "thin", "window"]  # fmt: skip

RateMethod = Literal["time", "thin", "superpose"]
MAX_COPIES: Final = 1000
MIN_BATCHES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """A transform's result. `lead_ns`: from the start of what was transformed to the first arrival that is left.

    `window_ns`: the length of what the trace is a window of, None for a whole trace.
    """

    trace: Trace
    name: str
    arrivals: ArrivalShape
    lead_ns: int = 0
    window_ns: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {len(self.trace)} requests, {self.arrivals}"


def _done(trace: Trace, name: str, *, lead_ns: int = 0, window_ns: int | None = None) -> Transformed:
    shape = arrival_shape(trace, lead_ns=lead_ns if window_ns is not None else 0, window_ns=window_ns)
    return Transformed(trace=trace, name=name, arrivals=shape, lead_ns=lead_ns, window_ns=window_ns)


def window(trace: Trace, start_s: float, end_s: float = math.inf) -> Transformed:
    """The requests in [start, end) seconds from the first arrival; of what lies behind the last one nothing is known.

    Rate, CV and dispersion count the window's silence. Raises `TraceError` for an empty one.
    """
    if not 0 <= start_s < end_s:
        raise TraceError(
            f"a window from {start_s:g} s to {end_s:g} s", remedy="pass --window START..END, such as 10m..40m"
        )
    start_ns = round(start_s * NS)
    stop = trace.at_ns.size if math.isinf(end_s) else int(np.searchsorted(trace.at_ns, round(end_s * NS)))
    rows = np.arange(np.searchsorted(trace.at_ns, start_ns), stop)
    if not rows.size:
        raise TraceError(
            f"no request between {start_s:g} s and {end_s:g} s",
            rows=f"the trace spans {trace.span_ns / NS:.3f} s",
            remedy="pass a window inside it",
        )
    end_ns = trace.span_ns + 1 if math.isinf(end_s) else min(round(end_s * NS), trace.span_ns + 1)
    return _done(
        trace.take(rows),
        f"window {start_s:g}..{end_s:g} s",
        lead_ns=int(trace.at_ns[rows[0]]) - start_ns,
        window_ns=end_ns - start_ns,
    )


def lap(trace: Trace, start_ns: int, length_ns: int) -> Transformed:
    """The requests in [start, start + length) ns from the first arrival, the trace being taken as a circle.

    The circle is closed by one mean gap; a length beyond it is cut to one round. A turn that comes before its previous
    one now starts anew. Raises `TraceError` where no request is left.
    """
    circle = _circle_ns(trace)
    length_ns = min(length_ns, circle)
    at = (trace.at_ns - start_ns) % circle
    rows = np.flatnonzero(at < length_ns)
    what = f"{length_ns / NS:.6g} s from {start_ns % circle / NS:.6g} s on"
    if not rows.size:
        raise TraceError(f"no request in {what}", rows=f"the trace has {len(trace)}", remedy="pass a longer window")
    rows = rows[np.argsort(at[rows], kind="stable")]
    return _done(trace.take(rows, at_ns=at[rows]), what, lead_ns=int(at[rows[0]]), window_ns=length_ns)


def _circle_ns(trace: Trace) -> int:
    """The span and one mean gap, so that end and start do not coincide where a trace is taken as a circle."""
    n = len(trace)
    return max(trace.span_ns + (round(trace.span_ns / (n - 1)) if n > 1 else 0), 1)


def scale_time(trace: Trace, speed: float) -> Transformed:
    """All instants times 1/speed, rounded to the nanosecond: the rate grows by `speed`, CV stays, bursts get shorter.

    Raises `TraceError` for a speed that is not positive and finite, or that makes the span unrepresentable.
    """
    if not (0 < speed < math.inf) or trace.span_ns / speed > 2**62:
        raise TraceError(f"a speed of {speed:g}", remedy="pass --speed with a positive number, such as 2")
    # 64 bits of mantissa hold every instant; a float64 would be off by a nanosecond beyond 104 days
    at = np.rint(trace.at_ns.astype(np.longdouble) / np.longdouble(speed)).astype(np.int64)
    return _done(trace.take(np.arange(len(trace)), at_ns=at), f"time scaled by 1/{speed:g}")


def thin(trace: Trace, keep: float, *, seed: int) -> Transformed:
    """Each request kept with probability `keep`, in (0, 1]; sessions are kept or left out whole.

    The rate falls by `keep` on average, and the process moves towards Poisson. Raises `TraceError` where none is left.
    """
    if not 0 < keep <= 1:
        raise TraceError(f"a share of {keep:g} to keep", remedy="pass a share above 0 and at most 1")
    rng = np.random.default_rng(seed)
    if trace.session is None:
        chosen = rng.random(len(trace)) < keep
    else:
        sessions = rng.random(int(trace.session.max()) + 1) < keep
        alone = rng.random(len(trace)) < keep
        chosen = np.where(trace.session >= 0, sessions[trace.session], alone)
    rows = np.flatnonzero(chosen)
    if not rows.size:
        raise TraceError(
            f"thinning to {keep:g} removes every request", rows=f"of {len(trace)}", remedy="keep more of them"
        )
    return _done(trace.take(rows), f"thinned to {keep:.6g} (seed {seed})", lead_ns=int(trace.at_ns[rows[0]]))


def superpose(trace: Trace, copies: int, *, seed: int, share_prefixes: bool = False) -> Transformed:
    """`copies` of the trace laid over each other, each rotated around the span by a random time of its own.

    The first copy is not rotated. The rate grows by `copies` and the process moves towards Poisson. Each copy gets
    sessions of its own and, unless `share_prefixes`, block ids of its own, so that copies do not warm each other's
    prefixes; a session cut by the rotation starts anew. Raises `TraceError` for less than 1 or more than 1000 copies.
    """
    if not 1 <= copies <= MAX_COPIES:
        raise TraceError(f"{copies} copies", remedy=f"pass 1 to {MAX_COPIES}")
    rng = np.random.default_rng(seed)
    circle = _circle_ns(trace)
    shifts = np.concatenate(([0], rng.integers(0, circle, size=copies - 1)))
    at = ((trace.at_ns[None, :] + shifts[:, None]) % circle).ravel()
    order = np.argsort(at, kind="stable")
    return _done(
        _repeated(trace, copies, share_prefixes).take(order, at_ns=at[order]),
        f"{copies} rotated copies superposed (seed {seed})",
    )


def _repeated(trace: Trace, copies: int, share_prefixes: bool) -> Trace:
    """The trace `copies` times over, all at the instants 0: material for `take`."""
    n = len(trace)

    def numbered(column: npt.NDArray[np.int32] | None, width: int) -> npt.NDArray[np.int32] | None:
        if column is None:
            return None
        tiled, offset = np.tile(column, copies), np.repeat(np.arange(copies), n) * width
        return np.where(tiled >= 0, tiled + offset, -1).astype(np.int32)

    hashes = trace.hashes
    if hashes is not None:
        ids = np.unique(hashes.ids, return_inverse=True)[1] if not share_prefixes else hashes.ids
        width = int(ids.max()) + 1 if ids.size and not share_prefixes else 0
        offsets = np.repeat(np.arange(copies), ids.size) * width
        starts = np.concatenate(([0], np.cumsum(np.tile(hashes.counts, copies))))
        hashes = BlockHashes(ids=np.tile(ids, copies) + offsets, starts=starts, block_tokens=hashes.block_tokens)
    sessions = 0 if trace.session is None else int(trace.session.max()) + 1
    return Trace(
        at_ns=np.zeros(n * copies, dtype=np.int64),
        input_tokens=np.tile(trace.input_tokens, copies),
        output_tokens=np.tile(trace.output_tokens, copies),
        line=np.tile(trace.line, copies),
        outcome=np.tile(trace.outcome, copies),
        hashes=hashes,
        session=numbered(trace.session, sessions),
        parent=numbered(trace.parent, n),
    )


def change_rate(trace: Trace, factor: float, *, method: RateMethod, seed: int = 0) -> Transformed:
    """The trace with its rate times `factor`: by time scaling, by thinning (downwards), or by superposition (upwards).

    A superposition by a factor that is not a whole number is thinned from the next one. Raises `TraceError` where the
    method cannot reach the rate.
    """
    wanted = f"the rate from {trace.rate:.4f} to {trace.rate * factor:g}"
    if method == "time":
        return scale_time(trace, factor)
    if method == "thin":
        if factor > 1:
            raise TraceError(f"thinning cannot raise {wanted}", remedy="use time scaling or superposition")
        return thin(trace, factor, seed=seed)
    if method != "superpose":
        raise TraceError(f"unknown rate method {method!r}", remedy="pass time, thin or superpose")
    if factor < 1:
        raise TraceError(f"superposition cannot lower {wanted}", remedy="use time scaling or thinning")
    copies = math.ceil(factor - 1e-9)
    done = superpose(trace, copies, seed=seed)
    if copies <= factor + 1e-9:
        return done
    thinned = thin(done.trace, factor / copies, seed=seed)
    return _done(thinned.trace, f"{done.name}, {thinned.name}", lead_ns=thinned.lead_ns)


def find_tick(trace: Trace) -> int:
    """The tick of the clock that stamped a trace, ns.

    Where arrivals come in batches, and nearly all of these lie about one and the same time (or a multiple of it) apart,
    that time: Mooncake's batches come each 3 s, give or take a millisecond. Else the largest step that divides every
    offset.
    """
    instants = trace.at_ns[np.flatnonzero(np.append(True, trace.at_ns[1:] != trace.at_ns[:-1]))]
    step = int(np.gcd.reduce(trace.at_ns))
    gaps = np.diff(instants)
    if gaps.size < MIN_BATCHES or 2 * instants.size > len(trace):
        return step
    tick = int(np.median(gaps))
    multiples = np.maximum(np.rint(gaps / tick), 1)
    regular = np.abs(gaps - multiples * tick) <= 0.05 * tick
    return tick if np.mean(regular) >= 0.95 else step


def jitter_within_tick(trace: Trace, *, seed: int, tick_ns: int | None = None) -> Transformed:
    """Each arrival moved by a uniform time in [0, tick): breaks ties that a coarse clock made, and invents the rest.

    `tick_ns`: what `find_tick` finds by default. Nothing is moved beyond the next instant of the clock, so the order of
    rows, and of turns, stays. Raises `TraceError` for a tick below 2 ns.
    """
    tick = find_tick(trace) if tick_ns is None else tick_ns
    if tick < 2:
        raise TraceError(
            f"a tick of {tick} ns leaves nothing to spread", remedy="pass the tick of the clock, such as 1s"
        )
    at = trace.at_ns if tick_ns is None else trace.at_ns // tick * tick
    starts = np.append(True, at[1:] != at[:-1])
    instants = at[starts]
    room = np.minimum(np.diff(instants, append=instants[-1] + tick), tick)
    which = np.cumsum(starts) - 1
    # sorted inside each tick, so that the rows keep their order
    jitter = np.random.default_rng(seed).integers(0, room[which])
    jitter = jitter[np.lexsort((jitter, which))]
    return _done(
        trace.take(np.arange(len(trace)), at_ns=at + jitter),
        f"jitter within ticks of {tick / NS:g} s (seed {seed})",
    )
