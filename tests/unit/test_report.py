"""What a user reads is what the ledger says: tables, sentences, and no control character of anybody else's."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import pytest
from result_files import again

from analysis.report.balance import balance_table
from analysis.report.buckets import Bucket
from analysis.report.capacity import answer
from analysis.report.cause import cause
from analysis.report.tables import bucket_table, latency_table, run_sentences, run_table, sentences, verdict_table
from analysis.report.types import CapacityAnswer, Conditions
from analysis.search import Outcome, RunRequest
from analysis.slo import Slo
from analysis.verdict import Balance, Finding, RateVerdict, Replica, RunVerdict
from loadgen.results import frames

CONDITIONS = Conditions(
    target="http://127.0.0.1:8000",
    simulated=False,
    model="m",
    slo="ttft ≤ 800ms",
    attain=str(Fraction(19, 20)),
    attain_text="95%",
    max_error_rate="1%",
    runs=2,
    window_s=120.0,
    warmup_s=20.0,
    width=0.05,
    workload="16 input tokens as token ids, 1 output tokens, forced stop",
    arrivals="Poisson",
    cache="salt",
    slo_clock="scheduled",
    placeholder_slo=False,
    explore=1,
    cohort=None,
    seeding="paired",
    replicates="replicate",
    stop="forced",
    transport="wire",
    max_concurrency=None,
    scenario_sha256="",
)


def run(rate: float, attainment: float, status: str = "PASS", **more: Any) -> tuple[RunRequest, RunVerdict]:
    request = RunRequest(
        kind="explore", rate=rate, rate_index=0, replicate=0, block=-1, seed=1, attempt=0, key=f"k{rate}{attainment}"
    )
    e2e_s = {"p50": 0.1, "p95": 0.2, "p99": rate, "p50_all": 0.1, "p95_all": inf, "p99_all": inf}
    verdict = RunVerdict(
        status=status,
        rate=rate,
        cohort=1000,
        misses=round(1000 * (1 - attainment)),
        attainment=attainment,
        realised_rate=rate * 1.01,
        sent_rate=rate,
        summary={"e2e_s": e2e_s},
        **more,
    )
    return request, verdict


RUNS = [run(4, 0.97), run(4, 0.99), run(6, 0.93, "FAIL"), run(6, 0.96)]
RATES = (
    RateVerdict(rate=4, status="PASS", runs=2, attain_min=0.97, attain_max=0.99),
    RateVerdict(rate=6, status="FAIL", runs=2, attain_min=0.93, attain_max=0.96, reason="93 % of 1000, 95 % needed"),
)
FOUND = Outcome(name="FOUND", reason="", capacity=4.0, lower=4.0, upper=6.0, support="proved", rates=RATES,
                proof_passes=12, proof=0.05 ** (1 / 12))  # fmt: skip


def made(outcome: Outcome = FOUND, runs: list[Any] = RUNS, slo: Slo | None = None, **conditions: Any) -> CapacityAnswer:
    keyed = tuple(
        replace(row, keys=row.keys or tuple(request.key for request, _ in runs if request.rate == row.rate))
        for row in outcome.rates
    )
    return answer(
        conditions=replace(CONDITIONS, **conditions),
        outcome=replace(outcome, rates=keyed),
        runs=runs,
        buckets=lambda keys: [
            Bucket(
                input_tokens=(1, 16), output_tokens=(1, 1), n=2000, ok=2000, attainment=0.98,
                ttft_s={}, tpot_s={}, e2e_s={"p95": 0.2},
            )
        ],
        slo=slo,
    )  # fmt: skip


def cell(table: Any, row: int, column: str) -> str:
    text: str = table.rows[row][table.columns.index(column)]
    return text


def test_the_verdict_table_shows_rates_attainment_and_what_the_worst_run_served() -> None:
    served = {"goodput": 5.4, "token_goodput": 691.0}
    runs = [*RUNS[:2], run(6, 0.93, "FAIL", goodput=5.6, token_goodput=716.0), run(6, 0.96, **served)]
    table = verdict_table(made(runs=runs))
    names = ("rate", "realised / sent", "attainment", "goodput", "tokens/s", "check")
    assert [cell(table, 1, name) for name in names] == ["6", "6.06 / 6", "93.00–96.00%", "5.4", "691", "FAIL"]
    assert cell(table, 0, "goodput") == "–"


def test_a_failing_rate_names_one_cause_in_one_line_before_all_else() -> None:
    decided = Finding(check="attainment", blame="server", severity="block", text="93 % met the SLO")
    failed = run(6, 0.93, "FAIL", findings=(decided,), missed_by={"ttft": 66, "tpot": 9})
    said = sentences(made(runs=[*RUNS[:2], failed], slo=Slo(ttft_s=0.8, tpot_s=0.05)))
    why = "6 requests/s fails: ttft over 800ms in 66 of 70 misses (tpot over 50ms in 9), of 1000 requests."
    assert said[1] == why
    assert said[2] == "Diagnosis of 6 requests/s:"
    assert sum("4 requests/s fails" in line for line in said) == 0


def test_errors_that_fail_a_rate_are_told_in_the_servers_own_words() -> None:
    decided = Finding(check="error_rate", blame="server", severity="block", text="20 of 1000 requests failed, 1 % may")
    words = {"errors": 20, "outcomes": {"ok": 980, "stream_error": 20}, "error_words": "CUDA out of memory"}
    _, verdict = run(6, 0.98, "FAIL", findings=(decided,), **words)
    why = "20 of 1000 requests failed (20 stream_error): CUDA out of memory"
    assert cause([verdict], Slo(ttft_s=0.8)) == why
    assert f"Why it fails: {why}." in run_sentences(verdict, Slo(ttft_s=0.8))


def test_a_rate_whose_runs_passed_and_drifted_together_names_that() -> None:
    assert cause([run(6, 0.96)[1]], None, "outstanding work rises") == "outstanding work rises"


def test_a_rate_s_row_is_made_of_the_runs_that_its_verdict_stands_on() -> None:
    """A run that a spare or a new block took over stays in the ledger, and out of the row."""
    spoiled = run(4, 0.5, "FAIL", errors=500, goodput=1.0)
    rates = (replace(RATES[0], keys=tuple(request.key for request, _ in RUNS[:2])), RATES[1])
    told = made(replace(FOUND, rates=rates), runs=[spoiled, *RUNS])
    row = told.rates[0]
    assert (row.check, row.cohort, row.errors, row.floor) == ("PASS", 2000, 0, 0.97)
    assert (row.goodput, row.missed_by) == (None, {})
    assert len(told.runs) == 5


def test_an_early_fail_is_marked_as_a_bound() -> None:
    runs = [run(4, 0.97), run(4, 0.99), run(6, 0.93, "FAIL", attainment_is_bound=True), run(6, 0.96)]
    assert cell(verdict_table(made(runs=runs)), 1, "attainment") == "≤ 93.00–96.00%"


def test_latencies_are_the_worst_of_the_runs_in_ms() -> None:
    table = latency_table(made())
    assert cell(table, 0, "E2E") == "100/200/4000"
    assert cell(table, 0, "TPOT") == "–/–/–"


def test_buckets_have_their_own_table() -> None:
    table = bucket_table(made())
    assert table.rows[0] == ("4", "in 1–16, out 1", "2000", "98.00%", "–", "–", "200", "PASS")


def test_found_says_the_bracket_what_it_proves_and_what_it_holds_for() -> None:
    text = "\n".join(sentences(made()))
    assert "capacity is 4 requests/s, bracket 4..6: 4 keeps the SLO in every run, 6 does not" in text
    assert "12 of 12 fresh runs passed: at 95 % confidence at least 78% of such runs would pass" in text
    assert "ttft ≤ 800ms for 95% of requests" in text
    assert "the mean attainment crosses 95% at" in text
    assert "SIMULATED" in "\n".join(sentences(made(simulated=True)))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(name="ABOVE_RANGE", reason="", capacity=18.0, lower=18.0), "capacity is at least 18 requests/s"),
        (Outcome(name="BELOW_RANGE", reason="", upper=2.0), "capacity is below 2 requests/s"),
        (Outcome(name="TABULATED", reason="", lower=4.0, upper=6.0), "4 requests/s is the largest tested rate"),
        (Outcome(name="TABULATED", reason="", upper=2.0), "none of the rates passed"),
        (Outcome(name="CLIENT_LIMITED", reason="late", lower=4.0), "claimed: late. The bracket so far is 4..?"),
        (Outcome(name="ABORTED", reason="stopped by the user"), "no capacity is claimed: stopped by the user."),
    ],
)  # fmt: skip
def test_every_outcome_has_its_sentence(outcome: Outcome, expected: str) -> None:
    assert expected in sentences(made(outcome))[0]


def test_a_single_run_shows_failures_as_infinite_and_names_its_findings() -> None:
    _, verdict = run(6, 0.93, "FAIL", outcomes={"ok": 990, "timeout": 10})
    finding = Finding(check="attainment", blame="server", severity="block", text="93 % of 1000, 95 % needed")
    verdict = replace(verdict, findings=(finding,))
    table = run_table(verdict)
    e2e = next(row for row in table.rows if row[0] == "E2E")
    assert e2e[table.columns.index("p95 all")] == "∞"
    text = "\n".join(run_sentences(verdict))
    assert "990 ok, 10 timeout" in text
    assert "block (server): 93 % of 1000" in text


def test_a_closed_loop_is_never_called_a_capacity() -> None:
    _, verdict = run(6, 1.0)
    text = run_sentences(replace(verdict, rate=0.0))[0]
    assert "closed loop, no offered rate" in text
    assert "not a capacity" in text


def test_a_verdict_survives_json_with_its_infinities() -> None:
    _, verdict = run(6, 0.93, "FAIL")
    assert again(verdict) == verdict


def test_a_window_at_which_floor_and_mean_agree_is_named_only_where_it_can_be_known() -> None:
    steady = [run(4, 0.990), run(4, 0.991), run(6, 0.93, "FAIL"), run(6, 0.94)]
    assert made(runs=steady).beside.window_to_agree_s is None  # they are 30 % apart, and do not vary
    near = made(runs=steady, width=0.5)
    assert near.beside.window_to_agree_s == 120
    assert "floor and mean agree within the grid width." in " ".join(sentences(near))
    apart = made()
    assert apart.beside.window_to_agree_s > 120
    assert "floor and mean would agree within the grid width at windows of " in " ".join(sentences(apart))


@pytest.mark.parametrize(("word", "proves"), [("replicate", True), ("block", False), ("repeat", False)])
def test_runs_of_one_history_prove_no_share_of_passes(word: str, proves: bool) -> None:
    told = made(replicates=word)
    assert (told.proof.pass_share_lower_bound is not None) == proves
    assert any("at 95 % confidence" in line for line in sentences(told)) == proves


def balance(requests: tuple[int, int], in_flight: tuple[float, float], **more: Any) -> Balance:
    """Of two replicas; the second one has no request that got a first token."""
    rows = [
        Replica(
            url=f"http://{name}:8000", requests=n, share=n / sum(requests), attainment=0.99996 if n else None, errors=2,
            in_flight_mean=mean, in_flight_max=9, ttft_s={"p95": 0.0456} if name == "a" else {}, tpot_s={},
            e2e_s={"p95": 1.5},
        )
        for name, n, mean in zip("ab", requests, in_flight, strict=True)
    ]  # fmt: skip
    known: dict[str, Any] = {
        "routing": "round-robin", "replicas": tuple(rows), "attainment_is_bound": False,
        "request_imbalance": 2 * max(requests) / sum(requests),
        "in_flight_imbalance": 2 * max(in_flight) / sum(in_flight),
    }  # fmt: skip
    return Balance(**known | more)


def test_a_run_on_two_replicas_shows_each() -> None:
    table = balance_table(balance((3000, 1000), (2.0, 6.0), attainment_is_bound=True))
    assert "routing round-robin" in table.title
    assert table.rows[0] == ("http://a:8000", "3000", "75%", "≤ 99.99%", "2", "2 / 9", "45.6", "–", "1500")
    assert table.rows[1][-3:] == ("–", "–", "1500")
    none = balance_table(balance((3000, 0), (2.0, 0.0)))
    assert cell(none, 1, "attainment") == "–"
    _, verdict = run(4, 0.97, balance=balance((3000, 1000), (2.0, 6.0)))
    assert (
        "replicas, largest over the mean (routing round-robin): requests 1.50 (http://a:8000), in-flight time 1.50 "
        "(http://b:8000)"
    ) in run_sentences(verdict)


def test_a_sweep_names_the_rates_at_which_replicas_are_uneven_and_no_others() -> None:
    even, uneven = balance((500, 500), (2.0, 2.2)), balance((500, 500), (2.0, 6.0))
    runs = [run(4, 0.97, balance=even), run(4, 0.99, balance=even), run(6, 0.93, "FAIL", balance=uneven)]
    found = made(runs=runs, routing="round-robin")
    said = [line for line in sentences(found) if "replicas" in line]
    assert said == [
        "Uneven replicas at 6 requests/s, largest over the mean (routing round-robin): requests 1.00, in-flight time "
        "1.50 (http://b:8000)."
    ]
    assert any("8000 (routing round-robin), model m" in line for line in sentences(found))
    assert found.rates[0].balance is not None
    assert found.rates[0].balance.replicas[0].requests == 1000  # of both runs
    assert frames.rates(found)["in_flight_imbalance"].round(3).tolist() == [1.048, 1.5]
    assert again(found) == found


def test_one_url_has_no_word_of_replicas() -> None:
    assert not [
        line for line in (*sentences(made()), *run_sentences(RUNS[0][1])) if "replica" in line or "routing" in line
    ]
    assert not [name for name in frames.rates(made()).columns if "imbalance" in name or name == "balance"]
