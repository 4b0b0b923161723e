"""Paired differences of two variants: t interval, exact sign test, Holm's adjustment, and the verdict.

Relative differences are (A_r − B_r)/m with m the mean of all values of both variants in the pairs. Unlike the log ratio
this is defined for a run without a single good request, adds up to the difference of all tokens served, and changes
only its sign when A and B are swapped. For small differences the two agree to second order. What is a logarithm already
is not divided, and attainment is compared in points.

Why the verdict looks at a common rate too. λ* of a search is uncertain by a grid step or two, and the interval of runs
at each variant's own λ* knows nothing of that: two servers that differ by luck alone end at other λ*, and then their
G_card differs by as much, with a tight interval. So A or B also needs a difference at the larger of both λ* per GPU,
where both variants ran with one seed: of G_card, or of the growth of the backlog, which shows an overload before it
breaks a loose SLO. Rates were fixed before these runs and p is adjusted for two endpoints, so A against A holds its 5 %
(`python -m benchmarks.compare_truth --only aa`, docs/compare.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Final, Literal

from scipy.special import stdtr, stdtrit  # Student's t: P(T ≤ x), and its inverse

from analysis.compare.types import (
    NAMES,
    SCALE,
    WORSE_SIGN,
    CapacityPerGpu,
    Endpoint,
    PairedDifference,
    PrimaryVerdict,
    VariantRun,
)

__all__ = [
    "EXPLORATORY",
    "at_larger_rate",
    "compare_capacities",
    "holm",
    "holm_adjusted",
    "paired",
    "primary_verdict",
    "sign_test",
]

EXPLORATORY: Final[tuple[Endpoint, ...]] = (
    "g_card", "attainment", "request_goodput", "token_goodput", "log_ttft", "log_e2e",
)  # fmt: skip
_AT_ONE_RATE: Final[tuple[Endpoint, ...]] = ("g_card", "backlog")
ALPHA: Final = 0.05
SIGN_TEST_PAIRS: Final = 6  # 2/2^6 = 0.031 is the first two-sided p below 5 %
_MOST: Final = 10_000


def paired(a: Sequence[VariantRun], b: Sequence[VariantRun], endpoint: Endpoint) -> PairedDifference:
    """A − B over the replicates that both have, of runs at one point. A pair where one has no value is left out.

    Raises `ValueError` for no run, runs of several points or of one replicate twice, and for a pair that met other
    seeds, workloads, or (at one total rate) schedules.
    """
    if not a or not b:
        raise ValueError("a paired difference needs runs of both variants")
    if len({run.label for run in (*a, *b)}) > 1 or any(len({run.variant for run in side}) > 1 for side in (a, b)):
        raise ValueError("runs of several points or variants cannot be paired")
    pairs = _pairs(a, b)
    known = [
        (x, y, first.results_sha256 == second.results_sha256)
        for first, second in pairs
        if (x := _value(first, endpoint)) is not None and (y := _value(second, endpoint)) is not None
    ]
    scale, n = SCALE[endpoint], len(known)
    level = fmean(v for x, y, _ in known for v in (x, y)) if scale == "relative" and n else 1.0
    values = tuple((x - y) / level if level else 0.0 for x, y, _ in known)
    same = sum(equal for *_, equal in known)
    identical = n > 0 and same == n
    found = PairedDifference(
        a=a[0].variant,
        b=b[0].variant,
        endpoint=endpoint,
        scale=scale,
        label=a[0].label,
        n=n,
        identical_pairs=same,
        identical=identical,
        mean=fmean(values) if n else 0.0,
        sd=stdev(values) if n > 1 else None,
        lo=None,
        hi=None,
        p=None,
        p_holm=None,
        sign_p=None,
        values=values,
        words="",
    )
    if n > 1 and not identical:
        found = _tested(found)
    return replace(found, words=_words(found))


def sign_test(values: Iterable[float]) -> float:
    """Two-sided exact p of as many signs of one kind or more under p = ½; zeros are left out, and of none it is 1."""
    above = [value > 0 for value in values if value != 0]
    n, more = len(above), sum(1 for one in above if one)
    tail = sum(math.comb(n, k) for k in range(min(more, n - more) + 1))
    return min(1.0, 2 * tail / (1 << n))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given: reject those ≤ α for a family-wise error ≤ α."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = largest
    return tuple(adjusted)


def holm_adjusted(differences: Sequence[PairedDifference]) -> tuple[PairedDifference, ...]:
    """The same with `p_holm` over all of them that were tested."""
    adjusted = iter(holm([d.p for d in differences if d.p is not None]))
    return tuple(d if d.p is None else replace(d, p_holm=next(adjusted)) for d in differences)


def at_larger_rate(
    runs: Iterable[VariantRun], a: Sequence[VariantRun], b: Sequence[VariantRun]
) -> tuple[PairedDifference, ...]:
    """A − B where both variants ran at the larger rate per GPU of `a` and `b`; nothing where these had one rate.

    Of G_card and of the backlog, `p_holm` adjusted for two. `runs` are all runs of the comparison, `a` and `b` those of
    one point. Raises `ValueError` where the variants did not meet at that rate, and as `paired` does.
    """
    rate = max(a[0].rate_per_gpu, b[0].rate_per_gpu)
    if _near(a[0].rate_per_gpu, b[0].rate_per_gpu):
        return ()
    met: dict[str, dict[str, list[VariantRun]]] = {}
    for run in runs:
        if _near(run.rate_per_gpu, rate) and run.variant in (a[0].variant, b[0].variant):
            met.setdefault(run.label, {}).setdefault(run.variant, []).append(run)
    both = next((sides for sides in met.values() if len(sides) == 2), None)
    if both is None:
        raise ValueError(f"{a[0].variant} and {b[0].variant} made no runs at one rate of {rate:.4g}/s per GPU")
    return holm_adjusted([paired(both[a[0].variant], both[b[0].variant], endpoint) for endpoint in _AT_ONE_RATE])


def primary_verdict(
    difference: PairedDifference, *, indifference: float, same_rate: Sequence[PairedDifference] = ()
) -> PrimaryVerdict:
    """A or B only if the whole 95 % t interval lies outside ± `indifference`; no difference if it lies within.

    Above 0 is better for A: the endpoint must be one of which more is better. `same_rate` are the differences at one
    rate where `difference` is of runs at two (see `at_larger_rate`): A or B only if they show it too, and no difference
    only if they show none.
    """
    d, zone = difference, indifference
    needed = None
    winner: Literal["A", "B", "no difference", "cannot tell"]
    if d.identical:
        winner, why = "no difference", "all pairs are bit-identical"
    elif d.lo is None or d.hi is None:
        winner, why = "cannot tell", f"{d.n} pairs give no interval; 2 are the fewest, 6 or more are advised"
    else:
        interval = f"the 95 % interval {d.lo:+.2%} to {d.hi:+.2%}"
        side: Literal["A", "B"] | None = "A" if d.lo > zone else "B" if d.hi < -zone else None
        within = -zone <= d.lo and d.hi <= zone
        shown, there = {_better(one) for one in same_rate} - {None}, _there(same_rate)
        if side and same_rate and shown != {side}:
            winner = "cannot tell"
            why = f"{interval} lies outside ±{100 * zone:.3g} %, but {there}: λ* may differ by luck of the searches"
        elif side:
            winner, why = side, f"{interval} lies outside ±{100 * zone:.3g} %" + (there and f", and {there}")
        elif within and shown:
            winner, why = "cannot tell", f"{interval} lies within ±{100 * zone:.3g} %, but {there}"
        elif within:
            winner, why = "no difference", f"{interval} lies within ±{100 * zone:.3g} %"
        else:
            needed = _replicates_needed(d, zone)
            more = f"; about {needed} replicates would do if the difference is {d.mean:+.2%}" if needed else ""
            winner, why = "cannot tell", f"{interval} reaches across an edge of ±{100 * zone:.3g} %{more}"
    share = " of their mean" if d.scale == "relative" else ""
    better = {"A": f"{d.a} is better than {d.b}", "B": f"{d.b} is better than {d.a}"}.get(winner, winner)
    return PrimaryVerdict(
        a=d.a,
        b=d.b,
        winner=winner,
        indifference=zone,
        difference=d,
        same_rate=tuple(same_rate),
        replicates_needed=needed,
        words=f"{better}: {NAMES[d.endpoint]} of {d.a} against {d.b} differs by {d.mean:+.2%}{share} (n = {d.n}); "
        f"{why}.",
    )


def compare_capacities(a: CapacityPerGpu, b: CapacityPerGpu) -> str:
    """λ*/GPUs of two variants as brackets. Each is one search's value, so nothing is tested."""
    ends = f"λ* per GPU: {a.variant} {_bracket(a)}, {b.variant} {_bracket(b)} requests/s"
    for high, low in ((a, b), (b, a)):
        if high.lower is not None and low.upper is not None and high.lower >= low.upper:
            return f"{ends}: the brackets are disjoint, {high.variant} is higher."
    return f"{ends}: the brackets overlap or are open, which of them is higher is not known."


def _better(d: PairedDifference) -> Literal["A", "B"] | None:
    """Which variant the test favours, adjusted for the others beside it."""
    if d.p_holm is None or d.p_holm > ALPHA:
        return None
    return "A" if WORSE_SIGN[d.endpoint] * d.mean < 0 else "B"


def _there(same_rate: Sequence[PairedDifference]) -> str:
    """What runs at one rate showed."""
    if not same_rate:
        return ""
    said = (
        f"{NAMES[d.endpoint]} is the same"
        if not any(d.values)
        else f"{NAMES[d.endpoint]} differs by "
        + (f"{100 * d.mean:+.2f} points" if d.scale == "points" else f"{d.mean:+.2%}")
        + ("" if d.p_holm is None else f" (p = {d.p_holm:.2g})")
        for d in same_rate
    )
    return f"at {same_rate[0].label} for both, {' and '.join(said)}"


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6)  # grids of other numbers of GPUs differ in the last digits


def _bracket(one: CapacityPerGpu) -> str:
    return "..".join("?" if end is None else f"{end:.4g}" for end in (one.lower, one.upper))


def _pairs(a: Sequence[VariantRun], b: Sequence[VariantRun]) -> list[tuple[VariantRun, VariantRun]]:
    first, second = {run.replicate: run for run in a}, {run.replicate: run for run in b}
    if len(first) < len(a) or len(second) < len(b):
        raise ValueError("a replicate is there twice")
    pairs = [(first[r], second[r]) for r in sorted(first.keys() & second.keys())]
    for x, y in pairs:
        where = f"replicate {x.replicate} of {x.variant} and {y.variant}"
        if x.seed != y.seed:
            raise ValueError(f"{where} had seeds {x.seed} and {y.seed}: they are no pair")
        # another total rate scales the gaps, and with them how many requests a window holds
        if x.rate == y.rate and (x.schedule_sha256, x.workload_sha256) != (y.schedule_sha256, y.workload_sha256):
            raise ValueError(f"{where} met other schedules or workloads: they are no pair")
    return pairs


def _value(run: VariantRun, endpoint: Endpoint) -> float | None:
    match endpoint:
        case "lambda_per_gpu":
            return run.rate_per_gpu
        case "request_goodput":
            return run.goodput_per_s
        case "token_goodput":
            return run.token_goodput_per_s
        case _:
            value: float | None = getattr(run, endpoint)
            return value


def _tested(d: PairedDifference) -> PairedDifference:
    error = (d.sd or 0.0) / math.sqrt(d.n)
    half = float(stdtrit(d.n - 1, 0.975)) * error
    p = 2 * float(stdtr(d.n - 1, -abs(d.mean) / error)) if error else float(d.mean == 0)
    return replace(d, lo=d.mean - half, hi=d.mean + half, p=p, sign_p=sign_test(d.values))


def _replicates_needed(d: PairedDifference, zone: float) -> int | None:
    """n with (t₀.₉₇₅ + t₀.₈)·sd/√n ≤ the distance of the mean to the zone's edge; `None` beyond 10,000."""
    gap = abs(abs(d.mean) - zone)
    low, high = d.n + 1, _MOST
    if not d.sd or (float(stdtrit(high, 0.975)) + float(stdtrit(high, 0.8))) * d.sd / math.sqrt(high) > gap:
        return None
    while low < high:
        n = (low + high) // 2
        enough = (float(stdtrit(n - 1, 0.975)) + float(stdtrit(n - 1, 0.8))) * d.sd / math.sqrt(n) <= gap
        low, high = (low, n) if enough else (n + 1, high)
    return low


def _words(d: PairedDifference) -> str:
    if d.identical:
        return f"all {d.n} pairs are bit-identical; nothing is tested"
    if d.n < 2:
        return f"{d.n} pairs show no difference and no interval; 2 are the fewest"
    identical = f"{d.identical_pairs} of {d.n} pairs are bit-identical; " if d.identical_pairs else ""
    if d.n < SIGN_TEST_PAIRS:
        return (
            f"{identical}with {d.n} pairs the sign test can say nothing at 5 %, and the t interval relies on normality"
        )
    return f"{identical}with {d.n} pairs the smallest p of the sign test is {2 / 2**d.n:.2g}"
