"""`loadgen tp nccl`: all-reduce times that nccl-tests measured, and α_p and B_p fitted to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TextIO

import typer

from analysis.report.tables import Table
from analysis.tp.allreduce import FabricFit, Microbenchmark, NotFitted, fit_fabric, joined
from analysis.tp.nccl import BadNccl, NcclRun, read_nccl
from loadgen.cli.options import Json
from loadgen.cli.output import print_json, print_lines, print_tables
from loadgen.common.errors import UsageError

__all__ = ["NCCL", "InPlace", "by_ranks", "fit_line", "measured_times", "nccl_command", "read_nccl_file"]

NCCL: Final = "Example: loadgen tp nccl all_reduce_tp2.txt all_reduce_tp4.txt"
_MAX_LINE: Final = 1 << 16
_ROUGH: Final = 0.2  # relative error beyond which one α and one B do not describe the times

InPlace = Annotated[bool, typer.Option("--in-place", help="Take in-place times, not out-of-place ones.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclFile:
    """A file and what it holds."""

    file: str
    run: NcclRun


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclFit:
    """Times of one number of ranks from all files, and the fit to them; or why there is none."""

    measured: Microbenchmark | None
    fit: FabricFit | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclDocument:
    """What `tp nccl --json` prints."""

    kind: Literal["tp-nccl"] = "tp-nccl"
    format: int = 1
    in_place: bool
    files: tuple[NcclFile, ...]
    fits: tuple[NcclFit, ...]


def nccl_command(
    files: Annotated[list[Path], typer.Argument(help="Outputs of all_reduce_perf.", show_default=False)],
    in_place: InPlace = False,
    as_json: Json = False,
) -> None:
    """Read nccl-tests' all_reduce_perf: times by size, warnings, and α_p and B_p with their residuals."""
    read = [NcclFile(file=str(path), run=read_nccl_file("", path)) for path in files]
    fits = tuple(_fits([one.run for one in read], in_place=in_place))
    if as_json:
        print_json(NcclDocument(in_place=in_place, files=tuple(read), fits=fits))
        return
    for one in read:
        print_lines(*_file_lines(one))
    for fit in fits:
        if fit.measured is not None:
            print_tables(_table([one.run for one in read], fit, in_place=in_place))
            said = {text for one in read for text in one.run.warnings}
            print_lines(*(f"warning: {text}" for text in fit.measured.warnings if text not in said))
        print_lines(fit.why if fit.fit is None or fit.measured is None else fit_line(fit.measured.ranks, fit.fit))


def read_nccl_file(option: str, path: Path) -> NcclRun:
    """A file's rows. Raises `UsageError` in one line, which begins with the option, if there is one."""
    where = f"{option} {path}".strip()
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return read_nccl(_lines(stream))
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except BadNccl as error:
        raise UsageError(f"{where}: {error}") from None


def measured_times(option: str, path: Path, *, in_place: bool = False) -> Microbenchmark:
    """A file's times by size. Raises `UsageError` in one line, also for wrong results."""
    run = read_nccl_file(option, path)
    try:
        return run.measured(in_place=in_place)
    except BadNccl as error:
        raise UsageError(f"{option} {path}: {error}") from None


def by_ranks(option: str, files: Sequence[Path], *, in_place: bool) -> dict[int, Microbenchmark]:
    """Times of several files by their number of ranks. Raises `UsageError` in one line."""
    parts: dict[int, list[Microbenchmark]] = {}
    for path in files:
        measured = measured_times(option, path, in_place=in_place)
        if measured.ranks is None:
            raise UsageError(f"{option} {path}: the number of ranks is not known: pass the output with its header")
        parts.setdefault(measured.ranks, []).append(measured)
    return {ranks: joined(several) for ranks, several in sorted(parts.items())}


def fit_line(ranks: int | None, fit: FabricFit) -> str:
    """α_p, B_p and their residuals in one sentence."""
    rough = (
        "; one α and one B do not describe these times (NCCL changes its protocol with the size): use the times"
        if fit.largest > _ROUGH
        else ""
    )
    return (
        f"p = {ranks}: α_p = {fit.fabric.alpha_s * 1e6:.2f} µs, B_p = {fit.fabric.bus_bytes_per_s / 1e9:.1f} GB/s of "
        f"the screening model, by least squares over relative errors of {fit.sizes} sizes; residuals: rms "
        f"{fit.rms:.1%}, largest {fit.largest:.1%} at {fit.largest_at_bytes} B{rough}"
    )


def _lines(stream: TextIO) -> Iterator[str]:
    """Lines of bounded length, whatever the file is."""
    while line := stream.readline(_MAX_LINE):
        yield line


def _fits(runs: Sequence[NcclRun], *, in_place: bool) -> Iterator[NcclFit]:
    parts: dict[int, list[Microbenchmark]] = {}
    for run in runs:
        try:
            measured = run.measured(in_place=in_place)
        except BadNccl as error:
            yield NcclFit(measured=None, fit=None, why=f"p = {run.ranks or '?'}: no fit: {error}")
            continue
        parts.setdefault(measured.ranks or 0, []).append(measured)
    for ranks, several in sorted(parts.items()):
        times = joined(several)
        try:
            yield NcclFit(measured=times, fit=fit_fabric(times), why="")
        except NotFitted as error:
            yield NcclFit(measured=times, fit=None, why=f"p = {ranks or '?'}: no fit: {error}")


def _file_lines(one: NcclFile) -> list[str]:
    run = one.run
    sizes = sorted(row.size_bytes for row in run.rows)
    lines = [f"{one.file}: {run.ranks or 'unknown'} ranks, {len(run.rows)} rows, {sizes[0]} to {sizes[-1]} B"]
    if run.wrong:
        lines.append(f"WRONG RESULTS in {one.file}: {run.wrong} elements; the links corrupt data, no time counts")
        lines += [f"  line {row.line}: {row.wrong} wrong at {row.size_bytes} B" for row in run.rows if row.wrong][:5]
    return [*lines, *(f"warning: {one.file}: {text}" for text in run.warnings)]


def _table(runs: Sequence[NcclRun], fit: NcclFit, *, in_place: bool) -> Table:
    assert fit.measured is not None
    ranks = fit.measured.ranks
    singles = _singles(runs, ranks, in_place=in_place)
    columns = ["S, B", "τ_AR, µs"]
    columns += ["p99, µs", "cv, %"] if singles else []
    columns += ["model, µs", "error, %"] if fit.fit is not None else []
    rows = []
    for size, took in fit.measured.times:
        cells = [str(size), f"{took * 1e6:.2f}"]
        if singles:
            p99_s, spread = singles.get(size, (None, None))
            cells += ["" if p99_s is None else f"{p99_s * 1e6:.2f}", "" if spread is None else f"{spread * 100:.1f}"]
        if fit.fit is not None and ranks is not None:
            model_s = fit.fit.fabric.all_reduce_s(size, ranks)
            cells += [f"{model_s * 1e6:.2f}", f"{100 * (model_s / took - 1):+.1f}"]
        rows.append(tuple(cells))
    side = "in-place" if in_place else "out-of-place"
    return Table(
        title=f"All-reduce of {ranks or 'an unknown number of'} ranks, {side}",
        columns=tuple(columns),
        rows=tuple(rows),
        left=frozenset(),
    )


def _singles(
    runs: Sequence[NcclRun], ranks: int | None, *, in_place: bool
) -> Mapping[int, tuple[float | None, float | None]]:
    """p99 and spread of single iterations by size, where a file has them (-I)."""
    found: dict[int, tuple[float | None, float | None]] = {}
    for run in runs:
        for row in run.used() if run.ranks == ranks else ():
            side = row.in_place if in_place else row.out_of_place
            if side is not None and side.p99_s is not None:
                found[row.size_bytes] = (side.p99_s, side.spread)
    return found
