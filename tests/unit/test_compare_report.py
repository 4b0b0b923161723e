"""What a comparison's answer is printed as: its tables' cells and its sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_report import CONDITIONS

from analysis.compare.types import Comparison, LoneRequests
from analysis.report.compared import comparison_sentences, comparison_tables, verdict_lines
from loadgen.experiment.compare.memory import rehearse_comparison
from loadgen.experiment.compare.setup import prepare_comparison
from loadgen.scenario.file import load_comparison

QUICK = {"rate": "4..32", "width": "20%", "cohort": 300, "runs": 3, "slo": ("e2e<=1s",), "output": "2", "warmup": "5s"}
VARIANTS = ("slow=virtual:mm1", "fast=virtual:mm1?service.mean_ms=30", "mild=virtual:mm1,alternative_of=slow")


@pytest.fixture(scope="module")
def answer() -> Comparison:
    done = rehearse_comparison(prepare_comparison(*load_comparison(None, QUICK, {"variant": VARIANTS})))
    return replace(done.answer, conditions=dict.fromkeys(("slow", "fast", "mild"), CONDITIONS))


def test_the_tables_hold_the_capacities_and_the_differences_in_the_units_of_their_scales(answer: Comparison) -> None:
    tables = {table.title.split()[0]: table for table in comparison_tables(answer)}
    assert list(tables)[:2] == ["Variants:", "Paired"]
    rows = {row[0]: row for row in tables["Variants:"].rows}
    assert list(rows) == ["slow", "fast", "mild (tunes slow)"]
    for one in answer.capacities:
        row = next(row for name, row in rows.items() if name.split()[0] == one.variant)
        assert row[1:4] == ("TP=1", "1", f"{one.at:.4g}")
        assert row[-1] == one.outcome
    differences = next(table for table in comparison_tables(answer) if table.title.startswith("Paired differences"))
    first = differences.rows[0]
    assert first[1] == "slow − fast"
    assert float(first[4].rstrip("%")) < 0 > float(first[5].split(" to ")[1])  # the faster one is better
    assert {row[4][-1] for row in differences.rows} <= {"%", "s"}  # percent, or points
    assert len(differences.rows) == len(answer.primary) + len(answer.exploratory)
    envelope = next(table for table in comparison_tables(answer) if table.title.startswith("Each tuned"))
    assert len(envelope.rows) == len(answer.envelope)


def test_what_is_not_known_has_a_dash(answer: Comparison) -> None:
    few = replace(answer.primary[0].difference, lo=None, hi=None, sign_p=None)
    same = replace(few, identical=True)
    unknown = replace(
        answer,
        capacities=(replace(answer.capacities[0], at=None, upper=None, lower=None),),
        primary=tuple(replace(answer.primary[0], difference=one) for one in (few, same)),
        exploratory=(),
    )
    capacities, *_, differences = comparison_tables(unknown)
    assert capacities.rows[0][3:6] == ("–", "–", "–")
    assert [row[5:] for row in differences.rows] == [("–", "–", "–"), ("identical", "–", "–")]
    assert comparison_tables(replace(unknown, capacities=(), primary=(), frontier=(), envelope=())) == []


def test_the_first_lines_say_who_won_what_was_simulated_and_what_is_missing(answer: Comparison) -> None:
    assert verdict_lines(answer) == [f"at {one.difference.label}: {one.words}" for one in answer.primary]
    assert "fast" in verdict_lines(answer)[0]
    cut = replace(
        answer,
        outcome="ABORTED",
        reason="stopped by the user",
        primary=(),
        conditions={"slow": CONDITIONS, "fast": replace(CONDITIONS, simulated=True)},
        lost={"mild": "it does not answer"},
    )
    assert verdict_lines(cut) == [
        "SIMULATED, no real server: fast",
        "ABORTED: stopped by the user.",
        "mild left the comparison: it does not answer",
    ]
    assert "give one rate, or a range" in verdict_lines(replace(answer, primary=()))[0]


def test_sentences_say_how_it_was_measured_and_what_holds_without_load(answer: Comparison) -> None:
    lone = [
        LoneRequests(variant=name, requests=n, good=good, meets=met)
        for name, n, good, met in (("slow", 0, 0, None), ("fast", 5, 5, None), ("mild", 30, 30, True))
    ]
    text = "\n".join(comparison_sentences(replace(answer, lone=tuple(lone), notes=("and a note",))))
    assert f"SLO {CONDITIONS.slo} for {CONDITIONS.attain_text} of requests; 3 replicates" in text
    assert f"sha256 {answer.pairs_sha256[:12]}" in text
    assert "fast: 5 of 5 requests that met no other one kept the SLO; too few to tell." in text
    assert "mild: 30 of 30 requests that met no other one kept the SLO; the SLO holds without load." in text
    assert "slow: 0" not in text
    assert text.endswith("and a note")
    failing = replace(answer, lone=(replace(lone[2], meets=False),), together=not answer.together)
    assert "the SLO does not hold even without load" in "\n".join(comparison_sentences(failing))
    for how, together in (("interleaved, all variants up", True), ("one variant after the other", False)):
        assert how in "\n".join(comparison_sentences(replace(answer, together=together)))
