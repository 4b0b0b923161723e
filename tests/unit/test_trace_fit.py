"""Fits find the parameters of processes that they are given samples of."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from traces.errors import TraceError
from traces.fit import Mmpp2Fit, fit_gamma, fit_mmpp2, gamma_shape_mle
from traces.servegen import draw_arrivals, read_rates
from traces.trace import NS, Trace


def make(at_s: list[float] | np.ndarray) -> Trace:
    at = np.round(np.asarray(at_s, dtype=float) * NS).astype(np.int64)
    ones = np.ones(at.size, dtype=np.int32)
    return Trace(at_ns=at, input_tokens=ones, output_tokens=ones, line=ones, outcome=np.zeros(at.size, dtype=np.int8))


SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0])
def test_gamma_shape_is_found(shape: float) -> None:
    gaps = np.random.default_rng(21).gamma(shape, 1 / shape, 20_000) + 1e-9
    fit = fit_gamma(make(np.concatenate(([0], np.cumsum(gaps)))))
    assert fit.method == "mle"
    assert fit.shape == pytest.approx(shape, rel=0.05)
    assert fit.rate == pytest.approx(1, rel=0.05)


def test_gamma_falls_back_to_moments_on_ties_and_refuses_a_constant() -> None:
    at = np.floor(np.cumsum(np.random.default_rng(22).exponential(0.4, 5000)))
    fit = fit_gamma(make(at - at[0]))
    assert fit.method == "moments"
    assert fit.shape == pytest.approx(1 / (np.diff(at).std() / np.diff(at).mean()) ** 2)
    with pytest.raises(TraceError, match="all gaps are equal"):
        fit_gamma(make(np.arange(100.0)))
    with pytest.raises(TraceError, match="too few arrivals"):
        fit_gamma(make([0, 1]))
    assert math.isnan(gamma_shape_mle(np.array([1.0, 0.0])))


def _truth() -> Mmpp2Fit:
    return Mmpp2Fit(low_rate=2, high_rate=20, up=1 / 40, down=1 / 20, windows_s=(), measured_idc=(), idc_error=0)


def test_mmpp_counts_follow_the_formula_it_is_fitted_by() -> None:
    truth = _truth()
    at = truth.draw(40_000, np.random.default_rng(23))
    assert at.size / 40_000 == pytest.approx(truth.rate, rel=0.05)
    for window_s in (1, 10):
        counts = np.bincount(at // (window_s * NS))
        assert counts.var() / counts.mean() == pytest.approx(truth.idc(window_s), rel=0.1)


def test_mmpp_parameters_are_found() -> None:
    truth = _truth()
    at = truth.draw(40_000, np.random.default_rng(24))
    fit = fit_mmpp2(make((at - at[0]) / NS))
    assert fit.rate == pytest.approx(truth.rate, rel=0.05)
    assert fit.up + fit.down == pytest.approx(truth.up + truth.down, rel=0.25)
    assert fit.high_rate == pytest.approx(truth.high_rate, rel=0.2)
    assert fit.low_rate == pytest.approx(truth.low_rate, abs=2)
    assert fit.idc_error < 0.15 * max(fit.measured_idc)


def test_mmpp_is_refused_where_there_is_nothing_to_fit() -> None:
    with pytest.raises(TraceError, match="not more dispersed"):
        fit_mmpp2(make(np.arange(5000) * 0.25))
    with pytest.raises(TraceError, match="too few"):
        fit_mmpp2(make(np.arange(30.0) ** 1.1))


def test_servegen_arrivals_have_the_rates_of_their_windows(tmp_path: Path) -> None:
    path = tmp_path / "chunk-0-trace.csv"
    path.write_text("0,0,0,,0,0\n600,5,1.5,Gamma,0.4444,1\n1200,0,0,,0,0\n1800,3,0.9,Weibull,1.12,0.3\n")
    at = draw_arrivals(read_rates(path), seed=1)
    counts = np.bincount(at // (600 * NS), minlength=4)
    assert counts.tolist() == [0, pytest.approx(3000, rel=0.1), 0, pytest.approx(1800, rel=0.1)]
    assert np.array_equal(at, draw_arrivals(read_rates(path), seed=1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0,1,1,Gamma\n", ":1: not `start"),
        ("0,1,1,Cauchy,1,1\n", "family 'Cauchy'"),
        ("0,1,1,Gamma,-1,1\n", "shape -1"),
        ("0,nan,1,Gamma,1,1\n", "rate nan"),
        ("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", ":2: windows that are not in order"),
        ("0,1,1,Gamma,1,1\n", "fewer than 2 windows"),
    ],
)
def test_damaged_rate_tables_are_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"rates\.csv") as caught:
        read_rates(path)
    assert says in str(caught.value)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real traces beside the repository")
def test_a_real_servegen_table_is_drawn_at_its_mean_rate() -> None:
    windows = read_rates(SHARED / "traces" / "servegen_client_rates.csv")
    expected = sum(window.rate for window in windows) * 600
    assert draw_arrivals(windows, seed=2).size == pytest.approx(expected, rel=0.1)
