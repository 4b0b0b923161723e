"""`loadgen tp diagnose`: the first link, from shapes to load, that explains why tensor parallelism does not pay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from analysis.tp.chain import Facts, Link, Load, explain, verdict
from analysis.tp.path import BadTopology, NcclLog, Topology, read_nccl_log, read_topology
from loadgen import load
from loadgen.cli.options import Json
from loadgen.cli.output import print_json, print_lines
from loadgen.cli.tpnccl import measured_times
from loadgen.cli.tpprofile import Config, read_model, read_profile, read_token_times
from loadgen.common.errors import UsageError

__all__ = ["DIAGNOSE", "diagnose_command"]

DIAGNOSE: Final = "Example: loadgen tp diagnose --tp 4 --config config.json --topo topo.txt --profile rank0.json.gz"
_MAX_TOPO_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What `tp diagnose --json` prints."""

    verdict: str
    links: tuple[Link, ...]


def _file(option: str, text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(option, help=text, show_default=False)
    return found


def diagnose_command(
    tp: Annotated[int, typer.Option("--tp", min=2, help="Ranks of the server, p.", show_default=False)],
    config: Config = None,
    topo: Annotated[Path | None, _file("--topo", "Output of nvidia-smi topo -m.")] = None,
    nccl_log: Annotated[Path | None, _file("--nccl-log", "The server's log under NCCL_DEBUG=INFO.")] = None,
    nccl: Annotated[Path | None, _file("--nccl", "Output of nccl-tests' all_reduce_perf.")] = None,
    profile: Annotated[str | None, _file("--profile", "PyTorch trace of one rank.")] = None,
    a_from: Annotated[Path | None, _file("--a-from", "Output of tp profile --json of a TP=1 trace.")] = None,
    results: Annotated[Path | None, _file("--results", "Results of a sweep or run of this server.")] = None,
    as_json: Json = False,
) -> None:
    """Go from shapes and links to load, and stop at the first link that explains a poor TP server."""
    model = None if config is None else read_model(config)
    shape = None if model is None else model.shape
    links = explain(
        Facts(
            ranks=tp,
            shape=shape,
            inapplicable=() if model is None else model.inapplicable,
            topology=None if topo is None else _topology(topo),
            log=None if nccl_log is None else _nccl_log(nccl_log),
            nccl=None if nccl is None else measured_times("--nccl", nccl),
            profile=None if profile is None else read_profile(profile, shape),
            alone=None if a_from is None else read_token_times(a_from),
            load=None if results is None else _load(results),
        )
    )
    if as_json:
        print_json(Diagnosis(verdict=verdict(links), links=links))
        return
    print_lines(verdict(links), *(f"{at} {link.name}: {link.state}: {link.text}" for at, link in enumerate(links, 1)))


def _topology(path: Path) -> Topology:
    try:
        with path.open("rb") as stream:
            return read_topology(stream.read(_MAX_TOPO_BYTES).decode("utf-8", "replace"))
    except (OSError, BadTopology) as error:
        raise _fault("--topo", path, error) from None


def _nccl_log(path: Path) -> NcclLog:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return read_nccl_log(lines)
    except (OSError, BadTopology) as error:
        raise _fault("--nccl-log", path, error) from None


def _fault(option: str, path: Path, error: Exception) -> UsageError:
    what = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"{option} {path}: {what}")


def _load(directory: Path) -> Load:
    """The run to look at: one of the lowest failing rate, else of the highest."""
    measured = load(directory)
    lines = [line for line in measured.ledger if line.verdict.status != "INVALID"]
    if not lines:
        raise UsageError(f"--results {directory}: no valid run in it yet")
    failed = [line for line in lines if line.verdict.status == "FAIL"]
    line = min(failed, key=lambda one: one.verdict.rate) if failed else max(lines, key=lambda one: one.verdict.rate)
    balance = line.verdict.balance
    return Load(
        rate=line.verdict.rate,
        server=line.verdict.server,
        ttft_s=line.verdict.summary.get("ttft_from_sent_s", {}).get("mean"),
        by_replica=() if balance is None else tuple(row.requests for row in balance.replicas),
    )
