"""Searches against answers that a test makes up: their specs, seed books and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from analysis.search import Outcome, RunRequest, Search, SearchSpec, SeedBook, parse_rates
from analysis.slo import Slo
from analysis.verdict import Blame, Criteria, Finding, RunVerdict

CRITERIA = Criteria(slo=Slo(ttft_s=0.8))
Answer = Callable[[RunRequest], RunVerdict]


def verdict(passed: bool = True, *, e2e_s: float = 1.0, attainment: float = 0.94, **more: Any) -> RunVerdict:
    """A PASS, or a FAIL of that attainment; by default one that missed by little."""
    finding = Finding(check="attainment", blame="server", severity="block", text="too many misses")
    known: dict[str, Any] = {
        "status": "PASS" if passed else "FAIL",
        "findings": () if passed else (finding,),
        "attainment": 0.97 if passed else attainment,
        "cohort": 1000,
        "summary": {"e2e_s": {"mean": e2e_s}},
        "e2e_error_s": 0.01,
    }
    return RunVerdict(**(known | more))


def invalid(blame: Blame, **more: Any) -> RunVerdict:
    finding = Finding(check="gate", blame=blame, severity="block", text=f"{blame} gate")
    return RunVerdict(status="INVALID", findings=(finding,), summary={"e2e_s": {"mean": 1.0}}, **more)


def spec_of(rates: str, runs: int = 3, explore: int = 1, width: float = 0.05, **more: Any) -> SearchSpec:
    return SearchSpec(rates=parse_rates(rates), width=width, runs=runs, explore=explore, **more)


def book_of(spec: SearchSpec, *, spares: int = 9, fresh: bool = False, blocks: int | None = None) -> SeedBook:
    """Roots from 101, block c from 10,000 + 100·c, spares from 900; fresh roots from 2,000,000 + 100·k."""
    count = 2 * len(spec.grid) if blocks is None else blocks
    grid = range(len(spec.grid))
    return SeedBook(
        roots=tuple(range(101, 101 + spec.runs)),
        blocks=tuple(tuple(10_000 + 100 * c + i for i in range(spec.runs)) for c in range(count)),
        spares=tuple(range(900, 900 + spares)),
        sentinel=7,
        fresh=tuple(tuple(2_000_000 + 100 * k + r for r in range(spec.runs)) for k in grid) if fresh else (),
    )


def search_of(spec: SearchSpec, **book: Any) -> Search:
    return Search(spec, book_of(spec, **book), CRITERIA)


def finish(search: Search, answer: Answer, *, at_most: int = 5_000) -> Outcome:
    for _ in range(at_most):
        request = search.ask()
        if isinstance(request, Outcome):
            return request
        search.tell(request, answer(request))
    raise AssertionError("the search does not end")


def asked(search: Search, *kinds: str) -> list[RunRequest]:
    return [request for request, _ in search.history if request.kind in kinds]


def below(capacity: float) -> Answer:
    return lambda request: verdict(request.rate <= capacity)


def scripted(script: dict[tuple[str, int, int], Iterable[RunVerdict]], otherwise: Answer) -> Answer:
    """Verdicts by (kind, grid index, replicate), in turn; where none is left, the other answer."""
    left = {place: list(verdicts) for place, verdicts in script.items()}

    def one(request: RunRequest) -> RunVerdict:
        queue = left.get((request.kind, request.rate_index, request.replicate))
        return queue.pop(0) if queue else otherwise(request)

    return one
