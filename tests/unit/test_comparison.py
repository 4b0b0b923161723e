"""Comparisons: what is refused before anything is sent, and both phases on simulated variants whose order is known."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest

from analysis.compare.pairs import at_larger_rate, paired, primary_verdict
from analysis.search import Outcome, RunRequest
from loadgen.common.errors import ScenarioError, TargetUnreachable
from loadgen.experiment.compare.memory import rehearse_comparison
from loadgen.experiment.compare.setup import OWN, ComparisonSetup, prepare_comparison
from loadgen.experiment.rehearse import MemoryRunner
from loadgen.experiment.runner import RunResult
from loadgen.scenario.comparison import parse_variant
from loadgen.scenario.file import SHIPPED, load_comparison, load_scenario

QUICK = {"rate": "2..8", "width": "20%", "cohort": 300, "runs": 3, "slo": ("e2e<=1s",), "output": "2", "warmup": "5s"}


def comparison(*variants: str, **settings: object) -> ComparisonSetup:
    own = {key: settings.pop(key) for key in ("per_gpu", "paired_rate", "indifference") if key in settings}
    scenario, compared = load_comparison(None, {**QUICK, **settings}, {"variant": variants, **own})
    return prepare_comparison(scenario, compared)


def test_a_variant_is_written_in_one_option() -> None:
    one = parse_variant("tp4=http://h:1,http://h:2,gpus=8,tp=4")
    assert (one.name, one.target, one.gpus, one.tp, one.served_by) == ("tp4", ("http://h:1", "http://h:2"), 8, 4, 2)


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        (("a=http://h",), "two variants or more, not a"),
        (("a=http://h", "a=http://g"), "variant a is named twice"),
        (("a=http://h", "b"), "write name=URL"),
        (("a=http://h", "b=http://g,gpus=0"), "gpus"),
        (("a=http://h", "b=http://g,colour=red"), "unknown key 'colour'"),
        (("a=http://h", "b=virtual:mm1,virtual:mm1"), r"virtual:mm1\?parallel.replicas=2"),
        (("a=http://h", "b=http://g,tp=4"), "tp = 4 needs 4 GPUs"),
        (("a=http://h", "b=http://g,tp=4,replicas=2,gpus=4"), "tp = 4 × replicas = 2 needs 8 GPUs; gpus = 4"),
        (("a=http://h", "b=http://g,tp=2,pp=2,gpus=2"), "tp = 2 × pp = 2 needs 4 GPUs; gpus = 2"),
        (("a=http://h", "b=http://g,http://i"), "2 servers: say how many GPUs they take"),
        (("a=http://h", "a.log=http://g"), "'a.log' is not a name"),
        (("a=http://h", f"{'b' * 9999}=http://g"), "variant b{99,999}.*is not a name"),
        (("a=http://h", "b=http://g,gpus=4"), "pass --per-gpu"),
        (("a=http://h", "b=http://g", "c=http://i,alternative_of=d"), "'d' is not a variant"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(variants: tuple[str, ...], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        comparison(*variants)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_scenario_of_variants_is_for_compare_and_keeps_its_own_settings(tmp_path: Path) -> None:
    file = tmp_path / "ab.toml"
    file.write_text(
        'rate = "2..8"\nper_gpu = true\n'
        '[[variant]]\nname = "one"\ntarget = "virtual:mm1"\n'
        '[[variant]]\nname = "four"\nlaunch = "serve --port {port}"\ngpus = 4\nenv = {A = "1"}\n'
    )
    with pytest.raises(ScenarioError, match="holds variants, and this command measures one target"):
        load_scenario(str(file), {})
    setup = prepare_comparison(*load_comparison(str(file), {"rate": "1..4"}, {}))
    assert [one.setup.scenario.rate for one in setup] == ["1..4", "4.0..16.0"]
    assert not setup.together
    file.write_text('[[variant]]\nname = "one"\ntarget = "u"\nlaunch = "x --port {port}"\n')
    with pytest.raises(ScenarioError, match="give target, or launch"):
        load_comparison(str(file), {}, {})


@pytest.mark.parametrize(
    ("name", "layouts", "together"),
    [
        ("tp-ab-emulated", {"tp1": (1, 1, 1), "4xtp1": (4, 1, 4), "2xtp2": (4, 2, 2), "tp4": (4, 4, 1)}, True),
        ("tp-ab", {"tp1": (1, 1, 1), "4xtp1": (4, 1, 4), "tp4": (4, 4, 1), "pp4": (4, None, 1)}, False),
    ],
)
def test_ready_comparisons_load_and_are_compared_per_gpu(
    name: str, layouts: dict[str, tuple[int, int | None, int]], together: bool
) -> None:
    setup = prepare_comparison(*load_comparison(name, {}, {}))
    found = {one.name: (one.gpus, one.settings.tp, one.settings.served_by) for one in setup}
    assert found == layouts
    assert setup.settings.per_gpu
    assert setup.together == together
    for one in setup:
        assert one.settings.launch is None or "--port {port}" in one.settings.launch
    assert {path.stem for path in SHIPPED.glob("*.toml") if "[[variant]]" in path.read_text()} == {
        "tp-ab", "tp-ab-emulated",
    }  # fmt: skip


def test_an_alternative_has_the_gpus_and_layout_of_its_variant_unless_it_says_others(tmp_path: Path) -> None:
    file = tmp_path / "ab.toml"
    start = 'launch = "serve --port {port}"\n'
    file.write_text(
        f'[[variant]]\nname = "tp4"\n{start}gpus = 4\ntp = 4\nenv = {{A = "1"}}\nready_timeout = "9m"\n'
        f'[[variant]]\nname = "more"\n{start}alternative_of = "tp4"\n'
        f'[[variant]]\nname = "tp2"\n{start}alternative_of = "tp4"\ntp = 2\nenv = {{}}\n'
        '[[variant]]\nname = "up"\ntarget = "http://h"\nalternative_of = "tp4"\n'
        '[[variant]]\nname = "other"\ntarget = "http://h"\ngpus = 4\n'
    )
    _, settings = load_comparison(str(file), {}, {})
    found = {one.name: (one.gpus, one.tp, dict(one.env), one.ready_timeout) for one in settings.variant}
    assert found["more"] == (4, 4, {"A": "1"}, 540.0)
    assert found["tp2"] == (4, 2, {}, 540.0)
    assert found["up"] == (4, 4, {}, 540.0)


def test_a_secret_in_a_launch_command_would_be_stored(tmp_path: Path) -> None:
    file = tmp_path / "ab.toml"
    file.write_text('[[variant]]\nname = "a"\nlaunch = "serve --api-key abc"\n')
    with pytest.raises(ScenarioError, match="names a secret") as refused:
        load_comparison(str(file), {}, {})
    assert "abc" not in str(refused.value)


def test_one_server_twice_gives_the_same_capacity_and_identical_pairs() -> None:
    done = rehearse_comparison(comparison("a=virtual:mm1", "b=virtual:mm1"))
    assert done.measured.outcomes["a"].capacity == done.measured.outcomes["b"].capacity is not None
    runs = {name: [run for run in done.runs if (run.variant, run.label) == (name, OWN)] for name in "ab"}
    assert [run.seed for run in runs["a"]] == [run.seed for run in runs["b"]]
    difference = paired(runs["a"], runs["b"], "g_card")
    assert difference.identical
    assert difference.n == 3


def test_what_a_rehearsal_comes_to_can_be_handed_to_another_process() -> None:
    done = rehearse_comparison(comparison("a=virtual:mm1", "b=virtual:mm1", rate="6"))
    assert pickle.loads(pickle.dumps(done)).answer == done.answer


def test_a_faster_server_wins_at_its_own_capacity_and_all_meet_at_the_smaller_one() -> None:
    setup = comparison("slow=virtual:mm1", "fast=virtual:mm1?service.mean_ms=30", rate="4..32")
    done = rehearse_comparison(setup)
    own = {name: outcome.capacity for name, outcome in done.measured.outcomes.items()}
    assert own["slow"] is not None
    assert own["fast"] is not None
    assert own["fast"] > 1.2 * own["slow"]
    assert done.measured.phase is not None
    at_both = [dict.fromkeys(own, own["slow"]), dict.fromkeys(own, own["fast"])]
    assert [point.rates for point in done.measured.phase.plan.points] == [own, *at_both]
    runs = {name: [run for run in done.runs if (run.variant, run.label) == (name, OWN)] for name in own}
    there = at_larger_rate(done.runs, runs["slow"], runs["fast"])
    verdict = primary_verdict(paired(runs["slow"], runs["fast"], "g_card"), indifference=0.03, same_rate=there)
    assert verdict.winner == "B"
    both = [run for run in done.runs if run.label != OWN]
    assert len({run.schedule_sha256 for run in both}) == len({run.workload_sha256 for run in both}) == 2 * 3


def test_a_search_that_could_not_tell_has_no_capacity_to_be_compared_at() -> None:
    setup = comparison("a=virtual:mm1", "b=virtual:mm1", "c=virtual:mm1", paired_rate="3")
    found = Outcome(name="FOUND", reason="", capacity=6.0)
    outcomes = {"a": found, "b": Outcome(name="BELOW_RANGE", reason=""), "c": Outcome(name="UNDECIDED", reason="")}
    own, shared, larger, listed = setup.plan(outcomes).points
    assert own.rates == {"a": 6.0, "b": 2.0}
    assert shared.rates == {"a": 2.0, "b": 2.0}
    assert larger.rates == {"a": 6.0, "b": 6.0}
    assert listed.rates == {"a": 3.0, "b": 3.0, "c": 3.0}
    alone = setup.plan(outcomes | {"b": Outcome(name="CLIENT_LIMITED", reason="")})
    assert [point.label for point in alone.points] == ["3/s"]


def test_every_two_variants_meet_at_the_larger_of_their_capacities() -> None:
    setup = comparison("a=virtual:mm1", "b=virtual:mm1", "c=virtual:mm1", "d=virtual:mm1", paired_rate="4,3")
    outcomes = {
        name: Outcome(name="FOUND", reason="", capacity=rate)
        for name, rate in {"a": 5.0, "b": 4.0, "c": 2.5, "d": 5.0}.items()
    }
    points = {point.label: point.rates for point in setup.plan(outcomes).points}
    assert points == {
        OWN: {"a": 5.0, "b": 4.0, "c": 2.5, "d": 5.0},
        "2.5/s": dict.fromkeys("abcd", 2.5),
        "4/s": dict.fromkeys("abcd", 4.0),  # listed as well: else it is of b and c
        "5/s": dict.fromkeys("abcd", 5.0),
        "3/s": dict.fromkeys("abcd", 3.0),
    }
    alone = comparison("a=virtual:mm1", "b=virtual:mm1", "c=virtual:mm1")
    outcomes = {name: outcomes[name] for name in "abc"}
    assert {point.label: tuple(point.rates) for point in alone.plan(outcomes).points} == {
        OWN: ("a", "b", "c"), "2.5/s": ("a", "b", "c"), "4/s": ("b", "c"), "5/s": ("a", "b", "c"),
    }  # fmt: skip


def test_one_rate_per_gpu_is_one_rate_whatever_its_last_digits() -> None:
    setup = comparison("one=virtual:mm1", "three=virtual:mm1,gpus=3", per_gpu=True, rate="0.1..0.8", width="5%")
    one, three = (setup[name].setup.spec.grid for name in ("one", "three"))
    step = next(k for k in range(len(one)) if three[k] / 3 != one[k])  # the same share but for rounding
    outcomes = {
        name: Outcome(name="FOUND", reason="", capacity=grid[step])
        for name, grid in {"one": one, "three": three}.items()
    }
    assert [point.label for point in setup.plan(outcomes).points] == [OWN]
    lower = {"one": outcomes["one"], "three": Outcome(name="FOUND", reason="", capacity=three[step - 1])}
    jobs = list(setup.plan(lower).jobs())
    assert len({(job.variant, f"{job.rate:.6g}", job.replicate) for job in jobs}) == len(jobs) == 2 * 2 * 3


def test_capacities_that_differ_by_luck_alone_are_no_difference_that_is_claimed() -> None:
    setup = comparison(
        "a=virtual:mm1?service.seed=1", "b=virtual:mm1?service.seed=2", runs=6, width="5%", rate="2..18", seed=1001,
        slo=("e2e<=250ms",), output="1", cohort=500,
    )  # fmt: skip
    done = rehearse_comparison(setup)
    a, b = ([run for run in done.runs if (run.variant, run.label) == (name, OWN)] for name in "ab")
    difference, there = paired(a, b, "g_card"), at_larger_rate(done.runs, a, b)
    assert primary_verdict(difference, indifference=0.03).winner == "A"
    verdict = primary_verdict(difference, indifference=0.03, same_rate=there)
    assert verdict.winner == "cannot tell"
    assert done.answer.primary == (verdict,)
    assert f"but at {there[0].label} for both, G_card differs by {there[0].mean:+.2%}" in verdict.words


def test_a_variant_lost_among_the_pairs_leaves_no_verdict_on_it_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated, begun = MemoryRunner.run, Counter[str]()

    def losing(self: MemoryRunner, request: RunRequest) -> RunResult:
        (target,) = self.on.setup.scenario.target
        begun[target] += request.kind == "paired"
        if target.endswith("=30") and begun[target] > 1:
            raise TargetUnreachable("gone")
        return simulated(self, request)

    monkeypatch.setattr(MemoryRunner, "run", losing)
    slow, mid, fast = "slow=virtual:mm1", "mid=virtual:mm1?service.mean_ms=50", "fast=virtual:mm1?service.mean_ms=30"
    two = rehearse_comparison(comparison(slow, fast, rate="4..32")).answer
    assert (two.outcome, two.reason) == ("UNSTABLE_TARGET", "fewer than two variants are left to be compared")
    assert [(one.winner, one.difference.n) for one in two.primary] == [("cannot tell", 1)]
    begun.clear()
    three = rehearse_comparison(comparison(slow, mid, fast, rate="4..32")).answer
    assert three.outcome == "COMPLETE"
    assert {(one.a, one.b, one.difference.n) for one in three.primary} == {("slow", "mid", 3)}
    assert {run.rate for run in three.runs} == {one.at for one in three.capacities if one.variant != "fast"}


def test_listed_rates_are_only_paired() -> None:
    setup = comparison("a=virtual:mm1", "b=virtual:mm1?service.mean_ms=30", rate="3,5")
    done = rehearse_comparison(setup)
    assert done.measured.outcomes == {}
    assert [(run.label, run.variant) for run in done.runs if run.replicate == 0] == [
        ("3/s", "a"), ("3/s", "b"), ("5/s", "a"), ("5/s", "b"),
    ]  # fmt: skip


def test_a_budget_ends_it_with_what_is_known() -> None:
    done = rehearse_comparison(comparison("a=virtual:mm1", "b=virtual:mm1", max_requests=2000))
    assert done.measured.stopped is not None
    assert done.measured.stopped[0] == "BUDGET_EXHAUSTED"
    assert done.runs == ()
