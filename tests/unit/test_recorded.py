"""Which stretch of a trace a run replays: places, warm-up, tail, rates, and what is said of all that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from result_files import experiment

from analysis.search import RunRequest
from loadgen.common.errors import ScenarioError
from loadgen.experiment.prepare import pinned, prepare
from loadgen.experiment.run_plan import plan_of
from loadgen.plan.types import NS, PlanRequest, RunPlan
from loadgen.results.answer import conditions
from loadgen.scenario.file import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.workload.workload import Workload, search_spec
from traces.errors import TraceError
from traces.trace import BlockHashes, Trace
from traces.write import write_trace


def made(n: int = 6000, *, rate: float = 5.0, seed: int = 1, sessions: bool = False) -> Trace:
    rng = np.random.default_rng(seed)
    at = np.concatenate(([0], np.cumsum(rng.exponential(NS / rate, size=n - 1)).astype(np.int64)))
    counts = rng.integers(0, 4, size=n)
    session = np.arange(n) // 3 if sessions else None
    return Trace(
        at_ns=at,
        input_tokens=np.maximum(counts * 16, 1) + rng.integers(0, 16, size=n) * (counts > 0),
        output_tokens=rng.integers(1, 30, size=n),
        line=np.arange(n) + 1,
        outcome=np.zeros(n),
        hashes=BlockHashes(
            ids=rng.integers(0, 500, size=int(counts.sum())),
            starts=np.concatenate(([0], np.cumsum(counts))),
            block_tokens=16,
        ),
        session=session,
        parent=None if session is None else np.where(np.arange(n) % 3 == 0, -1, np.arange(n) - 1),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_trace(made(), tmp_path / "t.parquet", "parquet")
    return tmp_path / "t.parquet"


def scenario(file: Path, **more: Any) -> Scenario:
    settings = {"arrivals": f"trace:{file}", "rate": "5,10", "runs": 4, "window": "60s", "warmup": "10s"}
    return load_scenario(None, settings | more)


def plans(chosen: Scenario, rate: float, *, block: int = -1) -> list[RunPlan]:
    workload = Workload.of(chosen)
    window = workload.window(chosen.warmup)
    spec = search_spec(chosen)
    count = spec.exploring if block < 0 else spec.runs
    return [
        workload.plan(PlanRequest(rate=rate, root_seed=100 + r, window=window, replicate=r, block=block))
        for r in range(count)
    ]


def cohort(plan: RunPlan) -> slice:
    return slice(*np.searchsorted(plan.schedule.at_ns, [plan.window.warmup_ns, plan.window.end_ns]))


def lines_of(plan: RunPlan, trace: Trace) -> list[int]:
    """Where the cohort's requests stand in the trace, by gaps and lengths, which no two stretches share."""
    part = cohort(plan)
    key = list(zip(plan.input_tokens[part].tolist(), plan.output_tokens[part].tolist(), strict=True))
    whole = list(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    for start in range(len(whole)):
        if whole[start : start + len(key)] == key:
            return list(range(start, start + len(key)))
    raise AssertionError("no such stretch")


def offered(plan: RunPlan) -> float:
    """Requests/s in the window."""
    part = cohort(plan)
    return (part.stop - part.start) / (plan.window.window_ns / NS)


def test_blocks_are_disjoint_at_the_highest_rate_and_for_every_candidate(file: Path) -> None:
    chosen = scenario(file, rate="5..10", width="50%", window="30s", min_requests=100)
    recorded = Workload.of(chosen).recorded
    assert recorded is not None
    assert recorded.places is not None
    assert recorded.places.sets == 4  # 20 blocks of 300 requests: 1 to explore, 4 for each candidate
    seen: list[int] = []
    for plan in [*plans(chosen, 10.0), *(plan for c in range(4) for plan in plans(chosen, 10.0, block=c))]:
        seen += lines_of(plan, made())
    assert len(seen) == len(set(seen)) == 5100


def test_where_a_trace_has_too_few_blocks_they_are_used_again_and_that_is_said(file: Path) -> None:
    chosen = scenario(file, rate="5..10")
    workload = Workload.of(chosen)
    assert any("up to 2 candidates: the trace has no more, and candidate 3" in note for note in workload.notes)
    first, second, third = (plans(chosen, rate, block=c) for c, rate in enumerate((10.0, 9.0, 8.0)))
    starts = [[lines_of(plan, made())[0] for plan in of] for of in (first, second, third)]
    assert not set(starts[0]) & set(starts[1])
    assert starts[2] == starts[0]
    assert third[0].origin.startswith("block 2, of candidate 3, shared with candidate 1: ")
    enough = scenario(file, rate="5..10", width="50%", window="30s", min_requests=100)
    assert any("blocks that no other run meets" in note and "up to" not in note for note in Workload.of(enough).notes)


def bursty() -> Trace:
    """A trace whose rate goes from 2 to 8 requests/s in its middle: a whole-trace mean fits no part of it."""
    rng = np.random.default_rng(3)
    gaps = np.concatenate([rng.exponential(1 / 2, 3000), rng.exponential(1 / 8, 3000)])
    at = (np.cumsum(gaps) * NS).astype(np.int64)
    ones = np.ones(at.size)
    return Trace(at_ns=at - at[0], input_tokens=ones, output_tokens=ones, line=ones, outcome=np.zeros(at.size))


@pytest.mark.parametrize("rate", [5.0, 7.3, 10.0])
def test_every_run_offers_the_rate_it_is_named_by(tmp_path: Path, rate: float) -> None:
    write_trace(bursty(), tmp_path / "b.parquet", "parquet")
    chosen = scenario(tmp_path / "b.parquet", rate="5..10")
    for plan in [*plans(chosen, rate), *plans(chosen, rate, block=0)]:
        assert abs(offered(plan) - rate) * plan.window.window_ns / NS < 1  # to within one request
    assert any("own mean rate, recorded as 1." in note for note in Workload.of(chosen).notes)


def test_ties_of_a_coarse_clock_stay_together_and_blocks_disjoint(tmp_path: Path) -> None:
    fine = made()
    second = Trace(
        at_ns=fine.at_ns // NS * NS, input_tokens=fine.input_tokens, output_tokens=fine.output_tokens, line=fine.line,
        outcome=fine.outcome,
    )  # fmt: skip
    write_trace(second, tmp_path / "s.parquet", "parquet")
    chosen = scenario(tmp_path / "s.parquet", rate="5..10")
    seen: list[int] = []
    for plan in [*plans(chosen, 10.0), *plans(chosen, 10.0, block=0)]:
        assert offered(plan) == pytest.approx(10.0, rel=0.02)
        seen += lines_of(plan, second)
    assert len(seen) == len(set(seen))


def test_a_thinned_block_keeps_its_own_share(tmp_path: Path) -> None:
    write_trace(bursty(), tmp_path / "b.parquet", "parquet")
    chosen = scenario(tmp_path / "b.parquet", rate="1", rate_method="thin", window="5m", min_requests=100)
    rates = [offered(plan) for plan in plans(chosen, 1.0)]
    assert max(abs(rate - 1.0) for rate in rates) < 4 / np.sqrt(300)  # four standard deviations of a count of 300
    with pytest.raises(ScenarioError, match="thinning cannot raise the rate of a block from 1"):
        Workload.of(scenario(tmp_path / "b.parquet", rate="3", rate_method="thin", window="5m", min_requests=100))


def test_a_replicate_has_the_same_place_at_every_rate_and_time_is_scaled_exactly(file: Path) -> None:
    trace, chosen = made(), scenario(file)
    for slow, fast in zip(plans(chosen, 5.0), plans(chosen, 10.0), strict=True):
        a, b = lines_of(slow, trace), lines_of(fast, trace)
        assert a[0] == b[0]
        assert (len(a), len(b)) == (300, 600)
    fast_at = fast.schedule.at_ns[cohort(fast)]
    recorded = trace.at_ns[b] - trace.at_ns[b[0]]
    speed = recorded[-1] / (fast_at[-1] - fast_at[0])
    assert np.abs((fast_at - fast_at[0]) - recorded / speed).max() <= 1.01


def test_warm_up_and_tail_come_from_around_the_block_with_all_that_was_recorded(file: Path) -> None:
    trace = made()
    plan = plans(scenario(file), 5.0)[2]
    rows = lines_of(plan, trace)
    before = cohort(plan).start
    first, last = rows[0] - before, rows[0] - before + len(plan)
    assert before > 20
    assert last > rows[-1] + 20
    gaps, recorded = np.diff(plan.schedule.at_ns), np.diff(trace.at_ns[first:last])
    assert np.abs(gaps - recorded * (gaps.sum() / recorded.sum())).max() <= 2
    assert np.array_equal(plan.input_tokens, trace.input_tokens[first:last])
    assert plan.blocks is not None
    assert trace.hashes is not None
    assert np.array_equal(plan.blocks.ids, trace.hashes.take(np.arange(first, last)).ids)


def test_the_first_blocks_warm_up_comes_from_the_end_of_the_trace(file: Path) -> None:
    plan = plans(scenario(file), 5.0)[0]
    assert plan.schedule.at_ns[0] < 2 * NS
    assert lines_of(plan, made())[0] == 0


@pytest.mark.parametrize(("method", "rate"), [("thin", 2.5), ("superpose", 12.0)])
def test_other_ways_to_a_rate_are_named_and_leave_time_alone(file: Path, method: str, rate: float) -> None:
    chosen = scenario(file, rate=str(rate), rate_method=method)
    made_plans = plans(chosen, rate)
    total = sum(cohort(plan).stop - cohort(plan).start for plan in made_plans)
    assert total / 240 == pytest.approx(rate, rel=0.15)
    assert {"thin": "thinned to", "superpose": "rotated copies superposed"}[method] in made_plans[0].origin
    assert "CV of gaps" in made_plans[0].origin
    # another seed draws other requests from the same place
    again = Workload.of(chosen).plan(PlanRequest(rate=rate, root_seed=999, window=made_plans[0].window))
    assert again.schedule.sha256 != made_plans[0].schedule.sha256


def test_repeats_offer_one_window_with_other_content(file: Path) -> None:
    one, other = plans(scenario(file, replicates="repeats", runs=2), 5.0)
    assert one.schedule.sha256 == other.schedule.sha256
    assert one.workload_sha256 != other.workload_sha256


def test_content_is_shared_only_when_asked(file: Path) -> None:
    own = [plan.content_seed for plan in plans(scenario(file), 5.0)]
    assert len(set(own)) == 4
    shared = [plan.content_seed for plan in plans(scenario(file, share_content=True, cache="keep"), 5.0)]
    assert len(set(shared)) == 1


def test_instants_alone_and_lengths_alone_can_be_taken_from_a_trace(file: Path, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("7,3\n9,4\n")
    plan = plans(scenario(file, lengths=str(tmp_path / "l.csv")), 5.0)[0]
    assert np.array_equal(plan.schedule.at_ns, plans(scenario(file), 5.0)[0].schedule.at_ns)
    assert set(plan.input_tokens.tolist()) == {7, 9}
    assert plan.blocks is None
    drawn = Workload.of(load_scenario(None, {"lengths": f"trace:{file}"})).lengths.table
    assert drawn is not None
    assert np.array_equal(drawn.rows[:, :2], np.stack([made().input_tokens, made().output_tokens], axis=1))


def test_arrivals_are_fitted_to_a_trace(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rates = np.repeat(np.where(rng.random(200) < 0.25, 20.0, 2.0), 50)
    gaps = rng.exponential(1 / rates)
    at = np.concatenate(([0], np.cumsum(gaps * NS).astype(np.int64)))
    n = at.size
    bursty = Trace(at_ns=at, input_tokens=np.ones(n), output_tokens=np.ones(n), line=np.zeros(n), outcome=np.zeros(n))
    write_trace(bursty, tmp_path / "b.csv", "csv")
    for kind, says in (("fit-gamma", "Gamma gaps fitted"), ("fit-mmpp", "Markov-modulated arrivals fitted")):
        workload = Workload.of(load_scenario(None, {"arrivals": f"{kind}:{tmp_path / 'b.csv'}"}))
        assert any(says in note for note in workload.notes)
        window = replace(workload.window(0.0), window_ns=2400 * NS)
        at_ns = workload.plan(PlanRequest(rate=4.0, root_seed=1, window=window)).schedule.at_ns
        counts = np.bincount(at_ns // (10 * NS))
        assert at_ns.size / 2400 == pytest.approx(4.0, rel=0.25)
        assert counts.var() / counts.mean() > 1.5  # Poisson's would be 1


def test_the_hash_of_a_scenario_covers_what_its_files_hold(file: Path) -> None:
    before = prepare(scenario(file))
    assert before.scenario.trace_sha256 == made().sha256
    write_trace(made(seed=2), file, "parquet", force=True)
    after = prepare(scenario(file))
    assert before.scenario.sha256 != after.scenario.sha256
    with pytest.raises(ScenarioError, match="the file holds other requests than it did"):
        prepare(before.scenario)


def test_blocks_are_called_blocks_and_their_length_is_held_against_the_autocorrelation_time(file: Path) -> None:
    setup = prepare(scenario(file))
    text = "\n".join(setup.workload.notes)
    assert "no binomial sentence" in text
    assert "autocorrelation times" in text
    assert "at 10 requests/s the whole trace is time scaled by 1/" in text
    of_blocks = conditions(setup.scenario, setup.spec, experiment())
    assert of_blocks.replicates == "block"
    assert setup.scenario.trace_sha256 is not None
    assert setup.scenario.trace_sha256[:12] in of_blocks.arrivals
    short = prepare(scenario(file, window="2s", min_requests=1))
    assert any("resemble their neighbours" in note for note in short.workload.notes)


def test_a_run_is_planned_at_its_replicates_place_and_a_sentinel_at_the_first(file: Path) -> None:
    setup = prepare(scenario(file))
    request = {"rate": 5.0, "rate_index": 0, "block": -1, "seed": 7, "attempt": 0, "key": "k"}
    third = plan_of(RunRequest(kind="explore", replicate=2, **request), setup.workload, warmup_s=10.0)  # type: ignore[arg-type]
    sentinel = plan_of(RunRequest(kind="sentinel", replicate=2, **request), setup.workload, warmup_s=10.0)  # type: ignore[arg-type]
    assert third.schedule.sha256 == plans(setup.scenario, 5.0)[2].schedule.sha256
    assert sentinel.schedule.sha256 == plans(setup.scenario, 5.0)[0].schedule.sha256


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"arrivals": "burst"}, "not an arrival process"),
        ({"arrivals": "trace:"}, "not an arrival process"),
        ({"window": "10m"}, "shorten --window to 2m 30s"),
        ({"window": "20s"}, "holds 100 requests"),
        ({"window": "30m", "replicates": "repeats"}, "shorten --window"),
        ({"rate": "50", "rate_method": "thin"}, "thinning cannot raise the rate"),
        ({"rate": "1", "rate_method": "superpose"}, "superposition cannot lower the rate"),
        ({"cohort": 500, "window": None}, "cohort has no meaning for a trace"),
        ({"closed": 4}, "closed and arrivals = trace exclude each other"),
        ({"input": "64"}, "a trace brings its own lengths"),
        ({"share_content": True}, "needs cache = keep"),
        ({"trace_window": "40m..10m"}, "is an empty window"),
        ({"trace_window": "10"}, "write START..END"),
        ({"trace_window": "10h.."}, "no request between"),
        ({"sessions": "dependent"}, "no open loop"),
        ({"speed": 2.0}, "belong to loadgen replay"),
        ({"arrivals": "poisson", "unit": "ms"}, "unit says how a trace is read"),
        ({"arrivals": "poisson", "replicates": "repeats"}, "need arrivals = trace:FILE"),
        ({"arrivals": "poisson", "trace_window": "1m.."}, "need a trace"),
        ({"trace_sha256": "0" * 64}, "the file holds other requests than it did"),
        ({"map": "x"}, "is not NAME=COLUMN"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(file: Path, more: dict[str, Any], says: str) -> None:
    settings = {"arrivals": f"trace:{file}", "rate": "5,10", "runs": 4, "window": "60s"} | more
    with pytest.raises((ScenarioError, TraceError)) as refused:
        prepare(load_scenario(None, {key: value for key, value in settings.items() if value is not None}))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_of_a_scenario_lie_beside_it(file: Path) -> None:
    toml = file.with_name("s.toml")
    toml.write_text(f'arrivals = "trace:{file.name}"\nlengths = "trace:{file.name}"\nrate = "5"\nwindow = "60s"\n')
    chosen = load_scenario(str(toml), {})
    assert chosen.arrivals == f"trace:{file}"
    assert chosen.lengths == f"trace:{file}"
    workload = Workload.of(chosen)
    assert pinned(chosen, workload).lengths_sha256 is not None


@pytest.mark.parametrize(("method", "rate"), [("superpose", "12"), ("thin", "2.5")])
def test_the_figures_of_a_superposition_are_those_of_what_a_run_sends(file: Path, method: str, rate: str) -> None:
    chosen = scenario(file, rate=rate, rate_method=method)
    workload = Workload.of(chosen)
    (note,) = [note for note in workload.notes if note.startswith(f"at {rate} requests/s")]
    assert "a run is like block 1: 60 s from 0 s on" in note
    plan = workload.plan(PlanRequest(rate=float(rate), root_seed=1, window=workload.window(0.0)))
    here = int((plan.schedule.at_ns < 60 * NS).sum())
    told = int(note.split("in the window ")[1].split(" requests, rate ")[0])
    assert told == pytest.approx(here, rel=0.2)  # other rotations, or other draws, of one block
    assert f"rate {told / 60:.4f}/s over 60.000 s" in note
