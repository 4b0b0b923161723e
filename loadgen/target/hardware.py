"""What the cards of this machine are, for a server that runs on it: asked of nvidia-smi once, before any load."""

from __future__ import annotations

import ipaddress
import re
import socket
import subprocess
from typing import Final
from urllib.parse import urlsplit

import anyio

from analysis.text import bounded

__all__ = ["is_local", "local_hardware"]

TIMEOUT_S: Final = 20.0
_QUERY: Final = "index,name,driver_version,memory.total,power.limit,clocks.max.sm,pci.bus_id"
_CHARS: Final = 4000  # a topology matrix of 8 cards is 1,500
_CUDA: Final = re.compile(r"CUDA Version: *([\d.]+)")


async def local_hardware(url: str) -> dict[str, str]:
    """Cards, driver, CUDA and topology of the machine that serves `url`; what cannot be known says why."""
    if not is_local(url):
        return {"gpu": "not measured (the server is on another machine)"}
    cards = await _ask("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader")
    if cards is None:
        return {"gpu": "not measured (no nvidia-smi on this machine)"}
    facts = {f"gpu.{number}": bounded(line.strip()) for number, line in enumerate(cards.splitlines()) if line.strip()}
    cuda = _CUDA.search(await _ask("nvidia-smi") or "")
    facts["cuda"] = cuda[1] if cuda else "not measured"
    facts["topology"] = bounded(await _ask("nvidia-smi", "topo", "-m") or "not measured", _CHARS)
    return facts


def is_local(url: str) -> bool:
    """Whether the URL's host is this machine, without asking any name server."""
    parts = urlsplit(url)
    if "unix" in parts.scheme or parts.hostname in ("localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return False
    if address.is_loopback:
        return True
    try:
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))  # only an address of our own can be bound
    except OSError:
        return False
    return True


async def _ask(*command: str) -> str | None:
    """What a program prints; `None` where it is absent, fails or does not end in time."""
    try:
        with anyio.fail_after(TIMEOUT_S):
            ended = await anyio.run_process(command, stderr=subprocess.DEVNULL)
    except (OSError, TimeoutError, subprocess.CalledProcessError):
        return None
    return ended.stdout.decode(errors="replace")
