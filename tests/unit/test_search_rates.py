"""The rates a search may test: what the user writes, the grid, and the coarse pass upwards."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from searches import spec_of

from analysis.search import Grid, RateList, RateRange, parse_rates
from analysis.search.machine import coarse_steps


def test_a_range_searches_and_a_list_tabulates():
    assert parse_rates("2..18") == RateRange(lo=2, hi=18)
    assert parse_rates(" 0.5 .. 1e2 ") == RateRange(lo=0.5, hi=100)
    assert parse_rates("6,2,4") == RateList(rates=(2, 4, 6))
    assert parse_rates("2..18:4") == RateList(rates=(2, 6, 10, 14, 18))
    assert parse_rates("6") == RateList(rates=(6,))


def test_a_stepped_range_is_exact():
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
def test_nonsense_is_refused_by_name(text: str, says: str):
    with pytest.raises(ValueError) as refusal:
        parse_rates(text)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_grid_has_both_ends_and_no_step_above_the_width():
    rates = Grid(lo=2, hi=18, width=0.05).rates
    assert len(rates) == 47  # n = ⌈45.03⌉
    assert (rates[0], rates[-1]) == (2, 18)
    steps = [high / low for low, high in pairwise(rates)]
    assert max(steps) <= 1.05
    assert max(steps) - min(steps) < 1e-12


def test_a_range_of_whole_widths_gets_no_extra_step():
    for n in range(1, 60):
        assert Grid(lo=3, hi=3 * 1.05**n, width=0.05).steps == n


@pytest.mark.parametrize("width", [0, -0.1, 1.1, math.nan, 1e-9])
def test_an_impossible_width_is_refused(width: float):
    with pytest.raises(ValueError, match="width"):
        Grid(lo=2, hi=18, width=width)


def test_the_coarse_pass_has_both_ends_and_never_more_than_doubles():
    for text, width in (("2..18", 0.05), ("0.1..1000", 0.05), ("3..4", 0.02), ("2..18", 0.5), ("1..1.01", 0.05)):
        grid = spec_of(text, width=width).grid
        steps = coarse_steps(grid)
        assert (steps[0], steps[-1]) == (0, len(grid) - 1)
        assert all(grid[b] <= 2 * grid[a] + 1e-9 for a, b in pairwise(steps))
    assert len(coarse_steps(spec_of("2..18").grid)) == 5  # 2, just below 4, 8, 16, and 18
