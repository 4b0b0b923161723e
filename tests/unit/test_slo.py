from __future__ import annotations

import pytest

from analysis.slo import Slo, parse_slo


def test_terms_come_one_by_one_or_with_commas() -> None:
    slo = parse_slo(["ttft<=800ms,tpot:50ms", "e2e<=1m"], clock="sent")
    assert slo == Slo(ttft_s=0.8, tpot_s=0.05, e2e_s=60.0, clock="sent")
    assert slo.bounds() == {"ttft": 0.8, "tpot": 0.05, "e2e": 60.0}
    assert str(slo) == "ttft ≤ 800ms and tpot ≤ 50ms and e2e ≤ 1m 00s from send"
    assert str(Slo()) == "no SLO"


@pytest.mark.parametrize(
    ("term", "says"),
    [
        ("ttft", "is not of the form metric<=duration; write ttft:800ms"),
        ("TTFT<=1s", "metrics are written in lower case: ttft<=1s"),
        ("p99_ttft<=1s", "write ttft<=1s and --attain 99%"),
        ("ttft_p99<=1s", "write ttft<=1s and --attain 99%"),
        ("speed<=1s", "unknown metric 'speed'; known are "),
        ("ttft<=1s,ttft<=2s", "ttft is bounded twice"),
        ("ttft<=soon", "is not a duration"),
        ("ttft<=0s", "the bound must be above 0"),
    ],
)
def test_a_term_that_means_nothing_is_named_with_what_to_write(term: str, says: str) -> None:
    with pytest.raises(ValueError, match="SLO") as refused:
        parse_slo([term])
    assert says in str(refused.value)
