"""Runs, frontier, decision and the gate against a baseline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.compare.decision import cost_per_million_tokens, costs, decide, layout
from analysis.compare.frontier import envelope, frontier
from analysis.compare.gate import gate
from analysis.compare.pairs import paired, primary_verdict
from analysis.compare.runs import variant_run
from analysis.compare.types import VariantRun, VariantSpec
from analysis.slo import Slo
from tests.unit.run_tables import NS, served, some

TP4 = VariantSpec(name="tp4", gpus=4, tp=4)
REPLICAS = VariantSpec(name="four", gpus=4, tp=1, replicas=4)


def measured(spec: VariantSpec = TP4, *, spoiled: dict[str, object] | None = None, **given: object) -> VariantRun:
    known: dict[str, object] = {
        "slo": Slo(ttft_s=0.45), "warmup_ns": 20 * NS, "window_ns": 100 * NS, "label": "10/s", "rate": 10.0,
        "replicate": 0, "seed": 1, "status": "PASS", "schedule_sha256": "s", "workload_sha256": "w",
    }  # fmt: skip
    return variant_run(served(**(spoiled or {})), spec, **(known | given))  # type: ignore[arg-type]


BASE = measured()


def runs(variant: str, noise: np.ndarray, *, slower: float = 0.0) -> list[VariantRun]:
    """One run a row of `noise`, which moves the latencies; a slower server serves fewer good tokens as well."""
    one = replace(BASE, variant=variant)
    return [
        replace(
            one, replicate=r, seed=r, log_ttft=-1 + slower + e[0], log_e2e=0.5 + slower + e[1],
            attainment=0.97 + 0.002 * e[2], token_goodput_per_s=100 * (1 + e[3]), results_sha256=f"{variant}{r}",
        )
        for r, e in enumerate(noise)
    ]  # fmt: skip


def test_a_run_counts_the_tokens_of_good_requests_of_the_window_per_gpu():
    found = measured(spoiled={"outcome": some(1400, "timeout", "ok", first=300, count=100)})
    assert (found.good_requests, found.good_output_tokens, found.attainment) == (900, 9900, 0.9)
    assert (found.goodput_per_s, found.token_goodput_per_s, found.g_card) == (9.0, 99.0, 99.0 / 4)
    assert (found.log_ttft, found.log_e2e) == pytest.approx((np.log(0.4), np.log(0.5)))
    assert measured(slo=Slo(ttft_s=0.3)).g_card == 0
    assert measured(spoiled={"outcome": "timeout"}).log_ttft is None


def test_a_backlog_grows_by_what_is_outstanding_more_at_the_end_of_the_window():
    assert measured().backlog == 0.0  # 10/s for 0.5 s: five outstanding at both instants
    ended = served()["ended_ns"].to_numpy()
    never = np.where(np.arange(1400) // 100 == 3, -1, ended)  # a hundred of the cohort
    assert measured(spoiled={"ended_ns": never}).backlog == 0.1
    before = np.where(np.arange(1400) < 50, 100 * NS, ended)  # fifty of the warm-up, done by the window's end
    assert measured(spoiled={"ended_ns": before}).backlog == -0.05


def test_the_hash_tells_runs_apart_by_what_the_server_did():
    assert measured().results_sha256 == measured(REPLICAS).results_sha256
    assert measured().results_sha256 != measured(spoiled={"residence_s": 0.5 + 1e-9}).results_sha256
    late = {"outcome": some(1400, "timeout", "ok", first=300)}
    assert measured().results_sha256 != measured(spoiled=late).results_sha256


def test_frontier_and_envelope():
    tuned = replace(TP4, name="tp4-big", alternative_of="tp4")
    points = frontier(
        [measured(), measured(replicate=1), replace(measured(tuned), g_card=50.0),
         replace(measured(tuned, rate=20.0), g_card=1.0), replace(measured(), label="own")],
        [TP4, tuned],
    )  # fmt: skip
    assert [(p.configuration, p.variant, p.rate, p.runs) for p in points] == [
        ("tp4", "tp4", 10.0, 2), ("tp4-big", "tp4", 10.0, 1), ("tp4-big", "tp4", 20.0, 1)
    ]  # fmt: skip
    assert [(p.configuration, p.rate) for p in envelope(points)] == [("tp4-big", 10.0), ("tp4-big", 20.0)]


def verdict(factor: float, *, swapped: bool = False):
    wobble = [0.0, 0.1, -0.1, 0.2, -0.2, 0.0]
    tp = [replace(measured(), replicate=r, g_card=27 * factor + e, results_sha256=str(r)) for r, e in enumerate(wobble)]
    four = [replace(measured(REPLICAS), replicate=r, g_card=27.0) for r in range(6)]
    return primary_verdict(paired(four, tp, "g_card") if swapped else paired(tp, four, "g_card"), indifference=0.03)


@pytest.mark.parametrize("swapped", [False, True])
def test_tensor_parallelism_is_deserved_only_if_it_beats_as_many_replicas(swapped):
    rule = {"fits_one_gpu": True, "single_request_meets_slo": {}}
    (better,) = decide([TP4, REPLICAS], [verdict(1.1, swapped=swapped)], **rule)
    (worse,) = decide([TP4, REPLICAS], [verdict(0.9, swapped=swapped)], **rule)
    (equal,) = decide([TP4, REPLICAS], [verdict(1.0, swapped=swapped)], **rule)
    assert "is deserved: its G_card differs from that of four (4 × TP=1) by +9.5" in better
    assert "is not deserved: its G_card differs from that of four (4 × TP=1) by -10.5" in worse
    assert "is not deserved" in equal


def test_the_rule_needs_its_baseline_and_a_model_that_fits():
    alone = {"four": False, "tp4": True}
    assert "single request" in decide([TP4, REPLICAS], [], fits_one_gpu=True, single_request_meets_slo=alone)[0]
    assert "no variant of 4 replicas" in decide([TP4], [], fits_one_gpu=True, single_request_meets_slo={})[0]
    assert "not compared" in decide([TP4, REPLICAS], [], fits_one_gpu=True, single_request_meets_slo={})[0]
    assert "not known" in decide([TP4], [], fits_one_gpu=None, single_request_meets_slo={})[0]
    tp2 = VariantSpec(name="tp2", gpus=2, tp=2)
    (large,) = decide([TP4, tp2], [], fits_one_gpu=False, single_request_meets_slo={})
    assert large.startswith("The model does not fit one GPU: tp2 (TP=2)")
    assert (layout(REPLICAS), layout(VariantSpec(name="x", gpus=4, tp=2, pp=2))) == ("4 × TP=1", "TP=2 × PP=2")


def test_cost():
    assert cost_per_million_tokens(1000.0, 3.6) == pytest.approx(1.0)
    assert cost_per_million_tokens(0.0, 3.6) is None
    assert "per million" in costs([measured()], 2.5)[0]


class TestGate:
    def test_holms_first_step_is_the_one_sided_paired_test(self):
        noise = np.random.default_rng(3).normal(size=(2, 8, 4)) * 0.02
        new, old = runs("new", noise[0], slower=0.1), runs("old", noise[1])
        found = gate(new, old)
        assert found.name == "WORSE"
        ttft = next(one for one in found.endpoints if one.endpoint == "log_ttft")
        p = stats.ttest_rel([r.log_ttft for r in new], [r.log_ttft for r in old], alternative="greater").pvalue
        e2e = stats.ttest_rel([r.log_e2e for r in new], [r.log_e2e for r in old], alternative="greater").pvalue
        assert ttft.p_holm == pytest.approx(4 * p if p < e2e else max(3 * p, 4 * e2e))

    def test_better_is_no_alarm_and_identical_runs_are_not_tested(self):
        noise = np.random.default_rng(3).normal(size=(2, 8, 4)) * 0.01
        assert gate(runs("new", noise[0], slower=-0.2), runs("old", noise[1])).name == "NOT_WORSE"
        same = [replace(run, variant="new") for run in runs("old", noise[1])]
        found = gate(same, runs("old", noise[1]))
        assert found.name == "NOT_WORSE"
        assert all(one.p_holm is None for one in found.endpoints)

    def test_noise_and_lone_pairs_decide_nothing(self):
        noise = np.random.default_rng(4).normal(size=(2, 6, 4)) * 0.1
        found = gate(runs("new", noise[0]), runs("old", noise[1]))
        assert (found.name, found.replicates_needed is not None) == ("CANNOT_TELL", True)
        assert gate(runs("new", noise[0, :1]), runs("old", noise[1, :1])).name == "CANNOT_TELL"
        with pytest.raises(ValueError, match="margin"):
            gate(runs("new", noise[0]), runs("old", noise[1]), margin=0)

    def test_false_alarms_and_power(self):
        """Gates of 6 runs at a paired sd of 4 %: at most 5 % alarm in A/A, and 80 % or more at 10 % slower."""
        rng = np.random.default_rng(7)
        alarms = {0.0: 0, 0.1: 0}
        for slower in alarms:
            for _ in range(200):
                noise = rng.normal(size=(2, 6, 4)) * 0.04 / np.sqrt(2)
                alarms[slower] += gate(runs("new", noise[0], slower=slower), runs("old", noise[1])).name == "WORSE"
        assert alarms[0.0] <= 10
        assert alarms[0.1] >= 160
