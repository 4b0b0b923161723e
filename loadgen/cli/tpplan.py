"""`loadgen tp plan`: what p ranks cost and save by the screening model, and whether the model fits a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from analysis.tp.config import BadConfig, Model, element_bytes
from analysis.tp.cost import Fabric, Shape
from analysis.tp.plan import Budget, make_plan
from analysis.tp.steptimes import Costs
from analysis.units import parse_duration_s
from loadgen.cli.options import Json
from loadgen.cli.output import print_json
from loadgen.cli.tpnccl import InPlace, by_ranks
from loadgen.cli.tpplanview import print_plan
from loadgen.cli.tpprofile import ActDtype, Config, Hidden, Layers, read_model, read_token_times
from loadgen.common.errors import UsageError

__all__ = ["PLAN", "plan_command"]

PLAN: Final = "Example: loadgen tp plan --config config.json --tflops 120 --alpha 8us --bandwidth 150 --memory 80"
_MODEL: Final = "Model"
_COSTS: Final = "Times"
_MEMORY: Final = "Memory"
_MOST: Final = 1 << 30
_LARGEST: Final = 1 << 32  # of a dimension, as in a config.json
_SHORTEST_S, _LONGEST_S = 1e-15, 1e6  # of a
_HIGHEST: Final = 1e12  # of TFLOP/s, GB and GB/s: far above any, far below what a float holds


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
    _finite({"--tflops": tflops, "--bandwidth": bandwidth, "--memory": memory, "--runtime": runtime,
             "--weight-bits": weight_bits})  # fmt: skip
    if in_place and not nccl:
        raise UsageError("--in-place chooses between the times of --nccl: give --nccl FILE, or leave it out")
    if model.inapplicable:
        where = f"--config {config}: " if config is not None else ""
        raise UsageError(f"{where}model does not apply: {'; '.join(model.inapplicable)}")
    costs = Costs(
        flops_per_s=_flops_per_s(model.shape, a, tflops, a_from),
        projections=None if a_from is None else read_token_times(a_from),
        fabric=_fabric(alpha, bandwidth, nccl),
        measured=by_ranks("--nccl", nccl, in_place=in_place) if nccl else {},
        other_s=_duration("--other", other),
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
    print_plan(plan, costs, budget, nccl or [])


def _model(
    base: Model | None,
    *,
    weight_bits: float | None,
    **given: int | None,
) -> Model:
    """The model of --config with what options change, or of options alone. Raises `UsageError`."""
    changes = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        if value >= _LARGEST:
            raise UsageError(f"--{name.replace('_', '-')} {value}: no dimension of a model; check the number")
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
        return shape.layers * shape.projection_flops(1) / _duration("--a", a, least=_SHORTEST_S)
    return None if tflops is None else tflops * 1e12


def _finite(given: Mapping[str, float | None]) -> None:
    for option, value in given.items():
        if value is not None and not value <= _HIGHEST:
            raise UsageError(f"{option} {value:g}: above {_HIGHEST:g}; check the number and its unit")


def _fabric(alpha: str | None, bandwidth: float | None, nccl: list[Path] | None) -> Fabric | None:
    if nccl and (alpha is not None or bandwidth is not None):
        raise UsageError("--nccl excludes --alpha and --bandwidth: measured times stand in their place")
    if (alpha is None) != (bandwidth is None):
        raise UsageError("--alpha and --bandwidth go together: τ_AR = α_p + 2(p−1)S/(p·B_p)")
    if alpha is None or bandwidth is None:
        return None
    return Fabric(alpha_s=_duration("--alpha", alpha), bus_bytes_per_s=bandwidth * 1e9)


def _duration(option: str, text: str, *, least: float = 0.0) -> float:
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not least <= seconds <= _LONGEST_S:
        raise UsageError(f"{option} {text}: not between {least:g} and {_LONGEST_S:g} seconds")
    return seconds


def _counts(option: str, text: str) -> list[int]:
    """Whole numbers between commas, ascending."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 and int(part) for part in parts):
        raise UsageError(f"{option} {text}: write whole numbers from 1 with commas between them, such as 2,4,8")
    return sorted({int(part) for part in parts})
