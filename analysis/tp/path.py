"""The path between GPUs: the table of `nvidia-smi topo -m`, and the lines of NCCL's log (`NCCL_DEBUG=INFO`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from analysis.text import bounded

__all__ = ["BadTopology", "NcclLog", "Topology", "read_nccl_log", "read_topology"]

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU: Final = re.compile(r"GPU\d+$")
_LINK: Final = re.compile(r"(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)$")
_CHANNEL: Final = re.compile(r"NCCL INFO (?:Channel|Ring) .*?(\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (\S+)")
_RANKS: Final = re.compile(r"NCCL INFO .*\bnranks (\d+)\b", re.IGNORECASE)
_WARNING: Final = re.compile(r"NCCL WARN (.*)")
_MAX_GPUS: Final = 256


class BadTopology(ValueError):
    """A file that is no output of `nvidia-smi topo -m`, or no NCCL log; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`links[i, j]` (i < j) of the first GPU to the second: NV#, PIX, PXB, PHB, NODE or SYS, as nvidia-smi says."""

    gpus: int
    links: Mapping[tuple[int, int], str]

    def among(self, ranks: int) -> dict[tuple[int, int], str]:
        """The links of the first `ranks` GPUs to one another."""
        return {pair: link for pair, link in self.links.items() if pair[1] < ranks}


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLog:
    """Transports of the channels (`P2P/CUMEM`, `SHM/direct`, `NET/Socket/0`, …) by how many, and what else it says."""

    transports: Mapping[str, int]
    ranks: tuple[int, ...]  # of its communicators
    nvls: bool  # multicast through the NVLink switch
    warnings: int
    warning: str  # the first


def read_topology(text: str) -> Topology:
    """The table of `nvidia-smi topo -m`. Raises `BadTopology`."""
    names: list[str] = []
    rows: dict[int, list[str]] = {}
    for line in _ESCAPE.sub("", text).splitlines():
        cells = line.split()
        if not names:
            names = cells if cells and all(_GPU.match(one) for one in cells[:1]) else []
            names = [one for one in names if _GPU.match(one)]
        elif cells and cells[0] in names:
            rows[names.index(cells[0])] = cells[1 : 1 + len(names)]
    if not names:
        raise BadTopology("no row of GPU names in it: pass the output of nvidia-smi topo -m")
    if len(names) > _MAX_GPUS:
        raise BadTopology(f"{len(names)} GPUs: pass the output of nvidia-smi topo -m")
    links = {}
    for first in range(len(names)):
        cells = rows.get(first, [])
        if len(cells) < len(names):
            raise BadTopology(f"the row of {names[first]} is missing or short: pass the whole of nvidia-smi topo -m")
        for second in range(first + 1, len(names)):
            if not _LINK.match(cells[second]):
                raise BadTopology(f"{names[first]} to {names[second]} is {bounded(cells[second], 20)}: no known link")
            links[first, second] = cells[second]
    return Topology(gpus=len(names), links=links)


def read_nccl_log(lines: Iterable[str]) -> NcclLog:
    """What a log written with `NCCL_DEBUG=INFO` says of paths. Raises `BadTopology` where it has no line of NCCL's."""
    transports: Counter[str] = Counter()
    ranks: set[int] = set()
    nvls, seen, warnings, warning = False, False, 0, ""
    for line in lines:
        if "NCCL INFO" not in line and "NCCL WARN" not in line:
            continue
        line, seen = line[:2000], True
        if (channel := _CHANNEL.search(line)) is not None:
            transports[bounded(channel[3], 40)] += 1
        elif (found := _RANKS.search(line)) is not None:
            ranks.add(int(found[1][:9]))
        elif (said := _WARNING.search(line)) is not None:
            warnings += 1
            warning = warning or bounded(said[1], 120)
        nvls = nvls or ("NVLS" in line and "NVLS multicast support is available" in line) or "Connected NVLS" in line
    if not seen:
        raise BadTopology("no NCCL INFO line in it: start the server with NCCL_DEBUG=INFO and pass its log")
    return NcclLog(
        transports=dict(transports), ranks=tuple(sorted(ranks)), nvls=nvls, warnings=warnings, warning=warning
    )
