from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.common.documents import to_json
from loadgen.common.members import JsonMembers
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.bodies import Bodies
from loadgen.plan.lengths import Lengths, parse_law
from loadgen.plan.plan import make_plan, record_of
from loadgen.plan.types import NS, PlanRequest, RequestFormat, RunPlan, Schedule, SideSeeds, Window

WINDOW = Window(warmup_ns=2 * NS, window_ns=10 * NS, tail_ns=3 * NS)
LENGTHS = Lengths(input=parse_law("lognormal:200,0.7"), output=parse_law("uniform:1..50"))


def make(**changes: Any) -> RunPlan:
    """A plan; `changes` are those of `PlanRequest`, `SideSeeds` (arrival, workload) and `make_plan`."""
    request: dict[str, Any] = {"window": WINDOW, "rate": 30.0, "root_seed": 101}
    sides: dict[str, Any] = {}
    arguments: dict[str, Any] = {"arrivals": Arrivals(), "lengths": LENGTHS, "format": RequestFormat()}
    for name, value in changes.items():
        kind = sides if name in ("arrival", "workload") else arguments if name in arguments else request
        kind[name] = value
    return make_plan(PlanRequest(**request), sides=SideSeeds(**sides), **arguments)


def hashes(plan: RunPlan) -> tuple[str, str]:
    return plan.schedule.sha256, plan.workload_sha256


def test_the_same_arguments_give_the_same_plan() -> None:
    assert record_of(make()) == record_of(make())


def test_the_schedule_covers_warm_up_window_and_tail() -> None:
    at_ns = make().schedule.at_ns
    assert at_ns[-1] < WINDOW.horizon_ns
    assert at_ns[-1] > WINDOW.end_ns


def test_what_one_stream_is_used_for_moves_no_other() -> None:
    base = make()
    bursty = make(arrivals=Arrivals.gamma(cv=2))
    n = min(len(base), len(bursty))
    assert bursty.schedule.sha256 != base.schedule.sha256
    assert np.array_equal(bursty.input_tokens[:n], base.input_tokens[:n])
    assert bursty.content_seed == base.content_seed
    longer = make(lengths=replace(LENGTHS, output=parse_law("500")))
    assert longer.schedule.sha256 == base.schedule.sha256
    assert np.array_equal(longer.input_tokens, base.input_tokens)
    assert longer.content_seed == base.content_seed
    assert longer.workload_sha256 != base.workload_sha256


def test_each_side_has_a_seed_of_its_own() -> None:
    base = make()
    arrivals = [make(arrival=seed) for seed in (7, 8)]
    assert len({plan.schedule.sha256 for plan in [base, *arrivals]}) == 3
    for plan in arrivals:
        n = min(len(plan), len(base))
        assert np.array_equal(plan.input_tokens[:n], base.input_tokens[:n])
        assert plan.content_seed == base.content_seed
    workloads = [make(workload=seed) for seed in (7, 8)]
    assert len({plan.content_seed for plan in [base, *workloads]}) == 3
    assert len({plan.input_tokens.tobytes() for plan in [base, *workloads]}) == 3
    assert {plan.schedule.sha256 for plan in workloads} == {base.schedule.sha256}


def test_replicates_stay_independent_under_a_seed_for_one_side() -> None:
    plans = [make(root_seed=root, arrival=7, workload=7) for root in range(5)]
    assert len({plan.schedule.sha256 for plan in plans}) == 5
    assert len({plan.content_seed for plan in plans}) == 5


def test_a_replicate_is_paired_across_rates() -> None:
    slow, fast = make(rate=10.0), make(rate=25.0)
    n = len(slow)
    assert np.allclose(slow.schedule.at_ns / 2.5, fast.schedule.at_ns[:n], rtol=1e-15, atol=2)
    one, other = Bodies(slow, JsonMembers()), Bodies(fast, JsonMembers())
    assert [one.encode(i) for i in range(n)] == [other.encode(i) for i in range(n)]


def test_content_can_be_unpaired_and_nothing_else_is() -> None:
    base = make()
    keyed = [make(content_key=key) for key in ((6.0, 0), (6.0, 1), (6.5, 0))]
    assert len({plan.content_seed for plan in [base, *keyed]}) == 4
    assert len({plan.workload_sha256 for plan in [base, *keyed]}) == 4
    for plan in keyed:
        assert plan.schedule.sha256 == base.schedule.sha256
        assert np.array_equal(plan.input_tokens, base.input_tokens)
    assert hashes(make(content_key=(6, 0))) == hashes(keyed[0])


def test_the_workload_hash_covers_what_decides_the_bytes() -> None:
    forms = [
        RequestFormat(),
        RequestFormat(stop="natural"),
        RequestFormat(temperature=1.0),
        RequestFormat(prompt="text"),
        RequestFormat(endpoint="chat", prompt="text"),
        RequestFormat(token_ids=(1000, 4001)),
        RequestFormat(stream=False),
        RequestFormat(limit_field="max_completion_tokens"),
        RequestFormat(usage=False),
    ]
    assert len({make(format=form).workload_sha256 for form in forms}) == len(forms)


def test_members_of_the_format_that_came_later_leave_older_hashes_as_they_were() -> None:
    assert json.loads(RequestFormat().hashed()).keys() == {
        "endpoint",
        "prompt",
        "stop",
        "temperature",
        "token_ids",
        "stream",
    }


def test_a_cohort_count_makes_the_window_as_long_as_it_takes() -> None:
    plan = make(cohort=250)
    at_ns = plan.schedule.at_ns
    assert np.count_nonzero((at_ns >= plan.window.warmup_ns) & (at_ns < plan.window.end_ns)) == 250
    assert at_ns[-1] > plan.window.end_ns
    assert at_ns[-1] < plan.window.horizon_ns == plan.window.end_ns + 3 * NS


def test_a_recorded_schedule_is_taken_as_it_is() -> None:
    recorded = Schedule(at_ns=np.array([0, 5, 5, 9 * NS]))
    plan = make(arrivals=recorded)
    assert plan.schedule is recorded
    assert np.array_equal(plan.input_tokens, make().input_tokens[:4])
    with pytest.raises(ValueError, match="does not apply"):
        make(arrivals=recorded, cohort=3)


def test_a_plan_without_requests_is_a_plan() -> None:
    plan = make(window=Window(warmup_ns=0, window_ns=1, tail_ns=0))
    assert len(plan) == 0
    assert Bodies(plan, JsonMembers()) is not None


def test_columns_cannot_be_changed() -> None:
    plan = make()
    for column in (plan.input_tokens, plan.output_tokens, plan.prefix_tokens, plan.prefix_group, plan.schedule.at_ns):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_a_format_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="chat messages are text"):
        make(format=RequestFormat(endpoint="chat"))
    with pytest.raises(ValueError, match="not a range of a vocabulary"):
        make(format=RequestFormat(token_ids=(9, 9)))


def test_the_record_of_a_plan_is_json_and_names_numpy() -> None:
    stored = json.loads(to_json(record_of(make(workload=7))))
    assert stored["numpy"] == np.__version__
    assert (stored["root_seed"], stored["arrival_root"]) == (101, 101)
    assert stored["workload_root"] not in (7, 101)
    assert stored["window"] == {"warmup_ns": 2 * NS, "window_ns": 10 * NS, "tail_ns": 3 * NS}
