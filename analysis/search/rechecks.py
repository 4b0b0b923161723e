"""The recheck of a failing rate: its one failing run, repeated with the same seed (method, section 7).

The failure stands with a second FAIL, and falls with two repeats that did not fail: the rate is reopened, once at most.
What cannot be repeated, because the repeats are INVALID by client, workload or target, stands.
"""

from __future__ import annotations

from collections import defaultdict

from analysis.search.types import RunRequest
from analysis.verdict import Finding, RunVerdict

__all__ = ["Rechecks"]


class Rechecks:
    """What the repeats of failing runs said, by rate."""

    def __init__(self) -> None:
        self._decided: set[int] = set()
        self._repeats: defaultdict[int, list[RunVerdict]] = defaultdict(list)
        self._spoiled: defaultdict[int, int] = defaultdict(int)

    def decided(self, k: int) -> bool:
        """Whether rate k had its second look: its failure stands, or it was reopened."""
        return k in self._decided

    def take(self, request: RunRequest, verdict: RunVerdict, *, at: str, failed: str) -> tuple[Finding | None, bool]:
        """Book a repeat: what to tell, and whether the rate is reopened.

        `at` is the rate in words, `failed` the reason of the run that failed there.
        """
        k, repeats = request.rate_index, self._repeats[request.rate_index]
        run = f"the {'exploring' if request.block < 0 else 'fresh'} run with seed {request.seed} at {at}"
        if verdict.status == "INVALID" and (blame := verdict.blame) not in (None, "evidence"):
            self._spoiled[k] += 1
            if self._spoiled[k] < 2:
                return None, False
            self._decided.add(k)
            text = f"{run} failed ({failed}) and could not be repeated, so the failure stands: {verdict.reason}"
            return Finding(check="recheck", blame=blame or "client", severity="warning", text=text), False
        repeats.append(verdict)
        if verdict.status == "FAIL":
            self._decided.add(k)
            passed = " after it had passed once" if len(repeats) > 1 else ""
            text = f"{run} failed again when it was repeated{passed}: the failure stands"
            return Finding(check="recheck", blame="target", severity="info", text=text), False
        if len(repeats) < 2:
            return None, False
        self._decided.add(k)
        text = f"{run} failed ({failed}) and passed twice when it was repeated: the rate was searched again"
        return Finding(check="recheck", blame="target", severity="warning", text=text), True

    def forgive(self) -> None:
        """Forget the repeats that were INVALID so far."""
        self._spoiled.clear()
