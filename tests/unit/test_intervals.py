"""What stands beside λ*, held against closed forms and simulation."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest

from analysis.search.intervals import mean_crossing, pass_share_bound, spread, window_to_agree
from analysis.verdict import RunVerdict, Status

Q = Fraction(95, 100)


def run(rate: float, attainment: float, *, status: Status = "PASS", bound: bool = False) -> RunVerdict:
    return RunVerdict(status=status, rate=rate, attainment=attainment, attainment_is_bound=bound)


def test_pass_share_bound_is_clopper_pearson_for_n_of_n():
    assert pass_share_bound(5) == pytest.approx(0.55, abs=0.005)
    assert pass_share_bound(12) == pytest.approx(0.78, abs=0.005)
    for n in (1, 3, 5, 12, 100):
        exact = binomtest(n, n, alternative="greater").proportion_ci(0.95, method="exact").low
        assert pass_share_bound(n) == pytest.approx(exact, rel=1e-9)
    with pytest.raises(ValueError, match="no pass"):
        pass_share_bound(0)


class TestMeanCrossing:
    def test_interpolates_between_the_last_rate_above_and_the_first_below(self):
        crossing = mean_crossing([run(4, 0.99), run(5, 0.96), run(6, 0.94), run(8, 0.5)], Q)
        assert crossing is not None
        assert crossing.rate == pytest.approx(5.5)
        assert crossing.slope == pytest.approx(0.02 / math.log(6 / 5))
        assert not crossing.is_bound

    def test_a_rate_exactly_at_q_is_the_crossing(self):
        crossing = mean_crossing([run(4, 0.99), run(5, 0.95), run(6, 0.9)], Q)
        assert crossing is not None
        assert crossing.rate == pytest.approx(5)

    def test_pools_what_rises_weighted_by_runs(self):
        # at 5: one run 0.93, at 6: three runs 0.97: pooled (0.93 + 3 × 0.97)/4 = 0.96 at both
        points = [run(4, 0.99), run(5, 0.93), *[run(6, 0.97)] * 3, run(8, 0.91)]
        crossing = mean_crossing(points, Q)
        assert crossing is not None
        assert crossing.rate == pytest.approx(6 + 2 * (0.96 - 0.95) / (0.96 - 0.91))
        # unweighted it would pool to 0.95 and cross at 6 exactly
        assert crossing.rate > 6.1

    def test_a_bound_that_the_fit_pools_into_an_end_makes_the_crossing_a_bound(self):
        low = mean_crossing([run(4, 0.99), run(5, 0.94, bound=True), run(6, 0.98), run(8, 0.91)], Q)
        high = mean_crossing([run(4, 0.99), run(6, 0.93, bound=True), run(7, 0.94), run(8, 0.5)], Q)
        far = mean_crossing([run(4, 0.99), run(5, 0.96), run(6, 0.94), run(8, 0.5, bound=True)], Q)
        assert low is not None
        assert high is not None
        assert far is not None
        assert (low.is_bound, high.is_bound, far.is_bound) == (True, True, False)

    def test_takes_means_and_not_floors(self):
        crossing = mean_crossing([run(5, 0.93), run(5, 0.99), run(6, 0.94), run(6, 0.94)], Q)
        assert crossing is not None
        assert crossing.rate == pytest.approx(5.5)

    @pytest.mark.parametrize(
        "points",
        [[], [run(5, 0.96)], [run(5, 0.99), run(6, 0.96)], [run(5, 0.9), run(6, 0.8)],
         [run(5, 0.99), run(6, 0.1, status="INVALID")]],
    )  # fmt: skip
    def test_none_where_it_is_not_bracketed(self, points: list[RunVerdict]):
        assert mean_crossing(points, Q) is None

    def test_says_when_the_failing_side_is_only_an_upper_bound(self):
        crossing = mean_crossing([run(5, 0.97), run(6, 0.949, status="FAIL", bound=True)], Q)
        assert crossing is not None
        assert crossing.is_bound


def test_spread_is_the_sample_deviation():
    assert spread([0.95, 0.96, 0.97]) == pytest.approx(0.01)
    assert spread([0.95]) is None
    assert spread([]) is None


class TestWindowToAgree:
    def test_the_closed_form(self):
        kappa = NormalDist().inv_cdf((5 - 0.375) / (5 + 0.25))
        window = window_to_agree(window_s=120, sd=0.01, slope=0.2, width=0.05, runs=5)
        assert window == pytest.approx(120 * (kappa * 0.01 / (0.2 * math.log(1.05))) ** 2)

    def test_that_window_brings_floor_and_mean_within_the_width(self):
        """Simulated: attainment falls by 0.2 per e-fold, runs deviate by 0.01·√(120/W)."""
        runs, slope, sd, width = 5, 0.2, 0.01, 0.05
        window = window_to_agree(window_s=120, sd=sd, slope=slope, width=width, runs=runs)
        noise = np.random.default_rng(1).normal(size=(40_000, runs)).min(axis=1) * sd * math.sqrt(120 / window)
        # the floor crosses q where the mean stands above it by as much as the worst run falls below it
        distance = -noise / slope
        assert distance.mean() == pytest.approx(math.log1p(width), rel=0.02)

    def test_ends(self):
        assert window_to_agree(window_s=120, sd=0.0, slope=0.2, width=0.05, runs=5) == 0
        assert window_to_agree(window_s=120, sd=0.01, slope=0.2, width=0.05, runs=1) == 0  # floor and mean are one
        assert window_to_agree(window_s=120, sd=0.01, slope=0.0, width=0.05, runs=5) == math.inf
        for wrong in ({"window_s": 0}, {"width": 0}, {"runs": 0}):
            with pytest.raises(ValueError, match="needed"):
                window_to_agree(**{"window_s": 120, "sd": 0.01, "slope": 0.2, "width": 0.05, "runs": 5, **wrong})
