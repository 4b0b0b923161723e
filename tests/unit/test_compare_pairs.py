"""Paired differences against scipy and closed forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.compare.order import run_order, williams
from analysis.compare.pairs import (
    at_larger_rate,
    compare_capacities,
    holm,
    holm_adjusted,
    paired,
    primary_verdict,
    sign_test,
)
from analysis.compare.types import CapacityPerGpu, Endpoint, VariantRun

RUN = VariantRun(
    variant="A", label="4/s", rate=4.0, rate_per_gpu=4.0, replicate=0, seed=100, status="PASS", attainment=0.99,
    good_requests=99, goodput_per_s=3.9, good_output_tokens=9900, token_goodput_per_s=390.0, g_card=390.0,
    log_ttft=-2.0, log_e2e=0.5, schedule_sha256="s", workload_sha256="w", results_sha256="",
)  # fmt: skip


def runs(variant: str, values: list[float]) -> list[VariantRun]:
    return [
        replace(RUN, variant=variant, replicate=r, seed=100 + r, g_card=v, log_ttft=v, results_sha256=f"{variant}{r}")
        for r, v in enumerate(values)
    ]


A = [100.0, 103.0, 99.0, 108.0, 101.0, 97.0, 105.0]
B = [98.0, 99.0, 98.5, 101.0, 102.0, 95.0, 99.0]


def test_the_interval_and_p_are_those_of_scipys_paired_t_test():
    found = paired(runs("A", A), runs("B", B), "g_card")
    level = np.mean(A + B)
    expected = stats.ttest_rel(np.array(A) / level, np.array(B) / level)
    interval = expected.confidence_interval(0.95)
    assert (found.lo, found.hi, found.p) == pytest.approx((interval.low, interval.high, expected.pvalue))
    assert found.sign_p == pytest.approx(stats.binomtest(6, 7).pvalue)


@pytest.mark.parametrize("endpoint", ["g_card", "log_ttft"])
def test_swapping_the_variants_negates(endpoint):
    one, other = paired(runs("A", A), runs("B", B), endpoint), paired(runs("B", B), runs("A", A), endpoint)
    assert other.mean == pytest.approx(-one.mean)
    assert (other.lo, other.hi) == pytest.approx((-one.hi, -one.lo))
    assert (other.p, other.sign_p) == pytest.approx((one.p, one.sign_p))


def test_what_both_runs_of_a_pair_gain_changes_no_logarithmic_difference():
    shift = [3.0, -20.0, 5.0, 0.0, 9.0, 1.0, -4.0]
    moved = paired(
        runs("A", [a + s for a, s in zip(A, shift, strict=True)]),
        runs("B", [b + s for b, s in zip(B, shift, strict=True)]),
        "log_ttft",
    )
    assert moved.values == pytest.approx(paired(runs("A", A), runs("B", B), "log_ttft").values)


def test_bit_identical_pairs_are_not_tested():
    same = [replace(run, variant="B") for run in runs("A", A)]
    found = paired(runs("A", A), same, "g_card")
    assert (found.identical, found.identical_pairs, found.p, found.lo) == (True, 7, None, None)
    assert primary_verdict(found, indifference=0.0).winner == "no difference"


def test_few_pairs_are_said_to_show_little():
    assert "sign test can say nothing" in paired(runs("A", A[:5]), runs("B", B[:5]), "g_card").words
    assert paired(runs("A", A[:1]), runs("B", B[:1]), "g_card").lo is None
    assert sign_test([1.0] * 5) == pytest.approx(0.0625)
    assert sign_test([1.0] * 6) == pytest.approx(0.03125)
    assert sign_test([0.0, 0.0]) == 1.0


@pytest.mark.parametrize(
    ("factor", "winner"), [(1.08, "A"), (0.92, "B"), (1.001, "no difference"), (1.03, "cannot tell")]
)
def test_the_verdict_follows_the_interval_and_the_zone(factor, winner):
    assert primary_verdict(difference(factor), indifference=0.03).winner == winner


NOISE = [0.2, -0.2, 0.1, -0.1, 0.3, -0.3, 0.0]


def difference(factor):
    """A is better by that factor, both at one rate."""
    return paired(runs("A", [b * factor + e for b, e in zip(B, NOISE, strict=True)]), runs("B", B), "g_card")


def met(factor, backlog):
    """Runs of both at one rate: A is better by that factor of G_card, and its backlog grows by so much more."""
    a = runs("A", [b * factor + e for b, e in zip(B, NOISE, strict=True)])
    a = [replace(run, backlog=backlog + e / 100) for run, e in zip(a, NOISE, strict=True)]
    return [[replace(run, label="5/s", rate=5.0, rate_per_gpu=5.0) for run in side] for side in (a, runs("B", B))]


@pytest.mark.parametrize(
    ("own", "there", "backlog", "winner"),
    [
        (1.08, 1.2, 0.0, "A"),
        (1.08, 1.02, 0.0, "A"),
        (1.08, 1.0, 0.0, "cannot tell"),  # λ* differs, the servers do not
        (1.08, 0.9, 0.0, "cannot tell"),
        (1.08, 1.0, -0.05, "A"),  # overloaded, and the SLO not broken yet
        (1.08, 1.0, 0.05, "cannot tell"),
        (1.08, 1.2, 0.05, "cannot tell"),
        (0.92, 0.8, 0.0, "B"),
        (1.001, 1.0, 0.0, "no difference"),
        (1.001, 1.2, 0.0, "cannot tell"),
        (1.001, 1.0, 0.05, "cannot tell"),
    ],
)
def test_a_difference_of_two_rates_needs_one_at_a_common_rate(own, there, backlog, winner):
    a, b = met(there, backlog)
    x, y = ([replace(run, label="own", rate_per_gpu=rate) for run in side] for side, rate in ((a, 4.0), (b, 5.0)))
    found = primary_verdict(difference(own), indifference=0.03, same_rate=at_larger_rate([*a, *b], x, y))
    assert found.winner == winner
    assert ("at 5/s for both, G_card differs" in found.words) == (winner != "no difference")


def test_the_common_rate_is_the_larger_one_per_gpu():
    def at(variant, label, rate, values):
        return [replace(run, label=label, rate_per_gpu=rate) for run in runs(variant, values)]

    a, b = at("A", "own", 4.0, A), at("B", "own", 5.0 + 1e-12, B)
    lower, larger = (at("A", "4/s", 4.0, A) + at("B", "4/s", 4.0, A)), (at("A", "5/s", 5.0, A) + at("B", "5/s", 5.0, B))
    other = at("C", "5/s", 5.0, B)
    found, backlog = at_larger_rate([*a, *b, *lower, *other, *larger], a, b)
    alone = paired(at("A", "5/s", 5.0, A), at("B", "5/s", 5.0, B), "g_card")
    assert (found.values, found.label, backlog.endpoint) == (alone.values, "5/s", "backlog")
    assert found.p is not None
    assert found.p_holm == pytest.approx(min(1, 2 * found.p))
    assert at_larger_rate([*a, *b], a, at("B", "own", 4.0, B)) == ()
    with pytest.raises(ValueError, match="A and B made no runs at one rate of 5/s per GPU"):
        at_larger_rate([*a, *b, *lower], a, b)


def test_the_replicates_asked_for_decide_in_four_of_five_comparisons():
    a = [b * 1.05 + e for b, e in zip(B, [6, -6, 5, -5, 4, -4, 0], strict=True)]
    found = primary_verdict(paired(runs("A", a), runs("B", B), "g_card"), indifference=0.03)
    assert found.winner == "cannot tell"
    n, d = found.replicates_needed, found.difference
    assert n is not None
    assert d.sd is not None
    draws = np.random.default_rng(1).normal(d.mean, d.sd, size=(4000, n))
    low = draws.mean(axis=1) - stats.t.ppf(0.975, n - 1) * draws.std(axis=1, ddof=1) / np.sqrt(n)
    assert np.mean(low > 0.03) == pytest.approx(0.8, abs=0.03)


def test_no_pair_of_other_seeds_or_schedules():
    with pytest.raises(ValueError, match="seeds 100 and 7"):
        paired(runs("A", A[:1]), [replace(runs("B", B)[0], seed=7)], "g_card")
    with pytest.raises(ValueError, match="schedules"):
        paired(runs("A", A[:1]), [replace(runs("B", B)[0], schedule_sha256="x")], "g_card")
    with pytest.raises(ValueError, match="twice"):
        paired(runs("A", A[:1]) * 2, runs("B", B), "g_card")


def test_holm():
    # worked by hand: 4 × 0.005, 3 × 0.01, 2 × 0.03, then no smaller than the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    one = paired(runs("A", A), runs("B", B), "g_card")
    assert one.p is not None
    assert [d.p_holm for d in holm_adjusted([one, one])] == pytest.approx([2 * one.p, 2 * one.p])


def test_capacities_are_compared_as_brackets():
    low = CapacityPerGpu(variant="x", gpus=1, lower=3.0, upper=3.2)
    assert "disjoint, y is higher" in compare_capacities(low, replace(low, variant="y", lower=3.2, upper=3.4))
    assert "overlap" in compare_capacities(low, replace(low, variant="y", lower=3.1, upper=3.4))
    assert "y is higher" in compare_capacities(low, replace(low, variant="y", lower=3.5, upper=None))
    assert "not known" in compare_capacities(replace(low, upper=None), replace(low, variant="y", lower=3.5))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_every_variant_takes_every_place_and_follows_every_other_equally_often(n):
    rows = williams(n)
    for place in range(n):
        assert sorted(row[place] for row in rows) == sorted(list(range(n)) * (len(rows) // n))
    follows = [(x, y) for row in rows for x, y in pairwise(row)]
    assert {follows.count((x, y)) for x in range(n) for y in range(n) if x != y} == {len(rows) // n}


def test_two_variants_run_abba():
    order = run_order(["A", "B"])
    assert [order(r) for r in range(3)] == [("A", "B"), ("B", "A"), ("A", "B")]
    with pytest.raises(ValueError, match="different names"):
        run_order(["A", "A"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"replicate": 1}, "a replicate is there twice"),
        ({"label": "5/s"}, "several points or variants"),
        ({"variant": "C"}, "several points or variants"),
        ({"seed": 7}, "had seeds 100 and 7"),
        ({"schedule_sha256": "t"}, "met other schedules or workloads"),
        ({"workload_sha256": "t"}, "met other schedules or workloads"),
    ],
)
def test_runs_that_are_no_pairs_are_refused(change: dict[str, Any], says: str) -> None:
    first, *others = runs("B", B)
    with pytest.raises(ValueError, match=says):
        paired(runs("A", A), [replace(first, **change), *others], "g_card")


def test_no_runs_are_no_difference_and_another_rate_may_have_another_schedule() -> None:
    with pytest.raises(ValueError, match="needs runs of both variants"):
        paired(runs("A", A), [], "g_card")
    scaled = [replace(run, rate=8.0, schedule_sha256="t") for run in runs("B", B)]
    assert paired(runs("A", A), scaled, "g_card").n == len(B)


@pytest.mark.parametrize(
    ("endpoint", "of"),
    [
        ("lambda_per_gpu", "rate_per_gpu"),
        ("request_goodput", "goodput_per_s"),
        ("token_goodput", "token_goodput_per_s"),
        ("attainment", "attainment"),
    ],
)
def test_each_endpoint_compares_its_own_number(endpoint: Endpoint, of: str) -> None:
    better = [replace(run, **{of: 3.0}) for run in runs("A", A)]
    worse = [replace(run, **{of: 1.0}) for run in runs("B", B)]
    found = paired(better, worse, endpoint)
    assert found.values == pytest.approx([2.0 / (2.0 if found.scale == "relative" else 1.0)] * len(A))
