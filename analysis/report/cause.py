"""The cause of a failing rate in one line, from its failed runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.slo import Slo
from analysis.units import format_duration
from analysis.verdict import RunVerdict

__all__ = ["cause", "missed_by"]


def missed_by(runs: Sequence[RunVerdict]) -> dict[str, int]:
    """How many requests of the runs break each bound, most first; `failed` ones had no answer to hold against it."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.missed_by)
    return dict(counts.most_common())


def cause(runs: Sequence[RunVerdict], slo: Slo | None, reason: str = "") -> str:
    """Why these runs fail: what decided most of them, with its numbers; `reason` where no run failed by itself."""
    failed = [run for run in runs if run.status == "FAIL"]
    checks = Counter(next((f.check for f in run.findings if f.severity == "block"), "") for run in failed)
    if not checks:
        return reason
    check = checks.most_common(1)[0][0]
    decided = [run for run in failed if any(f.check == check and f.severity == "block" for f in run.findings)]
    if check == "error_rate":
        return _errors(decided)
    if check == "attainment":
        return _misses(decided, slo)
    return decided[0].reason if decided else reason


def _errors(runs: Sequence[RunVerdict]) -> str:
    outcomes: Counter[str] = Counter()
    for run in runs:
        outcomes.update({name: count for name, count in run.outcomes.items() if name != "ok"})
    kinds = ", ".join(f"{count} {name}" for name, count in outcomes.most_common(3))
    words = next((run.error_words for run in runs if run.error_words), "")
    said = f": {words}" if words else ""
    return f"{sum(run.errors for run in runs)} of {sum(run.cohort for run in runs)} requests failed ({kinds}){said}"


def _misses(runs: Sequence[RunVerdict], slo: Slo | None) -> str:
    counts, misses = missed_by(runs), sum(run.misses for run in runs)
    if not counts:
        return runs[0].reason
    bounds = {} if slo is None else slo.bounds()
    named = {name: f"{name} over {format_duration(bounds[name])}" if name in bounds else name for name in counts}
    first, *others = counts
    beside = f" ({', '.join(f'{named[name]} in {counts[name]}' for name in others)})" if others else ""
    words = next((run.error_words for run in runs if run.error_words), "") if first == "failed" else ""
    told = f": {words}" if words else ""
    what = "requests failed" if first == "failed" else named[first]
    total = sum(run.cohort for run in runs)
    return f"{what} in {counts[first]} of {misses} misses{beside}, of {total} requests{told}"
