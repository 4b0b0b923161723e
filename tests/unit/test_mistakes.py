"""What people type that is not quite right, and what they are told to type instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.slo import Slo, parse_slo
from loadgen.common.errors import ScenarioError
from loadgen.scenario.file import load_scenario
from loadgen.scenario.mistakes import remedy


@pytest.mark.parametrize(
    ("term", "told"),
    [
        ("p95_ttft<800ms", "write ttft<=800ms and --attain 95%"),
        ("ttft_p95<=800ms", "write ttft<=800ms and --attain 95%"),
        ("p99.9_e2e:2s", "write e2e<=2s and --attain 99.9%"),
        ("TTFT<=800ms", "metrics are written in lower case: ttft<=800ms"),
        ("ttft", "write ttft:800ms, or 'ttft<=800ms' in quotes, for the shell takes < for itself"),
        ("itl<=5ms", "unknown metric 'itl'; known are client_queue, e2e, tpot, ttft"),
        ("ttft:800", "write a number and a unit"),
    ],
)
def test_a_bound_that_is_none_says_how_to_write_it(term: str, told: str) -> None:
    with pytest.raises(ValueError, match="SLO") as refused:
        parse_slo([term])
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "terms",
    [["ttft<=800ms", "tpot<=50ms"], ["ttft<=800ms,tpot<=50ms"], ["ttft:800ms, tpot:50ms"], ["ttft<800ms", "tpot≤50ms"]],
)
def test_bounds_are_written_one_by_one_or_in_one_text(terms: list[str]) -> None:
    assert parse_slo(terms) == Slo(ttft_s=0.8, tpot_s=0.05)


@pytest.mark.parametrize(
    ("complaint", "told"),
    [
        ("No such option: --concurrency Did you mean --max-concurrency?", "loadgen run --closed N"),
        ("No such option: --duration", "--window 60s"),
        ("Got unexpected extra argument(s) (http://h:1)", "--target http://HOST:PORT"),
        ("Got unexpected extra argument (=800ms)", "write --slo ttft:800ms"),
    ],
)
def test_another_tools_option_is_translated(complaint: str, told: str) -> None:
    assert told in remedy(complaint)
    assert remedy("No such option: --nonsense") == ""


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("s.yaml", "rate: 2..18\n", "scenarios are TOML"),
        ("s.toml", "[load]\nrate = '2..18'\n", "the keys of [load] stand at the top of the file"),
        ("s.toml", "concurrency = 8\n", "`loadgen run --closed N`"),
        ("s.toml", "duration = 60\n", "--window"),
    ],
)
def test_a_scenario_of_another_shape_says_which_one_is_read(tmp_path: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ScenarioError) as refused:
        load_scenario(str(tmp_path / name), {})
    assert told in str(refused.value)
