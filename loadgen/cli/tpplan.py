"""`loadgen tp plan`: what p ranks cost and save by the screening model, and whether the model fits a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from analysis.report.tables import Table
from analysis.tp.config import BadConfig, Model, element_bytes
from analysis.tp.cost import Fabric, Shape
from analysis.tp.plan import LABEL, Budget, Costs, Plan, Prediction, Split, make_plan
from analysis.units import format_duration, parse_duration_s
from loadgen.cli.options import Json
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.cli.tpnccl import InPlace, by_ranks
from loadgen.cli.tpprofile import ActDtype, Config, Hidden, Layers, read_model, read_token_times
from loadgen.common.errors import UsageError

__all__ = ["PLAN", "plan_command"]

PLAN: Final = "Example: loadgen tp plan --config config.json --tflops 120 --alpha 8us --bandwidth 150 --memory 80"
_MODEL: Final = "Model"
_COSTS: Final = "Times"
_MEMORY: Final = "Memory"
_MOST: Final = 1 << 30


def _number(option: str, text: str, panel: str, least: float = 1) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        option, min=least, help=text, show_default=False, rich_help_panel=panel
    )
    return found


def _text(option: str, text: str, panel: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(option, help=text, show_default=False, rich_help_panel=panel)
    return found


def plan_command(
    config: Config = None,
    hidden: Hidden = None,
    layers: Layers = None,
    heads: Annotated[int | None, _number("--heads", "Query heads.", _MODEL)] = None,
    kv_heads: Annotated[int | None, _number("--kv-heads", "KV heads; query heads without it.", _MODEL)] = None,
    head_size: Annotated[int | None, _number("--head-size", "H / heads without it.", _MODEL)] = None,
    mlp: Annotated[int | None, _number("--mlp", "I, width of the MLP.", _MODEL)] = None,
    mlp_matrices: Annotated[
        int | None, _number("--mlp-matrices", "3: gate, up, down; 2: an MLP without a gate.", _MODEL, 2)
    ] = None,
    vocab: Annotated[int | None, _number("--vocab", "Rows of the embedding.", _MODEL)] = None,
    act_dtype: ActDtype = None,
    weight_bits: Annotated[
        float | None, _number("--weight-bits", "Bits of a weight; as --config says, else 16.", _MODEL)
    ] = None,
    tp: Annotated[str, typer.Option("--tp", help="Numbers of ranks p, such as 2,4,8.")] = "2,4,8",
    tokens: Annotated[str, typer.Option("--tokens", help="Tokens of a step, T.")] = "1,8,32,128,512,2048",
    a: Annotated[
        str | None, _text("--a", "a = t_proj,1/T: time of a token's projections on one GPU, 14us.", _COSTS)
    ] = None,
    a_from: Annotated[
        Path | None, _text("--a-from", "t_proj,1 by T: output of tp profile --json of a TP=1 trace.", _COSTS)
    ] = None,
    tflops: Annotated[
        float | None, _number("--tflops", "TFLOP/s that one GPU's projections reach, in place of --a.", _COSTS, 1e-6)
    ] = None,
    alpha: Annotated[str | None, _text("--alpha", "α_p: start-up time of an all-reduce, 8us.", _COSTS)] = None,
    bandwidth: Annotated[
        float | None, _number("--bandwidth", "B_p: bus bandwidth as nccl-tests counts it, GB/s.", _COSTS, 1e-6)
    ] = None,
    nccl: Annotated[
        list[Path] | None, _text("--nccl", "nccl-tests' all_reduce_perf, in place of α_p and B_p; repeatable.", _COSTS)
    ] = None,
    in_place: InPlace = False,
    other: Annotated[
        str, _text("--other", "Time of all else in a step, the same for any p; 0 without it.", _COSTS)
    ] = "0s",
    memory: Annotated[float | None, _number("--memory", "Memory of a card, GB (10⁹ bytes).", _MEMORY, 1e-3)] = None,
    utilization: Annotated[
        float,
        typer.Option("--utilization", min=0.01, max=1, help="Share of it that is usable.", rich_help_panel=_MEMORY),
    ] = 0.92,
    runtime: Annotated[
        float, typer.Option("--runtime", min=0, help="GB for runtime and workspace.", rich_help_panel=_MEMORY)
    ] = 2.0,
    kv_tokens: Annotated[
        int,
        typer.Option(
            "--kv-tokens", min=0, max=_MOST, help="Tokens that the KV cache must hold.", rich_help_panel=_MEMORY
        ),
    ] = 8192,
    kv_dtype: Annotated[
        str | None, _text("--kv-dtype", "Type of KV elements; that of activations without it.", _MEMORY)
    ] = None,
    as_json: Json = False,
) -> None:
    """Screen tensor parallelism before measuring: payload, traffic, FLOPs, speed-up by T and p, threshold T, memory."""
    base = None if config is None else read_model(config)
    model = _model(
        base,
        heads=heads, kv_heads=kv_heads, head_size=head_size, mlp=mlp, vocab=vocab, hidden=hidden, layers=layers,
        mlp_matrices=mlp_matrices, activation_bytes=_element("--act-dtype", act_dtype), weight_bits=weight_bits,
    )  # fmt: skip
    if model.inapplicable:
        where = f"--config {config}: " if config is not None else ""
        raise UsageError(f"{where}model does not apply: {'; '.join(model.inapplicable)}")
    costs = Costs(
        flops_per_s=_flops_per_s(model.shape, a, tflops, a_from),
        projections=None if a_from is None else read_token_times(a_from),
        fabric=_fabric(alpha, bandwidth, nccl),
        measured=by_ranks("--nccl", nccl, in_place=in_place) if nccl else {},
        other_s=_duration("--other", other, least=0.0),
    )
    budget = Budget(
        usable_bytes=None if memory is None else memory * 1e9 * utilization,
        runtime_bytes=runtime * 1e9,
        kv_tokens=kv_tokens,
        kv_element_bytes=_element("--kv-dtype", kv_dtype) or model.shape.activation_bytes,
    )
    plan = make_plan(model, ranks=_counts("--tp", tp), tokens=_counts("--tokens", tokens), costs=costs, budget=budget)
    refused = [split.refusal for split in plan.splits if split.refusal]
    if len(refused) == len(plan.splits):
        raise UsageError(f"--tp {tp}: model does not apply: {'; '.join(refused)}")
    if as_json:
        print_json(plan)
        return
    _show(plan, costs, budget, nccl or [])


def _show(plan: Plan, costs: Costs, budget: Budget, files: list[Path]) -> None:
    print_lines(*_lead(plan, costs, files))
    print_tables(_load_table(plan), _traffic_table(plan))
    if any(one.speedup is not None for load in plan.loads for one in load.by_ranks):
        print_tables(_by_ranks(plan, f"Speed-up against one GPU ({LABEL})", _speedup))
    print_lines(*_missing(plan), *_thresholds(plan))
    print_tables(_memory_table(plan))
    print_lines(*_memory_lines(plan, budget), *_split_lines(plan))
    print_lines("Stop applying it when", *(f"- {reason}" for reason in plan.stop_when))


def _lead(plan: Plan, costs: Costs, files: list[Path]) -> list[str]:
    model, shape = plan.model, plan.model.shape
    times = []
    if costs.measured:
        ranks = ", ".join(map(str, costs.measured))
        times.append(f"τ_AR by nccl-tests of {ranks} ranks ({', '.join(map(str, files))})")
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


def _traffic_table(plan: Plan) -> Table:
    return _by_ranks(plan, "V_step: MB that each rank sends in a step", lambda one: _four(one.traffic_bytes / 1e6))


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
    """Why predictions are missing, each reason once."""
    reasons: dict[str, None] = {}
    for load in plan.loads:
        for one in load.by_ranks:
            if one.why and not any(split.stop == one.why for split in plan.splits):
                reasons.setdefault(f"No speed-up at T = {load.tokens}: {one.why}" if _of_tokens(one.why)
                                   else f"No speed-up: {one.why}")  # fmt: skip
    return list(reasons)


def _of_tokens(why: str) -> bool:
    return "outside" in why


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
    splits = [split for split in plan.splits if split.memory is not None]
    return Table(
        title="Memory of a rank, GB",
        columns=("TP", "weights", "KV", "runtime", "M_rank", "usable", "margin", "fits"),
        rows=tuple(_memory_row(split) for split in splits),
        left=frozenset({"fits"}),
    )


def _memory_row(split: Split) -> tuple[str, ...]:
    memory = split.memory
    assert memory is not None
    usable, margin = memory.usable_bytes, memory.margin_bytes
    fits = "?" if split.feasible is None else "yes" if split.feasible else "NO"
    return (
        str(split.ranks), f"{memory.weight_bytes / 1e9:.2f}", f"{memory.kv_bytes / 1e9:.2f}",
        f"{memory.runtime_bytes / 1e9:.2f}", f"{memory.rank_bytes / 1e9:.2f}",
        "?" if usable is None else f"{usable / 1e9:.2f}", "?" if margin is None else f"{margin / 1e9:.2f}", fits,
    )  # fmt: skip


def _memory_lines(plan: Plan, budget: Budget) -> list[str]:
    said = f"KV is of {budget.kv_tokens} tokens (--kv-tokens), {plan.kv_bytes_per_token} B each over all ranks"
    return [said + ("; give --memory GB to judge whether it fits" if budget.usable_bytes is None else "")]


def _split_lines(plan: Plan) -> Iterator[str]:
    for split in plan.splits:
        if split.refusal:
            yield f"TP={split.ranks}: model does not apply: {split.refusal}"
        elif split.stop:
            yield f"TP={split.ranks}: model does not apply, memory alone is counted: {split.stop}"
        yield from (f"TP={split.ranks}: {note}" for note in split.notes)


def _model(
    base: Model | None,
    *,
    weight_bits: float | None,
    **given: int | None,
) -> Model:
    """The model of --config with what options change, or of options alone. Raises `UsageError`."""
    changes = {name: value for name, value in given.items() if value is not None}
    if base is None:
        missing = [name for name in ("hidden", "layers", "heads", "mlp") if name not in changes]
        if missing:
            raise UsageError(f"give --config FILE, or also {', '.join('--' + name for name in missing)}")
        hidden, heads = changes["hidden"], changes["heads"]
        changes = {"kv_heads": heads, "head_size": hidden // heads} | changes
        base = Model(shape=Shape(**changes))
    else:
        base = replace(base, shape=replace(base.shape, **changes))
    shape = base.shape
    if shape.heads % shape.kv_heads or shape.head_size < 1:
        raise UsageError(
            f"{shape.heads} heads of {shape.head_size} cannot share {shape.kv_heads} KV heads: check --heads, "
            "--kv-heads and --hidden"
        )
    return base if weight_bits is None else replace(base, weight_bits=weight_bits)


def _element(option: str, name: str | None) -> int | None:
    try:
        return None if name is None else element_bytes(name)
    except BadConfig as error:
        raise UsageError(f"{option}: {error}") from None


def _flops_per_s(shape: Shape, a: str | None, tflops: float | None, a_from: Path | None) -> float | None:
    if sum(one is not None for one in (a, tflops, a_from)) > 1:
        raise UsageError("--a, --a-from and --tflops exclude one another: each tells t_proj,1")
    if a is not None:
        return shape.layers * shape.projection_flops(1) / _duration("--a", a)
    return None if tflops is None else tflops * 1e12


def _fabric(alpha: str | None, bandwidth: float | None, nccl: list[Path] | None) -> Fabric | None:
    if nccl and (alpha is not None or bandwidth is not None):
        raise UsageError("--nccl excludes --alpha and --bandwidth: measured times stand in their place")
    if (alpha is None) != (bandwidth is None):
        raise UsageError("--alpha and --bandwidth go together: τ_AR = α_p + 2(p−1)S/(p·B_p)")
    if alpha is None or bandwidth is None:
        return None
    return Fabric(alpha_s=_duration("--alpha", alpha, least=0.0), bus_bytes_per_s=bandwidth * 1e9)


def _duration(option: str, text: str, *, least: float | None = None) -> float:
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not (seconds > 0 if least is None else seconds >= least) or seconds == float("inf"):
        raise UsageError(f"{option} {text}: not above 0")
    return seconds


def _counts(option: str, text: str) -> list[int]:
    """Whole numbers between commas, ascending."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise UsageError(f"{option} {text}: write whole numbers from 1 with commas between them, such as 2,4,8")
    return sorted({int(part) for part in parts})
