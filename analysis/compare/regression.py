"""The answer of a gate against a baseline: what gate.json holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.compare.gate import GateAnswer, gate
from analysis.compare.types import VariantRun
from analysis.report.types import Conditions

__all__ = ["Partner", "RegressionAnswer", "RegressionOutcome", "regression"]

RegressionOutcome = Literal[
    "COMPLETE", "UNFINISHED", "BUDGET_EXHAUSTED", "CLIENT_LIMITED", "UNSTABLE_TARGET", "ABORTED"
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """The baseline: where its results were, when it was measured (UTC) and on which target."""

    directory: str
    created: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionAnswer:
    """Whether the target is worse than the baseline; `rate` in requests/s, `pairs` asked for, `sealed` runs in all."""

    format: int = 1
    verdict: Literal["WORSE", "NOT_WORSE", "CANNOT_TELL"]
    words: str
    outcome: RegressionOutcome
    reason: str
    rate: float
    margin: float
    pairs: int
    left_out: int
    sealed: int
    tested: GateAnswer | None  # None: not all runs were made
    baseline: Partner
    conditions: Conditions
    runs: tuple[VariantRun, ...]
    baseline_runs: tuple[VariantRun, ...]
    notes: tuple[str, ...] = ()


def regression(
    *,
    outcome: RegressionOutcome,
    reason: str,
    margin: float,
    pairs: int,
    left_out: int,
    sealed: int,
    rate: float,
    baseline: Partner,
    conditions: Conditions,
    runs: Sequence[VariantRun],
    baseline_runs: Sequence[VariantRun],
    notes: Sequence[str] = (),
) -> RegressionAnswer:
    """The answer from the runs that count and their partners; tested once, when every run that was declared is made.

    Raises `ValueError` as `gate` does.
    """
    tested = None
    if outcome == "COMPLETE" and runs:
        tested = gate(runs, baseline_runs, margin=margin)
    if tested is not None:
        verdict, words = tested.name, f"{tested.name.replace('_', ' ')}: {tested.words}"
    else:
        why = f"{outcome}: {reason}" if reason else "too few pairs are valid"
        verdict, words = "CANNOT_TELL", f"CANNOT TELL: {why}; {len(runs)} of {pairs} pairs are measured."
    return RegressionAnswer(
        verdict=verdict,
        words=words,
        outcome=outcome,
        reason=reason,
        rate=rate,
        margin=margin,
        pairs=pairs,
        left_out=left_out,
        sealed=sealed,
        tested=tested,
        baseline=baseline,
        conditions=conditions,
        runs=tuple(runs),
        baseline_runs=tuple(baseline_runs),
        notes=tuple(notes),
    )
