from __future__ import annotations

from result_files import again
from run_tables import served

from analysis.records import derive
from analysis.report.buckets import by_length
from analysis.slo import Slo

SLO = Slo(ttft_s=0.45)


def test_one_length_is_one_bucket() -> None:
    (bucket,) = by_length(derive(served(8)), SLO)
    assert (bucket.input_tokens, bucket.output_tokens) == ((1000, 1000), (11, 11))
    assert (bucket.n, bucket.ok, bucket.attainment) == (8, 8, 1.0)
    assert bucket.ttft_s["p95"] == bucket.ttft_s["p95_all"] == 0.4


def test_quartiles_cut_each_length_and_lose_nobody() -> None:
    cohort = derive(served(16, input_tokens_planned=range(1, 17), output_tokens_planned=[5] * 8 + [50] * 8))
    found = by_length(cohort, SLO)
    assert [bucket.input_tokens for bucket in found] == [(1, 4), (5, 8), (9, 12), (13, 16)]
    assert [bucket.output_tokens for bucket in found] == [(5, 5), (5, 5), (50, 50), (50, 50)]


def test_given_edges_are_inclusive_upper_ends() -> None:
    cohort = derive(served(5, input_tokens_planned=[1, 10, 11, 20, 21]))
    found = by_length(cohort, SLO, input_edges=[20, 10], output_edges=[])
    assert [bucket.input_tokens for bucket in found] == [(1, 10), (11, 20), (21, 21)]


def test_failures_show_in_their_own_bucket_and_as_null() -> None:
    cohort = derive(
        served(4, input_tokens_planned=[1, 1, 9, 9], outcome=["ok", "ok", "timeout", "ok"], output_tokens_planned=-1)
    )
    short, long = by_length(cohort, SLO, input_edges=[5])
    assert (short.attainment, long.attainment, long.ok) == (1.0, 0.5, 1)
    assert long.e2e_s["p99"] == 0.5
    assert long.e2e_s["p99_all"] is None
    assert long.output_tokens == (11, 11)  # none planned: as reported
    assert again(long) == long


def test_no_requests_no_buckets() -> None:
    assert by_length(derive(served(0)), SLO) == []
