"""Raw exchanges with a real server, which lie beside the repository where they are kept at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CAPTURES = Path(__file__).resolve().parents[2].parent / "shared" / "captures" / "vllm_0.32.0"
_LINE = re.compile(rb"\[ *([0-9.]+)\] \[ *(\d+)\] (.*)", re.DOTALL)


def captured_reads(name: str) -> list[tuple[int, bytes]]:
    """Each recv() of one exchange: ns after the request was sent, and its bytes. Skips the test if there is none."""
    path = CAPTURES / f"{name}.txt"
    if not path.exists():
        pytest.skip("no captures beside the repository")
    reads: dict[int, list[bytes]] = {}
    stamp: dict[int, int] = {}
    for line in path.read_bytes().split(b"\n"):
        match = _LINE.fullmatch(line)
        if match:
            number = int(match[2])
            reads.setdefault(number, []).append(match[3][:-2] + b"\r" if match[3].endswith(b"\\r") else match[3])
            stamp[number] = round(float(match[1]) * 1e6)
    return [(stamp[number], b"\n".join(lines)) for number, lines in reads.items()]
