from __future__ import annotations

from fractions import Fraction

import pytest

from analysis.units import format_duration, parse_duration_s, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"), [("800ms", 0.8), ("2m", 120), ("1h30m", 5400), (" 1.5s ", 1.5), ("1m30s", 90)]
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


def test_a_bare_number_needs_a_unit_to_mean() -> None:
    assert parse_duration_s(2, default_unit="m") == parse_duration_s("2", default_unit="m") == 120
    assert parse_duration_s(0.25, default_unit="s") == 0.25
    for bare in (2, "2", True):
        with pytest.raises(ValueError, match="write a number and a unit"):
            parse_duration_s(bare)


@pytest.mark.parametrize("text", ["", "s", "5parsecs", "1m x", "1m-2s", "-1s", "1e400s x", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(text, default_unit="s")


def test_a_share_is_exact_and_between_0_and_1() -> None:
    assert parse_share("95%") == parse_share("0.95") == parse_share(0.95) == Fraction(19, 20)
    assert parse_share("99.99 %") == Fraction(9999, 10000)
    with pytest.raises(ValueError, match="not between 0 and 1; write a percentage with its sign"):
        parse_share("95")
    with pytest.raises(ValueError, match="is not a share"):
        parse_share("most")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0025, "2.5ms"),
        (0.8, "800ms"),
        (12, "12s"),
        (59.94, "59.9s"),
        (125, "2m 05s"),
        (3720, "1h 02m"),
    ],
)
def test_a_duration_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
