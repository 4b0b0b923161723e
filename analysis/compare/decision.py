"""The decision rule on tensor parallelism in words, with its numbers (method, section 8), and the cost of tokens.

A model that fits one GPU deserves TP=p only if its G_card beats that of p replicas on the same GPUs, or if the replicas
cannot meet the SLO of a single request. For a model that does not fit one GPU the baseline is the smallest p that holds
it, and nothing is called a speed-up over one card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from analysis.compare.types import PrimaryVerdict, VariantRun, VariantSpec

__all__ = ["cost_per_million_tokens", "costs", "decide", "layout"]


def layout(spec: VariantSpec) -> str:
    """`4 × TP=1`, `TP=4`, `TP=2 × PP=2`; "layout not said" where neither tp nor pp was given for several GPUs."""
    if spec.tp is None and spec.pp is None and spec.gpus != spec.replicas:
        return "layout not said"
    parts = [f"TP={spec.tp or 1}", *([f"PP={spec.pp}"] if (spec.pp or 1) > 1 else [])]
    return (f"{spec.replicas} × " if spec.replicas > 1 else "") + " × ".join(parts)


def decide(
    specs: Sequence[VariantSpec],
    verdicts: Sequence[PrimaryVerdict],
    *,
    fits_one_gpu: bool | None,
    single_request_meets_slo: Mapping[str, bool],
    tp_crosses_weak_link: bool = False,
) -> tuple[str, ...]:
    """What the rule says of each variant with TP > 1.

    `single_request_meets_slo`: whether a lone request of a variant meets the SLO, where it was measured.
    `fits_one_gpu` `None`: not known, and the rule is not applied.
    """
    parallel = sorted((one for one in specs if _tp(one) > 1), key=lambda one: (_tp(one), one.name))
    if not parallel:
        return ()
    if fits_one_gpu is None:
        return ("The rule on tensor parallelism is not applied: whether the model fits one GPU is not known.",)
    sentences = [] if fits_one_gpu else [_smallest(specs, parallel)]
    if fits_one_gpu:
        for one in parallel:
            sentences += _deserves(one, specs, verdicts, single_request_meets_slo)
    if tp_crosses_weak_link and not any((one.pp or 1) > 1 for one in specs):
        sentences.append("TP crosses a weak link: test TP inside the node × PP across before; no such variant is here.")
    return tuple(sentences)


def cost_per_million_tokens(g_card: float, price_per_gpu_hour: float) -> float | None:
    """Price of 10⁶ output tokens of joint-good requests, in the price's currency; `None` where there is none.

    price / (3600 · G_card) · 10⁶, with G_card in tokens/(s × GPU).
    """
    return price_per_gpu_hour / (3600 * g_card) * 1e6 if g_card > 0 else None


def costs(runs: Sequence[VariantRun], price_per_gpu_hour: float) -> tuple[str, ...]:
    """One sentence a variant and point, of its mean G_card."""
    groups: dict[tuple[str, str], list[VariantRun]] = {}
    for run in runs:
        groups.setdefault((run.variant, run.label), []).append(run)
    sentences = []
    for (variant, label), group in groups.items():
        cost = cost_per_million_tokens(fmean(run.g_card for run in group), price_per_gpu_hour)
        said = "no joint-good output token" if cost is None else f"{cost:.4g} per million joint-good output tokens"
        sentences.append(f"{variant} at {label}: {said}, at {price_per_gpu_hour:.4g} per GPU hour.")
    return tuple(sentences)


def _tp(spec: VariantSpec) -> int:
    return spec.tp or 1


def _smallest(specs: Sequence[VariantSpec], parallel: Sequence[VariantSpec]) -> str:
    held = min((one for one in specs if one in parallel or (one.pp or 1) > 1), key=lambda one: one.gpus // one.replicas)
    return (
        f"The model does not fit one GPU: {held.name} ({layout(held)}), the smallest of these that holds it, is the "
        "baseline. Take the smallest p that meets memory and SLO; nothing here is a speed-up over one card."
    )


def _deserves(
    one: VariantSpec, specs: Sequence[VariantSpec], verdicts: Sequence[PrimaryVerdict], alone: Mapping[str, bool]
) -> Iterator[str]:
    name = f"{one.name} ({layout(one)})"
    # as many servers of one GPU each as this variant has GPUs
    base = next((s for s in specs if _tp(s) == 1 and (s.pp or 1) == 1 and s.replicas == s.gpus == one.gpus), None)
    if base is None:
        yield f"{name}: not decided, for there is no variant of {one.gpus} replicas on {one.gpus} GPUs."
        return
    against = f"{base.name} ({layout(base)})"
    if alone.get(base.name) is False and alone.get(one.name) is True:
        yield f"{name} is deserved: {against} cannot meet the SLO of a single request, and {one.name} can."
        return
    found = next((v for v in verdicts if {v.a, v.b} == {one.name, base.name}), None)
    if found is None:
        yield f"{name}: not decided, for it was not compared with {against}."
        return
    d, sign = found.difference, 1 if found.a == one.name else -1
    ends = "" if d.lo is None or d.hi is None else f", 95 % interval {min(sign * d.lo, sign * d.hi):+.2%} to "
    ends += "" if d.lo is None or d.hi is None else f"{max(sign * d.lo, sign * d.hi):+.2%}"
    numbers = f"its G_card differs from that of {against} by {sign * d.mean:+.2%} of their mean{ends} (n = {d.n})"
    winner = {"A": found.a, "B": found.b}.get(found.winner)
    if winner == one.name:
        yield f"{name} is deserved: {numbers}."
    elif found.winner == "cannot tell":
        yield f"{name}: cannot tell, {numbers}."
    else:
        yield f"{name} is not deserved: {numbers}; take {base.name}."
