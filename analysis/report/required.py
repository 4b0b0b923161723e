"""Whether a required rate is kept, in the sentence that a gate begins with."""

from __future__ import annotations

from analysis.report.types import Conditions, Requirement
from analysis.search import Outcome, exit_code
from analysis.search.intervals import pass_share_bound

__all__ = ["requirement"]


def requirement(outcome: Outcome, rate: float, conditions: Conditions) -> Requirement:
    """KEPT or BROKEN where `exit_code` is 0 or 1; the words say what was proved, and with how many runs."""
    match exit_code(outcome, rate):
        case 0:
            return Requirement(rate=rate, verdict="KEPT", words=_kept(outcome, rate, conditions))
        case 1:
            return Requirement(rate=rate, verdict="BROKEN", words=_broken(outcome, rate, conditions))
        case _:
            made = f"{_made(outcome, rate)} of {conditions.runs} fresh {_word(conditions)}s are valid"
            words = (
                f"CANNOT TELL whether {rate:.4g} requests/s keeps the SLO: {outcome.name}: {outcome.reason}; {made}."
            )
            return Requirement(rate=rate, verdict="CANNOT_TELL", words=words)


def _kept(outcome: Outcome, rate: float, conditions: Conditions) -> str:
    runs, word = conditions.runs, _word(conditions)
    at = f" at {outcome.proved:.4g}/s" if outcome.proved is not None and outcome.proved != rate else ""
    share = f"; at 95 % confidence at least {pass_share_bound(runs):.0%} of such runs would pass" * (word == "run")
    return f"KEPT: {rate:.4g} requests/s keeps the SLO: {runs} of {runs} fresh {word}s passed{at}{share}."


def _broken(outcome: Outcome, rate: float, conditions: Conditions) -> str:
    failed = next(
        row for row in (*outcome.proofs, *outcome.rates) if row.rate == outcome.upper and row.status == "FAIL"
    )
    at = "" if failed.rate == rate else f"already {failed.rate:.4g}/s fails, "
    fresh = _made(outcome, failed.rate)
    made = (
        f"fresh {_word(conditions)} {fresh} of {conditions.runs} showed it" if fresh else "an exploring run showed it"
    )
    return f"BROKEN: {rate:.4g} requests/s does not keep the SLO: {at}{failed.reason}; {made}."


def _made(outcome: Outcome, rate: float) -> int:
    """Valid fresh runs."""
    return next((row.runs for row in outcome.proofs if row.rate == rate), 0)


def _word(conditions: Conditions) -> str:
    """Blocks of one history, or repeats of one window, are not independent runs."""
    return "run" if conditions.replicates == "replicate" else conditions.replicates
