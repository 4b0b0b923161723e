"""The capacity search: grid, order of runs, outcomes, INVALID runs, sentinels, cost and exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from analysis.search import (
    CostModel,
    Grid,
    Outcome,
    RateList,
    RateRange,
    RunRequest,
    Search,
    SearchSpec,
    SeedBook,
    exit_code,
    expect,
    parse_rates,
)
from analysis.search.machine import coarse_steps
from analysis.slo import Slo
from analysis.verdict import Blame, Criteria, Finding, RunVerdict

CRITERIA = Criteria(slo=Slo(ttft_s=0.8))
Answer = Callable[[RunRequest], RunVerdict]


def verdict(passed: bool = True, *, e2e_s: float = 1.0, drift: float | None = None) -> RunVerdict:
    finding = Finding(check="attainment", blame="server", severity="block", text="too many misses")
    return RunVerdict(
        status="PASS" if passed else "FAIL",
        findings=() if passed else (finding,),
        attainment=0.97 if passed else 0.9,
        drift_ratio=drift,
        summary={"e2e_s": {"mean": e2e_s}},
    )


def invalid(blame: Blame) -> RunVerdict:
    finding = Finding(check="gate", blame=blame, severity="block", text=f"{blame} gate")
    return RunVerdict(status="INVALID", findings=(finding,), summary={"e2e_s": {"mean": 1.0}})


def spec_of(rates: str, runs: int = 3, confirm: int = 3, width: float = 0.05) -> SearchSpec:
    return SearchSpec(rates=parse_rates(rates), width=width, runs=runs, confirm=confirm)


def book_of(spec: SearchSpec, *, spares: int = 9, fresh: bool = False) -> SeedBook:
    grid = range(len(spec.grid))
    return SeedBook(
        roots=tuple(range(101, 101 + spec.runs)),
        blocks=tuple(tuple(10_000 + 100 * c + i for i in range(spec.confirm)) for c in grid) if spec.confirm else (),
        spares=tuple(range(900, 900 + spares)),
        sentinel=7,
        fresh=tuple(tuple(2_000_000 + 100 * k + r for r in range(spec.runs)) for k in grid) if fresh else (),
    )


def search_of(spec: SearchSpec, *, spares: int = 9, fresh: bool = False) -> Search:
    return Search(spec, book_of(spec, spares=spares, fresh=fresh), CRITERIA)


def finish(search: Search, answer: Answer, *, at_most: int = 5_000) -> Outcome:
    for _ in range(at_most):
        request = search.ask()
        if isinstance(request, Outcome):
            return request
        search.tell(request, answer(request))
    raise AssertionError("the search does not end")


def asked(search: Search, kind: str) -> list[RunRequest]:
    return [request for request, _ in search.history if request.kind == kind]


def below(capacity: float) -> Answer:
    return lambda request: verdict(request.rate <= capacity)


class TestRates:
    def test_a_range_searches_and_a_list_tabulates(self):
        assert parse_rates("2..18") == RateRange(lo=2, hi=18)
        assert parse_rates(" 0.5 .. 1e2 ") == RateRange(lo=0.5, hi=100)
        assert parse_rates("6,2,4") == RateList(rates=(2, 4, 6))
        assert parse_rates("2..18:4") == RateList(rates=(2, 6, 10, 14, 18))
        assert parse_rates("6") == RateList(rates=(6,))

    def test_a_stepped_range_is_exact(self):
        assert parse_rates("0.1..0.7:0.1") == RateList(rates=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7))

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("18..2", "runs backwards; write 2..18"),
            ("2..2", "to measure it write 2"),
            ("0..18", "above 0"),
            ("-2..18", "above 0"),
            ("2..nan", "'nan' is not a number"),
            ("2..inf", "'inf' is not a number"),
            ("2..1e400", "above 0 and finite"),
            ("2..1e9999", "'1e9999' is not a number"),
            ("2..", "'' is not a number"),
            ("", "'' is not a number"),
            ("2,,4", "'' is not a number"),
            ("2,4,4", "each named once"),
            ("2,0", "above 0"),
            ("fast", "'fast' is not a number"),
            ("2..18..3", "'18..3' is not a number"),
            ("6:2", "a step but no range"),
            ("2..17:2", "end the range at 16 or 18"),
            ("2..18:0", "above 0"),
            ("2..18:-1", "above 0"),
            ("1..9:1e-9", "too many rates"),
            ("٢..18", "is not a number"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, text: str, says: str):
        with pytest.raises(ValueError) as refusal:
            parse_rates(text)
        assert says in str(refusal.value)
        assert "\n" not in str(refusal.value)

    def test_the_grid_has_both_ends_and_no_step_above_the_width(self):
        rates = Grid(lo=2, hi=18, width=0.05).rates
        assert len(rates) == 47  # n = ⌈45.03⌉
        assert (rates[0], rates[-1]) == (2, 18)
        steps = [high / low for low, high in pairwise(rates)]
        assert max(steps) <= 1.05
        assert max(steps) - min(steps) < 1e-12

    def test_a_range_of_whole_widths_gets_no_extra_step(self):
        for n in range(1, 60):
            assert Grid(lo=3, hi=3 * 1.05**n, width=0.05).steps == n

    @pytest.mark.parametrize("width", [0, -0.1, 1.1, math.nan, 1e-9])
    def test_an_impossible_width_is_refused(self, width: float):
        with pytest.raises(ValueError, match="width"):
            Grid(lo=2, hi=18, width=width)

    def test_the_coarse_pass_has_both_ends_and_never_more_than_doubles(self):
        for text, width in (("2..18", 0.05), ("0.1..1000", 0.05), ("3..4", 0.02), ("2..18", 0.5), ("1..1.01", 0.05)):
            grid = spec_of(text, width=width).grid
            steps = coarse_steps(grid)
            assert (steps[0], steps[-1]) == (0, len(grid) - 1)
            assert all(grid[b] <= 2 * grid[a] + 1e-9 for a, b in pairwise(steps))
        assert len(coarse_steps(spec_of("2..18").grid)) == 5  # 2, just below 4, 8, 16, and 18


class TestPath:
    def test_found_is_the_exact_grid_point_with_all_runs_and_the_confirmation(self):
        spec = spec_of("2..18", runs=5, confirm=4)
        search = search_of(spec)
        outcome = finish(search, below(spec.grid[20] + 1e-9))
        assert outcome.name == "FOUND"
        assert (outcome.capacity, outcome.upper) == (spec.grid[20], spec.grid[21])
        assert outcome.support == "confirmed"
        assert (outcome.confirm_passes, outcome.proof) == (4, pytest.approx(0.05**0.25))
        assert outcome.inversions == ()
        at = [request for request in asked(search, "search") if request.rate_index == 20]
        assert {request.seed for request in at} == {101, 102, 103, 104, 105}
        assert [request.seed for request in asked(search, "confirm")] == [10_000, 10_001, 10_002, 10_003]
        assert [v.status for v in outcome.confirmations] == ["PASS"]
        assert "too many misses" in outcome.reason
        json.dumps(outcome.to_dict(), allow_nan=False)

    def test_climbs_by_doubling_then_bisects_on_provisional_passes(self):
        spec = spec_of("2..18", runs=5, confirm=5)
        search = search_of(spec)
        finish(search, below(spec.grid[20] + 1e-9))
        runs = [(request.rate_index, request.replicate) for request in asked(search, "search")]
        # two passes at 0 and 14, a fail at 28; middles 21 fail, 17 19 20 pass; then 20's other three
        path = [0, 0, 14, 14, 28, 21, 17, 17, 19, 19, 20, 20, 20, 20, 20]
        assert coarse_steps(spec.grid)[:3] == (0, 14, 28)
        assert [k for k, _ in runs] == path
        assert [r for k, r in runs if k == 20] == [0, 1, 2, 3, 4]

    def test_a_replicate_that_failed_higher_goes_first(self):
        spec = spec_of("2..18", runs=5, confirm=5)
        search = search_of(spec)
        finish(search, lambda r: verdict(r.rate <= {"search": (9, 9, 9, 9, 6)[r.replicate]}.get(r.kind, 9)))
        order = [(r.rate_index, r.replicate) for r in asked(search, "search")]
        first = order.index(next(each for each in order if each[1] == 4 and spec.grid[each[0]] > 6))
        for k in {k for k, _ in order[first + 1 :]}:  # once it has failed, it opens every rate below
            assert next(r for rate, r in order[first + 1 :] if rate == k) == 4

    def test_order_changes_the_cost_and_not_the_answer(self):
        spec = spec_of("2..18", runs=5, confirm=5)
        limits = {101: 9.0, 102: 8.0, 103: 7.0, 104: 5.5, 105: 6.5}
        answers = set()
        for turn in range(5):
            seeds = [*limits][turn:] + [*limits][:turn]
            book = SeedBook(roots=tuple(seeds), blocks=book_of(spec).blocks, spares=(), sentinel=7)
            search = Search(spec, book, CRITERIA)
            outcome = finish(search, lambda r: verdict(r.rate <= limits.get(r.seed, 99)))
            answers.add((outcome.name, outcome.capacity, outcome.upper))
        assert answers == {("FOUND", max(r for r in spec.grid if r <= 5.5), min(r for r in spec.grid if r > 5.5))}

    def test_the_ends_of_the_range(self):
        spec = spec_of("2..18")
        above = finish(search_of(spec), below(99))
        assert (above.name, above.capacity, above.upper, above.lower) == ("ABOVE_RANGE", 18, None, 18)
        assert above.confirm_passes == 3
        low = finish(search_of(spec), lambda r: verdict(r.kind == "sentinel"))
        assert (low.name, low.capacity, low.upper, low.lower) == ("BELOW_RANGE", None, 2, None)

    def test_a_failed_confirmation_is_upper_and_the_search_resumes_below_with_the_next_block(self):
        spec = spec_of("2..18")
        search = search_of(spec)
        limit = {"search": spec.grid[30], "confirm": spec.grid[27], "sentinel": 99.0}
        outcome = finish(search, lambda r: verdict(r.rate <= limit[r.kind]))
        assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[27], spec.grid[28])
        confirms = asked(search, "confirm")
        candidates = list(dict.fromkeys((r.block, r.rate_index) for r in confirms))
        assert candidates == [(0, 30), (1, 29), (2, 28), (3, 27)]
        assert len({r.seed for r in confirms}) == len(confirms)
        assert all(r.seed == 10_000 + 100 * r.block + r.replicate for r in confirms)
        for k in (28, 27):  # each candidate needs its own R
            assert {r.replicate for r in asked(search, "search") if r.rate_index == k} == {0, 1, 2}
        assert [v.status for v in outcome.confirmations] == ["PASS", "FAIL", "FAIL", "FAIL"]
        assert all(v.status == "PASS" for v in outcome.rates if v.rate in (spec.grid[28], spec.grid[30]))

    def test_a_passing_rate_above_a_failing_one_is_an_inversion(self):
        spec = spec_of("2,4,6,8", confirm=0)
        outcome = finish(search_of(spec), lambda r: verdict(r.rate != 4))
        assert outcome.inversions == ((4, 6), (4, 8))
        assert (outcome.lower, outcome.upper) == (2, 4)

    def test_rate_level_drift_fails_a_rate_whose_runs_all_passed(self):
        spec = spec_of("2..18", runs=5, confirm=5)
        rising = {0: 0.030, 1: 0.031, 2: 0.029, 3: 0.032, 4: 0.030}

        def answer(request: RunRequest) -> RunVerdict:
            drifts = request.kind == "search" and request.rate_index > 20
            return verdict(request.rate_index <= 24, drift=rising[request.replicate] if drifts else 0.0001)

        search = search_of(spec)
        outcome = finish(search, answer)
        assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[20], spec.grid[21])
        failed = next(v for v in outcome.rates if v.rate == spec.grid[24])
        assert (failed.status, failed.runs) == ("FAIL", 5)  # not before all R slopes were there
        assert "outstanding work rises" in failed.reason
        assert "outstanding work rises" in outcome.reason
        assert {r.rate_index for r in asked(search, "confirm")} == {20}

    def test_confirmation_drift_refutes_a_candidate(self):
        spec = spec_of("2..18")
        slopes = (0.030, 0.031, 0.029)
        outcome = finish(
            search_of(spec),
            lambda r: verdict(
                r.rate_index <= 20, drift=slopes[r.replicate] if r.kind == "confirm" and r.rate_index == 20 else 0.0
            ),
        )
        assert outcome.capacity == spec.grid[19]
        assert outcome.upper == spec.grid[20]

    def test_fresh_seeds_name_each_rate_their_own(self):
        spec = spec_of("2..18")
        search = search_of(spec, fresh=True)
        finish(search, below(6))
        runs = asked(search, "search")
        assert len({r.seed for r in runs}) == len(runs)
        assert all(r.seed == 2_000_000 + 100 * r.rate_index + r.replicate for r in runs)

    def test_one_replicate_is_enough_for_one(self):
        spec = spec_of("2..18", runs=1, confirm=1)
        assert finish(search_of(spec), below(spec.grid[9])).capacity == spec.grid[9]


class TestTable:
    def test_all_runs_go_to_the_end_at_every_rate(self):
        spec = spec_of("2,4,6,8", confirm=0)
        search = search_of(spec)
        outcome = finish(search, below(5))
        assert [(r.rate, r.replicate) for r in asked(search, "search")] == [
            (x, r) for x in (2, 4, 6, 8) for r in range(3)
        ]
        assert (outcome.name, outcome.capacity) == ("TABULATED", None)
        assert (outcome.lower, outcome.upper, outcome.support) == (4, 6, "replicated")
        assert "nothing between them was searched or confirmed" in outcome.reason
        assert exit_code(outcome) == 0
        assert asked(search, "confirm") == []

    def test_confirms_when_asked(self):
        spec = spec_of("2,4,6,8", confirm=2)
        search = search_of(spec)
        outcome = finish(search, lambda r: verdict(r.rate <= (5 if r.kind == "search" else 3)))
        assert (outcome.name, outcome.capacity, outcome.upper) == ("TABULATED", 2, 4)
        assert [r.rate for r in asked(search, "confirm")] == [4, 2, 2]

    def test_a_failing_sentinel_or_lowest_rate_does_not_end_a_table(self):
        spec = spec_of("6,8", confirm=0)
        outcome = finish(search_of(spec), lambda r: verdict(False))
        assert (outcome.name, outcome.lower, outcome.upper) == ("TABULATED", None, 6)
        assert [v.runs for v in outcome.rates] == [3, 3]

    def test_thin_runs_leave_their_rate_incomplete_and_the_table_goes_on(self):
        spec = spec_of("2,4", confirm=0)
        search = search_of(spec)
        outcome = finish(search, lambda r: invalid("evidence") if r.rate == 2 else verdict())
        assert [v.status for v in outcome.rates] == ["INCOMPLETE", "PASS"]
        assert (outcome.name, outcome.lower) == ("TABULATED", 4)


class TestInvalid:
    def answer(
        self, blames: Iterable[Blame], *, rate_index: int = 14, replicate: int = 1, capacity: float = 6
    ) -> Answer:
        left = list(blames)

        def one(request: RunRequest) -> RunVerdict:
            if left and (request.kind, request.rate_index, request.replicate) == ("search", rate_index, replicate):
                return invalid(left.pop(0))
            return verdict(request.rate <= capacity)

        return one

    def test_once_more_with_the_same_seed(self):
        spec = spec_of("2..18", runs=5)
        search = search_of(spec)
        outcome = finish(search, self.answer(["client"]))
        tries = [r for r in asked(search, "search") if (r.rate_index, r.replicate) == (14, 1)]
        assert [(r.seed, r.attempt) for r in tries] == [(102, 0), (102, 1)]
        assert len({r.key for r in tries}) == 2
        assert (outcome.name, outcome.findings) == ("FOUND", ())

    @pytest.mark.parametrize("blame", ["client", "workload"])
    def test_then_a_spare_takes_the_replicate_over_at_every_rate(self, blame: Blame):
        spec = spec_of("2..18", runs=5)
        search = search_of(spec)
        outcome = finish(search, self.answer([blame, blame]))
        history = [r for r in asked(search, "search") if r.replicate == 1]
        swap = next(i for i, r in enumerate(history) if r.seed == 900)
        assert all(r.seed == 102 for r in history[:swap])
        assert all(r.seed == 900 for r in history[swap:])
        # what the old seed did at the lowest rate no longer counts, and is done again there first
        assert [(r.rate_index, r.seed, r.attempt) for r in history if r.rate_index == 0] == [(0, 102, 0), (0, 900, 1)]
        assert outcome.name == "FOUND"
        assert [(f.check, f.blame) for f in outcome.findings] == [("replaced", blame)]
        assert "seed 102" in outcome.findings[0].text
        assert "at every rate" in outcome.findings[0].text

    def test_a_failure_of_the_old_seed_no_longer_counts_either(self):
        spec = spec_of("2..18", runs=5)
        left = ["client", "client"]

        def answer(request: RunRequest) -> RunVerdict:
            if request.seed == 101 and request.rate_index == 20 and left:
                return invalid(left.pop())  # type: ignore[arg-type]
            if request.seed == 101:
                return verdict(request.rate_index <= 20)
            return verdict(request.rate_index <= 33)

        outcome = finish(search_of(spec), answer)
        assert outcome.capacity == spec.grid[33]

    def test_with_fresh_seeds_only_its_own_rate_is_replaced(self):
        spec = spec_of("2..18", runs=5)
        search = search_of(spec, fresh=True)
        outcome = finish(search, self.answer(["client", "client"]))
        assert [r.rate_index for r in asked(search, "search") if r.seed == 900] == [14]
        assert [r.attempt for r in asked(search, "search") if (r.rate_index, r.replicate) == (0, 1)] == [0]
        assert outcome.name == "FOUND"

    def test_client_blame_again_is_client_limited_with_what_is_known(self):
        spec = spec_of("2..18", runs=5)
        search = search_of(spec)
        outcome = finish(search, lambda r: verdict() if r.rate_index < 14 or r.replicate != 1 else invalid("client"))
        tries = [r.seed for r in asked(search, "search") if (r.rate_index, r.replicate) == (14, 1)]
        assert tries == [102, 102, 900]
        assert (outcome.name, outcome.capacity, outcome.lower) == ("CLIENT_LIMITED", None, 2)
        assert "capacity ≥ 2/s, nothing known above" in outcome.reason
        assert "client gate" in outcome.reason
        assert exit_code(outcome) == 4

    def test_more_than_a_fifth_replaced_is_client_limited(self):
        spec = spec_of("2..18", runs=10, confirm=1)
        bad = {101, 102, 103}
        outcome = finish(search_of(spec), lambda r: invalid("client") if r.seed in bad else verdict(r.rate < 6))
        assert outcome.name == "CLIENT_LIMITED"
        assert "3 of 10 replicates would be replaced, more than 20 %" in outcome.reason
        assert [f.check for f in outcome.findings] == ["replaced", "replaced"]
        bad.remove(103)
        assert (
            finish(search_of(spec), lambda r: invalid("client") if r.seed in bad else verdict(r.rate < 6)).name
            == "FOUND"
        )

    def test_no_spare_left(self):
        spec = spec_of("2..18", runs=5)
        outcome = finish(search_of(spec, spares=0), self.answer(["client", "client"]))
        assert outcome.name == "CLIENT_LIMITED"
        assert "no declared spare seed" in outcome.reason

    def test_target_blame_twice_is_an_unstable_target_and_spends_no_spare(self):
        spec = spec_of("2..18", runs=5)
        search = search_of(spec)
        outcome = finish(search, self.answer(["target", "target"]))
        assert (outcome.name, exit_code(outcome)) == ("UNSTABLE_TARGET", 3)
        assert "target gate" in outcome.reason
        assert all(r.seed < 900 for r in asked(search, "search"))
        assert finish(search_of(spec), self.answer(["target"])).name == "FOUND"

    def test_workload_blame_to_the_end_is_an_unfit_target(self):
        outcome = finish(search_of(spec_of("2..18", runs=5)), self.answer(["workload"] * 9))
        assert (outcome.name, exit_code(outcome)) == ("UNSTABLE_TARGET", 3)
        assert "INVALID 3 times in a row: workload gate" in outcome.reason

    def test_a_confirmation_run_is_replaced_within_its_block(self):
        spec = spec_of("2..18", runs=5, confirm=5)
        left: list[Blame] = ["client", "client"]

        def answer(request: RunRequest) -> RunVerdict:
            if request.kind == "confirm" and request.replicate == 2 and left:
                return invalid(left.pop())
            return verdict(request.rate_index <= 20)

        search = search_of(spec)
        outcome = finish(search, answer)
        assert (outcome.name, outcome.capacity) == ("FOUND", spec.grid[20])
        assert [r.seed for r in asked(search, "confirm")] == [10_000, 10_001, 10_002, 10_002, 900, 10_003, 10_004]
        assert {r.seed for r in asked(search, "search")} == {101, 102, 103, 104, 105}

    def test_thin_runs_do_not_stop_others_from_failing_the_rate(self):
        spec = spec_of("2..18", runs=5)
        outcome = finish(
            search_of(spec),
            lambda r: (
                verdict(r.replicate < 3)
                if r.rate_index > 20 and r.replicate
                else (invalid("evidence") if r.rate_index > 20 else verdict())
            ),
        )
        assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[20], spec.grid[21])

    def test_thin_runs_that_rise_together_fail_the_rate(self):
        spec = spec_of("2..18", runs=5)
        thin = invalid("evidence")

        def answer(request: RunRequest) -> RunVerdict:
            if request.rate_index <= 20:
                return verdict()
            rising = 0.05 + 0.001 * request.replicate
            return RunVerdict(status="INVALID", findings=thin.findings, attainment=0.96, drift_ratio=rising)

        outcome = finish(search_of(spec), answer)
        assert (outcome.name, outcome.capacity, outcome.upper) == ("FOUND", spec.grid[20], spec.grid[21])

    def test_a_window_too_short_for_a_pass_ends_without_an_answer(self):
        spec = spec_of("2..18", runs=5)
        search = search_of(spec)
        outcome = finish(search, lambda r: invalid("evidence") if r.rate_index > 20 else verdict())
        assert (outcome.name, outcome.capacity, exit_code(outcome)) == ("BUDGET_EXHAUSTED", None, 4)
        assert "lengthen the window" in outcome.reason
        assert "evidence gate" in outcome.reason
        last = [r for r in asked(search, "search") if r.rate_index == asked(search, "search")[-1].rate_index]
        assert [r.seed for r in last] == [101, 102, 103, 104, 105, 101]  # each once, then the repeat, never a spare

    def test_a_window_too_short_at_the_lowest_rate_costs_two_runs(self):
        outcome = finish(search_of(spec_of("2..18", runs=12)), lambda r: invalid("evidence"))
        assert (outcome.name, outcome.runs) == ("BUDGET_EXHAUSTED", 2)


class TestSentinel:
    def test_runs_first_every_ten_and_last_at_the_lowest_rate_with_one_seed(self):
        search = search_of(spec_of("2..18", runs=12, confirm=12))
        finish(search, below(6))
        kinds = [request.kind for request, _ in search.history]
        assert kinds[0] == kinds[-1] == "sentinel"
        gaps = [len(part) for part in "".join("S" if k == "sentinel" else "." for k in kinds).split("S")[1:-1]]
        assert gaps[:-1] == [10] * (len(gaps) - 1)
        assert 0 < gaps[-1] <= 10
        sentinels = asked(search, "sentinel")
        assert {(r.rate, r.seed) for r in sentinels} == {(2, 7)}
        assert len({r.key for r in sentinels}) == len(sentinels)

    @pytest.mark.parametrize(
        ("moved", "name", "severity"),
        [
            (1.09, "FOUND", None),
            (1.11, "FOUND", "warning"),
            (0.89, "FOUND", "warning"),
            (1.26, "UNSTABLE_TARGET", "block"),
            (0.74, "UNSTABLE_TARGET", "block"),
        ],
    )
    def test_moved_mean_e2e(self, moved: float, name: str, severity: str | None):
        outcome = finish(
            search_of(spec_of("2..18")), lambda r: verdict(r.rate < 6, e2e_s=moved if r.replicate else 1.0)
        )
        assert outcome.name == name
        assert {f.severity for f in outcome.findings} == ({severity} if severity else set())
        if name == "UNSTABLE_TARGET":
            assert outcome.capacity is None
            assert "mean E2E at 2/s moved by" in outcome.reason

    def test_the_last_one_can_still_withdraw_the_answer(self):
        spec = spec_of("2..18")
        search = search_of(spec)
        outcome = finish(search, lambda r: verdict(r.rate < 6, e2e_s=2.0 if search_is_over(search) else 1.0))
        assert outcome.name == "UNSTABLE_TARGET"
        assert (outcome.support, outcome.capacity) == ("confirmed", None)

    def test_a_failing_first_one_is_below_range(self):
        outcome = finish(search_of(spec_of("2..18")), lambda r: verdict(False))
        assert (outcome.name, outcome.upper, outcome.runs) == ("BELOW_RANGE", 2, 1)
        assert "its sentinel run failed: too many misses" in outcome.reason

    def test_a_later_failing_one_is_an_unstable_target(self):
        outcome = finish(search_of(spec_of("2..18")), lambda r: verdict(r.kind != "sentinel" or r.replicate == 0))
        assert outcome.name == "UNSTABLE_TARGET"
        assert "passed at first and fails now" in outcome.reason

    @pytest.mark.parametrize(
        ("blame", "name"),
        [("client", "CLIENT_LIMITED"), ("target", "UNSTABLE_TARGET"), ("workload", "UNSTABLE_TARGET")],
    )
    def test_an_invalid_one_is_repeated_once(self, blame: Blame, name: str):
        search = search_of(spec_of("2..18"))
        outcome = finish(search, lambda r: invalid(blame))
        assert (outcome.name, outcome.runs) == (name, 2)
        assert [r.attempt for r in asked(search, "sentinel")] == [0, 1]
        again = search_of(spec_of("2..18"))
        assert (
            finish(again, lambda r: invalid(blame) if r.kind == "sentinel" and not r.attempt else below(6)(r)).name
            == "FOUND"
        )

    def test_a_later_thin_one_serves(self):
        outcome = finish(
            search_of(spec_of("2..18")),
            lambda r: invalid("evidence") if r.kind == "sentinel" and r.replicate else below(6)(r),
        )
        assert outcome.name == "FOUND"


def search_is_over(search: Search) -> bool:
    """Whether the sentinel being asked is the last one: the confirmation is complete."""
    request = search.ask()
    done = [r for r in asked(search, "confirm") if r.rate < 6]
    return isinstance(request, RunRequest) and request.kind == "sentinel" and len(done) == 3


class TestFold:
    def test_replay_is_the_live_search_at_every_point(self):
        spec = spec_of("2..18", runs=5)
        search = search_of(spec)
        answer = TestInvalid().answer(["client", "client"])
        while isinstance(request := search.ask(), RunRequest):
            search.tell(request, answer(request))
            ledger = [
                (RunRequest.from_dict(json.loads(json.dumps(r.to_dict()))), RunVerdict.from_dict(v.to_dict()))
                for r, v in search.history
            ]
            assert Search.replay(spec, book_of(spec), CRITERIA, ledger).ask() == search.ask()
        assert request.name == "FOUND"

    def test_ask_is_the_same_until_told_and_nothing_else_is_taken(self):
        spec = spec_of("2..18")
        search = search_of(spec)
        first = search.ask()
        assert first == search.ask()
        assert isinstance(first, RunRequest)
        search.tell(first, verdict())
        with pytest.raises(ValueError, match="not the one this search asked for"):
            search.tell(first, verdict())
        finish(search, below(6))
        with pytest.raises(ValueError, match="it ended FOUND"):
            search.tell(first, verdict())

    def test_stop_gives_the_bracket_so_far_and_the_search_can_go_on(self):
        spec = spec_of("2..18")
        search = search_of(spec)
        for _ in range(6):
            request = search.ask()
            assert isinstance(request, RunRequest)
            search.tell(request, below(6)(request))
        stopped = search.stop("BUDGET_EXHAUSTED", "--max-time 2h is used up")
        assert (stopped.name, stopped.capacity, stopped.support) == ("BUDGET_EXHAUSTED", None, "provisional")
        assert (stopped.lower, stopped.upper) == (spec.grid[14], spec.grid[28])
        assert stopped.reason == "--max-time 2h is used up"
        assert finish(search, below(6)).name == "FOUND"
        assert search.stop("ABORTED", "too late").name == "FOUND"

    def test_directories_differ_wherever_runs_do(self):
        for spec in (spec_of("2..18", runs=12, confirm=12), spec_of("0.001..0.002"), spec_of("2,2.0000001", confirm=0)):
            search = search_of(spec)
            finish(search, lambda r: verdict(r.rate_index < 3))
            keys = [r.key for r, _ in search.history]
            assert len(set(keys)) == len(keys)
            assert all(".." not in key.split("/") and not key.startswith("/") for key in keys)
        assert "rate=6.000/rep=02-seed=103" in {
            r.key for r, _ in _run(spec_of("6", confirm=0)).history
        }  # as in the results directory's description


def _run(spec: SearchSpec) -> Search:
    search = search_of(spec)
    finish(search, below(6))
    return search


class TestBook:
    def test_a_seed_declared_twice_is_refused(self):
        with pytest.raises(ValueError, match="seed 5 is declared twice"):
            SeedBook(roots=(5, 6), blocks=((7, 8),), spares=(5,), sentinel=1)

    def test_a_book_that_cannot_serve_is_refused(self):
        spec = spec_of("2..18")
        with pytest.raises(ValueError, match="declare one for each"):
            Search(spec, SeedBook(roots=(1,), blocks=book_of(spec).blocks, spares=(), sentinel=1), CRITERIA)
        with pytest.raises(ValueError, match="47 blocks of 3 seeds"):
            Search(spec, SeedBook(roots=(1, 2, 3), blocks=((4, 5, 6),), spares=(), sentinel=1), CRITERIA)

    def test_an_unconfirmed_search_is_refused(self):
        with pytest.raises(ValueError, match="confirmation"):
            spec_of("2..18", confirm=0)
        with pytest.raises(ValueError, match="at least 1"):
            spec_of("2..18", runs=0)


class TestExitCode:
    @pytest.mark.parametrize(
        ("outcome", "require", "code"),
        [
            (Outcome(name="FOUND", reason="", capacity=5, upper=5.2), None, 0),
            (Outcome(name="FOUND", reason="", capacity=5, upper=5.2), 5, 0),
            (Outcome(name="FOUND", reason="", capacity=5, upper=5.2), 5.1, 4),
            (Outcome(name="FOUND", reason="", capacity=5, upper=5.2), 5.2, 1),
            (Outcome(name="ABOVE_RANGE", reason="", capacity=18), None, 0),
            (Outcome(name="ABOVE_RANGE", reason="", capacity=18), 18, 0),
            (Outcome(name="ABOVE_RANGE", reason="", capacity=18), 20, 4),
            (Outcome(name="BELOW_RANGE", reason="", upper=2), None, 0),
            (Outcome(name="BELOW_RANGE", reason="", upper=2), 2, 1),
            (Outcome(name="TABULATED", reason="", lower=4, upper=6), None, 0),
            (Outcome(name="TABULATED", reason="", lower=4, upper=6), 4, 4),
            (Outcome(name="TABULATED", reason="", lower=4, upper=6), 6, 1),
            (Outcome(name="CLIENT_LIMITED", reason="", lower=4), None, 4),
            (Outcome(name="CLIENT_LIMITED", reason="", lower=4), 4, 4),
            (Outcome(name="BUDGET_EXHAUSTED", reason="", lower=4, upper=8), None, 4),
            (Outcome(name="BUDGET_EXHAUSTED", reason="", lower=4, upper=8), 4, 4),
            (Outcome(name="BUDGET_EXHAUSTED", reason="", lower=4, upper=8), 9, 1),
            (Outcome(name="UNSTABLE_TARGET", reason="", lower=4, upper=8), 9, 3),
            (Outcome(name="ABORTED", reason="", lower=4, upper=8), 9, 5),
        ],
    )
    def test_codes(self, outcome: Outcome, require: float | None, code: int):
        assert exit_code(outcome, require) == code


class TestExpect:
    COST = CostModel(warmup_s=20, window_s=120, confirm_window_s=240, drain_s=10, between_s=5, tokens_per_request=1_152)

    def test_the_worst_case_is_what_the_worst_target_costs(self):
        spec = spec_of("2..18")
        worst = expect(spec, self.COST).worst
        search = search_of(spec)
        outcome = finish(search, lambda r: verdict(r.kind != "confirm" or r.replicate < 2))
        assert (outcome.name, outcome.runs) == ("BELOW_RANGE", worst.runs)
        rates = [r.rate for r, _ in search.history]
        load = [270 if r.kind == "confirm" else 150 for r, _ in search.history]
        assert worst.hours == pytest.approx((sum(load) + 5 * len(load)) / 3600)
        assert worst.requests == pytest.approx(sum(x * s for x, s in zip(rates, load, strict=True)))
        assert worst.tokens == pytest.approx(worst.requests * 1_152)

    def test_a_table_costs_what_it_says(self):
        spec = spec_of("2,4,6,8", confirm=0)
        said = expect(spec, self.COST)
        assert said.expected == said.worst
        assert said.worst.runs == _run(spec).ask().runs == 12 + 3  # type: ignore[union-attr]
        assert said.peak_rate == 8

    def test_is_seeded(self):
        spec = spec_of("2..18")
        assert expect(spec, self.COST) == expect(spec, self.COST)
        assert expect(spec, self.COST) != expect(spec, self.COST, seed=2)
