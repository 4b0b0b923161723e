"""`loadgen tp profile`: steps, collectives and GEMMs of a PyTorch trace, against the model of tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from analysis.report.tables import Table
from analysis.tp.against import Comparison, Expected, compare, token_times
from analysis.tp.chrome import Malformed
from analysis.tp.config import BadConfig, Model, element_bytes, model_of_config
from analysis.tp.cost import Shape
from analysis.tp.kineto import read_kineto
from analysis.tp.profile import Profile, summarise
from analysis.tp.types import TokenTimes
from analysis.units import format_duration
from loadgen.cli.options import Json
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.common.documents import read
from loadgen.common.errors import ResultsError, UsageError
from traces.errors import TraceError
from traces.source import open_source

__all__ = ["PROFILE", "profile_command", "read_model", "read_profile", "read_token_times"]

PROFILE: Final = "Example: loadgen tp profile rank0.pt.trace.json.gz --config config.json"
_MAX_CONFIG_BYTES: Final = 16 << 20
_SHOWN: Final = 12  # rows of a table
_MOST_TOKENS: Final = 1 << 32  # of a step
_LONGEST_S: Final = 1e6  # of a step

Layers = Annotated[int | None, typer.Option(min=1, help="L, over that of --config.", show_default=False)]
Hidden = Annotated[int | None, typer.Option(min=1, help="H, over that of --config.", show_default=False)]
ActDtype = Annotated[
    str | None, typer.Option("--act-dtype", help="Type of activations, over that of --config.", show_default=False)
]
Config = Annotated[
    Path | None, typer.Option("--config", help="The model's config.json (Hugging Face).", show_default=False)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDocument:
    """What `tp profile --json` prints. `token_times` is t_proj,1 by T; null if more than one rank was profiled."""

    kind: Literal["tp-profile"] = "tp-profile"
    format: int = 1
    verdict: str
    comparison: Comparison
    profile: Profile
    token_times: TokenTimes | None


def profile_command(
    file: Annotated[str, typer.Argument(help="The trace of one rank; gzip and zstd are seen through.")],
    config: Config = None,
    layers: Layers = None,
    hidden: Hidden = None,
    act_dtype: ActDtype = None,
    as_json: Json = False,
) -> None:
    """Read a PyTorch (Kineto) trace: collectives and GEMMs of each step, against 2L calls of T·H·e_a bytes."""
    model = None if config is None else read_model(config)
    shape = None if model is None else model.shape
    try:
        given = None if act_dtype is None else element_bytes(act_dtype)
    except BadConfig as error:
        raise UsageError(f"--act-dtype: {error}") from None
    expected = Expected(
        layers=layers or (shape.layers if shape else None),
        hidden=hidden or (shape.hidden if shape else None),
        element_bytes=given or (shape.activation_bytes if shape else None),
        inapplicable=() if model is None else model.inapplicable,
    )
    profile = read_profile(file, shape)
    comparison = compare(profile, expected)
    alone = not profile.collectives
    times = token_times(profile) if alone else None
    if as_json:
        print_json(
            ProfileDocument(verdict=comparison.verdict, comparison=comparison, profile=profile, token_times=times)
        )
        return
    print_lines(comparison.verdict, *_lines(profile))
    tables = [_collective_table(profile)] if profile.collectives else []
    print_tables(*tables, *([_gemm_table(profile)] if profile.gemms else []))
    if times is not None:
        print_tables(_token_table(times))
        print_lines(f"a = t_proj,1/T = {times.per_token_s * 1e6:.4g} µs a token; --json writes it for tp plan --a-from")


def read_model(path: Path) -> Model:
    """The model of a config.json. Raises `UsageError` in one line."""
    try:
        with path.open("rb") as stream:
            return model_of_config(stream.read(_MAX_CONFIG_BYTES))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except BadConfig as error:
        raise UsageError(f"--config {path}: {error}") from None


def read_profile(file: str, shape: Shape | None) -> Profile:
    """A rank's trace, read in bounded memory. Raises `UsageError` in one line."""
    try:
        with open_source(file) as source:
            recorded = read_kineto(source.pieces())
    except Malformed as error:
        raise UsageError(f"{file}: {error}") from None
    except TraceError as error:  # its remedies are for traces of requests
        raise UsageError(f"{error.path}: {error.what}: profile again, or copy the file again") from None
    profile = summarise(recorded, vocab=0 if shape is None else shape.vocab)
    if not profile.collectives and not profile.gemms and not profile.unshaped_gemms:
        raise UsageError(
            f"{file}: {profile.events} events, but neither collectives nor GEMMs: profile while it computes"
        )
    return profile


def read_token_times(path: Path) -> TokenTimes:
    """t_proj,1 by T of a stored `tp profile --json`. Raises `UsageError` in one line."""
    where = f"--a-from {path}"
    try:
        times = read(path, ProfileDocument).token_times
    except ResultsError as error:
        raise UsageError(f"{where}: pass what loadgen tp profile --json printed of a TP=1 trace ({error})") from None
    if times is None:
        raise UsageError(
            f"{where}: no projection times in it: profile a TP=1 server, with shapes (record_shapes, eager)"
        )
    tokens = [one for one, _ in times.pairs]
    plausible = all(0 < one <= _MOST_TOKENS and 0 < took <= _LONGEST_S for one, took in times.pairs)
    if not tokens or not plausible or any(high <= low for low, high in pairwise(tokens)):
        raise UsageError(f"{where}: token_times are not positive pairs of ascending T and seconds: profile again")
    return times


def _lines(profile: Profile) -> list[str]:
    rank = "" if profile.rank is None else f"rank {profile.rank}"
    of = "" if profile.ranks is None else f"{profile.ranks} ranks"
    where = "kernels" if profile.on_device else "operators of a CPU"
    said = [", ".join(text for text in (rank, of, f"{profile.events} events", where) if text)]
    steps = profile.steps
    if not steps:
        said.append("steps: not recognised")
    else:
        took = sum(step.took_s for step in steps) / len(steps)
        tokens = sorted({step.tokens for step in steps if step.tokens is not None})
        span = "T unknown" if not tokens else f"T = {tokens[0]}" + (f" to {tokens[-1]}" if len(tokens) > 1 else "")
        said.append(f"steps: {len(steps)} by {profile.steps_by}, {span}, {format_duration(took)} each on average")
        total, exposed = sum(s.collective_s for s in steps), sum(s.exposed_s for s in steps)
        if profile.collectives:
            part = f" ({exposed / total:.0%})" if total else ""
            said.append(
                f"collectives a step: {format_duration(total / len(steps))} in sum, of which "
                f"{format_duration(exposed / len(steps))}{part} on the critical path, waits for the slowest rank "
                "included"
            )
        spent = sum(step.projection_s for step in steps) / len(steps)
        said.append(f"projections a step: {format_duration(spent)}" if spent else "projections a step: unknown")
    if profile.unshaped_gemms:
        said.append(
            f"{profile.unshaped_gemms} kernels that seem to be GEMMs ({format_duration(profile.unshaped_gemm_s)}) have "
            "no shape: profile with record_shapes and without CUDA graphs (--enforce-eager) to see it"
        )
    return said


def _collective_table(profile: Profile) -> Table:
    return Table(
        title="Collectives",
        columns=("kind", "by", "type", "ranks", "payload, B", "calls", "median, µs", "sum, ms", "exposed, ms"),
        rows=tuple(
            (
                one.kind, one.by, one.element or "?", _or(one.ranks), _or(one.payload_bytes), str(one.calls),
                f"{one.median_s * 1e6:.1f}", f"{one.total_s * 1e3:.3f}", f"{one.exposed_s * 1e3:.3f}",
            )
            for one in profile.collectives[:_SHOWN]
        ),
        left=frozenset({"kind", "by", "type"}),
    )  # fmt: skip


def _gemm_table(profile: Profile) -> Table:
    return Table(
        title="GEMMs, (rows × K)·(K × N)",
        columns=("rows", "N", "K", "type", "calls", "mean, µs", "sum, ms", "TFLOP/s"),
        rows=tuple(
            (
                str(one.rows), str(one.columns), str(one.depth), one.element or "?", str(one.calls),
                f"{one.total_s / one.calls * 1e6:.1f}", f"{one.total_s * 1e3:.3f}", f"{one.flops_per_s / 1e12:.3g}",
            )
            for one in profile.gemms[:_SHOWN]
        ),
        left=frozenset({"type"}),
    )  # fmt: skip


def _token_table(times: TokenTimes) -> Table:
    return Table(
        title="Projections by tokens of a step",
        columns=("mean T", "mean time, ms", "µs a token"),
        rows=tuple((f"{t:.1f}", f"{s * 1e3:.3f}", f"{s / t * 1e6:.3f}") for t, s in times.pairs),
        left=frozenset(),
    )


def _or(value: int | None) -> str:
    return "?" if value is None else str(value)
