"""The runs of a baseline, made again on another build: which run is next, as a fold over verdicts (docs/gate.md).

Every run keeps the seed, replicate and block of the baseline's, and goes to its end. A run counts if it is PASS or
FAIL, or INVALID for thin evidence alone: too few requests to pass a rate are still measured ones. *INVALID for client,
workload or target* is repeated once, then its pair is left out: another seed has no partner in the baseline. Nothing is
said where more than max(1, R/5) pairs would be left out, or where the target was to blame twice for one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, Self

from analysis.compare.phase import PairedEnd
from analysis.search.types import VARIANT, RunRequest
from analysis.verdict import Blame, RunVerdict

__all__ = ["Reruns"]


class Reruns:
    """Ask/tell; the module says how. Without `again` nothing is repeated, as where content must differ each time."""

    def __init__(self, baseline: Sequence[RunRequest], *, again: bool = True) -> None:
        self._baseline = tuple(baseline)
        self._tries = 2 if again else 1
        self._counting: dict[int, tuple[RunRequest, RunVerdict]] = {}
        self._attempts = [0] * len(self._baseline)
        self._blames: list[list[Blame]] = [[] for _ in self._baseline]
        self._end: PairedEnd | None = None

    @classmethod
    def replay(
        cls, baseline: Sequence[RunRequest], pairs: Iterable[tuple[RunRequest, RunVerdict]], *, again: bool = True
    ) -> Self:
        """The state after `pairs`. An end is forgotten: resumed, the runs that were left out are tried again.

        Raises `ValueError` if these runs would not have been asked for.
        """
        reruns = cls(baseline, again=again)
        for request, verdict in pairs:
            reruns._retry()
            reruns.tell(request, verdict)
        reruns._retry()
        return reruns

    @property
    def left_out(self) -> int:
        """Pairs that have no valid run."""
        return sum(len(blames) >= self._tries for blames in self._blames)

    def counting(self) -> Iterator[tuple[int, RunRequest, RunVerdict]]:
        """Every run that counts, with the number of its partner in the baseline, rising."""
        for k in sorted(self._counting):
            yield k, *self._counting[k]

    def ask(self) -> RunRequest | PairedEnd:
        """The next run, the same one until `tell` gets its verdict; or the end."""
        if self._end is not None:
            return self._end
        for k, partner in enumerate(self._baseline):
            if k not in self._counting and len(self._blames[k]) < self._tries:
                return self._request(k, partner)
        return PairedEnd(name="COMPLETE")

    def tell(self, request: RunRequest, verdict: RunVerdict) -> None:
        """Take the verdict on the run that was asked for. Raises `ValueError` for any other run."""
        if request != (asked := self.ask()):
            there = asked.key if isinstance(asked, RunRequest) else f"none, it ended {asked.name}"
            raise ValueError(f"the run {request.key} is not the one this gate asked for ({there})")
        k = next(k for k, blames in enumerate(self._blames) if k not in self._counting and len(blames) < self._tries)
        self._attempts[k] += 1
        blame = verdict.blame
        if blame is None or blame == "evidence":
            self._counting[k] = request, verdict
            return
        self._blames[k].append(blame)
        most = max(1, len(self._baseline) // 5)
        if self._blames[k].count("target") > 1:
            self._stop("target", request, verdict, "was disturbed twice")
        elif self.left_out > most:
            self._stop(blame, request, verdict, f"was INVALID, and more than {most} pairs would be left out")

    def _retry(self) -> None:
        if self._end is not None:
            self._end = None
            for blames in self._blames:
                blames.clear()

    def _stop(self, blame: Blame, request: RunRequest, verdict: RunVerdict, what: str) -> None:
        name: Literal["CLIENT_LIMITED", "UNSTABLE_TARGET"] = (
            "CLIENT_LIMITED" if blame == "client" else "UNSTABLE_TARGET"
        )
        self._end = PairedEnd(name=name, reason=f"the run with seed {request.seed} {what}: {verdict.reason}")

    def _request(self, k: int, partner: RunRequest) -> RunRequest:
        attempt = self._attempts[k]
        again = f"-attempt={attempt}" if attempt else ""
        return replace(
            partner,
            kind="paired",
            rate_index=-1,
            # content may follow the attempt
            attempt=partner.attempt + attempt,
            key=f"paired/rate={partner.rate:.6g}/{k:02d}-seed={partner.seed}{again}",
            variant=VARIANT,
        )
