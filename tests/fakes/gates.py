"""Verdicts about servers from a machine that may be busy with other things.

A late client makes a run INVALID, as it must, and `tests/unit/test_validity.py` and the real-time tests of an
overloaded client prove that it does. Where a test is about the server, the gates on lateness only inform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

ON_LATENESS = frozenset(
    {"send_lag_p99", "send_lag_max", "lag_flips", "heartbeat_p99", "heartbeat_max", "encode", "first_reads"}
)


def relaxed(gates: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """`analysis.validity.gates` with the findings on the client's lateness as information; all others hold."""

    def found(*arguments: Any, **named: Any) -> list[Any]:
        findings = gates(*arguments, **named)
        eased = [replace(one, severity="info") if one.check in ON_LATENESS else one for one in findings]
        return sorted(eased, key=lambda one: one.severity != "block")

    return found
