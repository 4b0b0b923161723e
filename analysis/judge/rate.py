"""PASS, FAIL or INCOMPLETE: a rate over its runs (method, section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from analysis.judge.text import error_text, named, rise_text
from analysis.stationarity import RATE_Z, Drift, rate_drift
from analysis.verdict import Criteria, RateVerdict, RunVerdict

__all__ = ["judge_rate"]


def judge_rate(rate: float, verdicts: Sequence[RunVerdict], criteria: Criteria, needed: int) -> RateVerdict:
    """All that the runs at one rate say together: FAIL at the first FAIL, PASS from `needed` passes on.

    Drift and errors of all runs together are tested once, when `needed` runs are there: a test after every run would
    multiply its false alarms. INVALID runs are evidence for nothing and are left out of the envelope. Those that only
    evidence gates held back still take part in those two tests, which can fail a rate and pass none: thin evidence
    excuses no overload.
    """
    valid = [verdict for verdict in verdicts if verdict.status != "INVALID"]
    measured = [verdict for verdict in verdicts if verdict.status != "INVALID" or verdict.blame == "evidence"]
    # an early stop cuts the window short, and its slope is not one of the same kind
    whole = [verdict for verdict in measured if not verdict.attainment_is_bound]
    drift, waiting = _together(whole, "drift"), _together(whole, "waiting")
    status, reason = _decided(valid, measured, criteria, needed, named(drift, waiting))
    return RateVerdict(
        rate=rate,
        status=status,
        reason=reason,
        runs=len(valid),
        attain_min=min((v.attainment for v in valid), default=None),
        attain_max=max((v.attainment for v in valid), default=None),
        drift_ratio=drift.ratio if drift else None,
        drift_z=drift.z if drift else None,
        waiting_ratio=waiting.ratio if waiting else None,
        waiting_z=waiting.z if waiting else None,
    )


def _decided(
    valid: Sequence[RunVerdict],
    measured: Sequence[RunVerdict],
    criteria: Criteria,
    needed: int,
    rises: Iterable[tuple[str, Drift]],
) -> tuple[Literal["PASS", "FAIL", "INCOMPLETE"], str]:
    """Status and reason."""
    failed = next((verdict for verdict in valid if verdict.status == "FAIL"), None)
    if failed is not None:
        return "FAIL", failed.reason
    if len(measured) >= needed:
        together = f"in {len(measured)} runs together " if len(measured) > 1 else ""
        for what, rise in rises:
            if rise.rises(RATE_Z):
                return "FAIL", f"{together}{rise_text(what, rise, RATE_Z)}"
        total, wrong = sum(v.cohort for v in measured), sum(v.errors + v.unresolved for v in measured)
        if wrong > criteria.max_error_rate * total:
            return "FAIL", f"{together}{error_text(wrong, total, criteria)}"
    if len(valid) >= needed:
        return "PASS", ""
    return "INCOMPLETE", f"{len(valid)} of {needed} runs passed so far"


def _together(runs: Sequence[RunVerdict], kind: Literal["drift", "waiting"]) -> Drift | None:
    known = [
        Drift(ratio=ratio, z=z)
        for run in runs
        for ratio, z in [(run.drift_ratio, run.drift_z) if kind == "drift" else (run.waiting_ratio, run.waiting_z)]
        if ratio is not None and z is not None
    ]
    return rate_drift(known)
