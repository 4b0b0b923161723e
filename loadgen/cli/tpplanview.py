"""What `loadgen tp plan` prints: tables by T and p, thresholds, memory, and when to stop applying the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.report.tables import Table
from analysis.tp.plan import LABEL, Budget, Plan, Prediction, RankMemory
from analysis.tp.steptimes import Costs
from analysis.units import format_duration
from loadgen.cli.output import print_lines, print_tables

__all__ = ["print_plan"]


def print_plan(plan: Plan, costs: Costs, budget: Budget, files: Sequence[Path]) -> None:
    """A plan on stdout. `files`: where measured times come from."""
    print_lines(*_lead(plan, costs, files))
    _print_table(_load_table(plan))
    _print_table(_by_ranks(plan, "V_step: MB that each rank sends in a step", _traffic))
    if any(one.speedup is not None for load in plan.loads for one in load.by_ranks):
        _print_table(_by_ranks(plan, f"Speed-up against one GPU ({LABEL})", _speedup))
    print_lines(*_missing(plan), *_thresholds(plan), *(f"warning: {text}" for text in plan.warnings))
    _print_table(_memory_table(plan))
    print_lines(*_memory_lines(plan, budget), *_split_lines(plan))
    print_lines("Stop applying it when", *(f"- {reason}" for reason in plan.stop_when))


def _print_table(table: Table) -> None:
    """With its title as a line of its own: within a table of few columns it would be folded word by word."""
    print_lines(table.title)
    print_tables(replace(table, title=""))


def _lead(plan: Plan, costs: Costs, files: Sequence[Path]) -> list[str]:
    model, shape = plan.model, plan.model.shape
    times = []
    if costs.measured:
        times.append(f"τ_AR by nccl-tests of {_list(list(costs.measured))} ranks ({', '.join(map(str, files))})")
    elif costs.fabric is not None:
        fabric = costs.fabric
        times.append(
            f"τ_AR by α_p = {fabric.alpha_s * 1e6:g} µs, B_p = {fabric.bus_bytes_per_s / 1e9:g} GB/s for any p"
        )
    if costs.projections is not None:
        times.append("t_proj,1 by the TP=1 profile")
    elif costs.flops_per_s is not None:
        a_s = shape.layers * shape.projection_flops(1) / costs.flops_per_s
        times.append(f"a = {a_s * 1e6:.4g} µs a token")
    if costs.other_s:
        times.append(f"t_other = {format_duration(costs.other_s)} for any p")
    said = f"{model.name}: " if model.name else ""
    return [
        f"This is a {LABEL}.",
        f"{said}H = {shape.hidden}, I = {shape.mlp}, H_KV = {shape.kv_width}, L = {shape.layers}, {shape.heads} heads, "
        f"{shape.kv_heads} KV heads of {shape.head_size}, V = {shape.vocab or 'not known, left out'}; e_a = "
        f"{shape.activation_bytes} B, weights of {model.weight_bits:g} bits; {plan.parameters / 1e9:.4g}·10⁹ "
        "parameters",
        *(f"note: {note}" for note in model.notes),
        f"A step makes 2L = {plan.collectives_per_step} all-reduces of S = T·H·e_a bytes.",
        *([f"Times: {'; '.join(times)}."] if times else []),
    ]


def _load_table(plan: Plan) -> Table:
    return Table(
        title="A step of T tokens: payload of one all-reduce, GFLOP of one layer",
        columns=("T", "S, B", "F_attn", "F_mlp", "F_proj", "t_proj,1, ms"),
        rows=tuple(
            (
                str(load.tokens), str(load.payload_bytes), _four(load.attention_flops / 1e9),
                _four(load.mlp_flops / 1e9), _four(load.projection_flops / 1e9),
                "–" if load.projections_s is None else _four(load.projections_s * 1e3),
            )
            for load in plan.loads
        ),
        left=frozenset(),
    )  # fmt: skip


def _four(value: float) -> str:
    """Four digits, more before the point: no exponents."""
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _traffic(one: Prediction) -> str:
    return _four(one.traffic_bytes / 1e6)


def _speedup(one: Prediction) -> str:
    return "–" if one.speedup is None else f"{one.speedup:.2f}"


def _by_ranks(plan: Plan, title: str, cell: Callable[[Prediction], str]) -> Table:
    return Table(
        title=title,
        columns=("T", *(f"TP={split.ranks}" for split in plan.splits if not split.refusal)),
        rows=tuple((str(load.tokens), *(cell(one) for one in load.by_ranks)) for load in plan.loads),
        left=frozenset(),
    )


def _missing(plan: Plan) -> list[str]:
    """Why predictions are missing, each reason once, with its T unless it holds for all."""
    tokens: dict[str, list[int]] = {}
    stops = {split.stop for split in plan.splits}
    for load in plan.loads:
        for reason in dict.fromkeys(text for one in load.by_ranks for text in one.why if text not in stops):
            tokens.setdefault(reason, []).append(load.tokens)
    return [
        f"No speed-up{'' if len(of) == len(plan.loads) else f' at T = {_list(of)}'}: {reason}"
        for reason, of in tokens.items()
    ]


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _thresholds(plan: Plan) -> Iterator[str]:
    for split in plan.splits:
        if split.refusal or split.stop or split.ranks == 1:
            continue
        if split.threshold_tokens is not None:
            measured = f", {split.threshold}" if split.threshold else ""
            yield f"TP={split.ranks} is faster than one GPU at T > {split.threshold_tokens:.4g}{measured}"
        else:
            yield f"TP={split.ranks}, threshold T: {split.threshold}"


def _memory_table(plan: Plan) -> Table:
    splits = {split.ranks: split.memory for split in plan.splits if split.memory is not None}
    return Table(
        title="Memory of a rank, GB",
        columns=("TP", "weights", "KV", "runtime", "M_rank", "usable", "margin", "fits"),
        rows=tuple(_memory_row(ranks, memory) for ranks, memory in sorted(({1: plan.alone} | splits).items())),
        left=frozenset({"fits"}),
    )


def _memory_row(ranks: int, memory: RankMemory) -> tuple[str, ...]:
    usable, margin = memory.usable_bytes, memory.margin_bytes
    fits = "?" if memory.fits is None else "yes" if memory.fits else "NO"
    return (
        str(ranks), f"{memory.weight_bytes / 1e9:.2f}", f"{memory.kv_bytes / 1e9:.2f}",
        f"{memory.runtime_bytes / 1e9:.2f}", f"{memory.rank_bytes / 1e9:.2f}",
        "?" if usable is None else f"{usable / 1e9:.2f}", "?" if margin is None else f"{margin / 1e9:.2f}", fits,
    )  # fmt: skip


def _memory_lines(plan: Plan, budget: Budget) -> list[str]:
    said = f"KV is of {budget.kv_tokens} tokens (--kv-tokens), {plan.kv_bytes_per_token} B each over all ranks"
    lines = [said + ("; give --memory GB to judge whether it fits" if budget.usable_bytes is None else "")]
    if (context := plan.model.context_tokens) is not None and budget.kv_tokens < context:
        lines.append(
            f"One request may need KV of {context} tokens (max_position_embeddings), unless the server limits it"
        )
    if plan.alone.fits is False:
        lines.append("It does not fit on one GPU: speed-ups are against a GPU of the same speed with more memory")
    return lines


def _split_lines(plan: Plan) -> Iterator[str]:
    for split in plan.splits:
        if split.refusal:
            yield f"TP={split.ranks}: model does not apply: {split.refusal}"
        elif split.stop:
            yield f"TP={split.ranks}: model does not apply, memory alone is counted: {split.stop}"
        yield from (f"TP={split.ranks}: {note}" for note in split.notes)
