"""A scenario is refused in one line that names the key and the remedy, or it is what the user meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.common.errors import ScenarioError
from loadgen.scenario.file import SHIPPED, load_scenario
from loadgen.scenario.model import Scenario, differences
from loadgen.scenario.timeout import timeout_s_of
from loadgen.workload.workload import Workload


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"windo": "2m"}, "unknown key 'windo'; did you mean 'window'?"),
        ({"window": "5"}, "--window: '5' is not a duration; write a number and a unit"),
        ({"window": "0s"}, "--window: "),
        ({"slo": ("ttft<800",)}, "--slo: SLO 'ttft<800': '800' is not a duration"),
        ({"slo": ("latency<=1s",)}, "unknown metric 'latency'; known are client_queue, e2e, tpot, ttft"),
        ({"slo": ("ttft<=1s", "ttft<=2s")}, "ttft is bounded twice"),
        ({"slo": ("ttft<=0s",)}, "the bound must be above 0"),
        ({"attain": "95"}, "--attain: '95' is not between 0 and 1; write a percentage with its sign"),
        ({"attain": "0%"}, "--attain: an attainment of 0 promises nothing"),
        ({"runs": 0}, "--runs: Input should be greater than or equal to 1 (got 0)"),
        ({"width": "0%"}, "--width: '0%' is not a grid width"),
        ({"cache": "cold"}, "--cache: Input should be 'salt', 'reset', 'restart', 'command' or 'keep'"),
        ({"cache": "restart"}, "restart_command and cache = restart go together"),
        ({"between_command": "true"}, "between_command and cache = command go together"),
        ({"cache": "restart", "restart_command": "  "}, "--restart-command: the command is empty"),
        ({"cache": "restart", "restart_command": "x 'y"}, "--restart-command: No closing quotation"),
        ({"cache": "command", "between_command": "run --api-key abc"}, "between_command names a secret"),
        ({"note": ("gpu",)}, "--note: 'gpu' is not of the form KEY=VALUE"),
        ({"seeds": "1..5", "seed": 3}, "seeds and seed exclude each other"),
        ({"seeds": "1..5", "seeding": "fresh"}, "seeds and seeding = fresh exclude each other"),
        ({"arrivals": "gamma"}, "arrivals = gamma needs burstiness"),
        ({"burstiness": 0.5}, "burstiness and cv belong to arrivals = gamma, not to poisson"),
        ({"arrivals": "gamma", "burstiness": 0.5, "cv": 2}, "burstiness and cv say the same thing"),
        ({"closed": 4, "max_concurrency": 8}, "closed and max_concurrency exclude each other"),
        ({"workers": "many"}, "'many' is neither auto nor a number from 1 to 256"),
        ({"workers": 0}, "'0' is neither auto nor a number from 1 to 256"),
        (
            {"workers": 2, "target": "virtual"},
            "workers = 2 cannot divide target = virtual: in virtual time nothing is sent",
        ),
        ({"workers": 2, "closed": 4}, "workers = 2 cannot divide closed"),
        ({"workers": 2, "max_concurrency": 4}, "workers = 2 cannot divide max_concurrency"),
        (
            {"workers": 2, "routing": "least-in-flight", "target": ("http://a", "http://b")},
            "workers = 2 cannot divide routing = least-in-flight",
        ),
        ({"endpoint": "chat", "prompt": "ids"}, "prompt = ids needs endpoint = completions"),
        ({"lengths": "f.csv", "input": "8"}, "lengths gives input and output together"),
        ({"cohort": 500, "window": "5m"}, "cohort and window exclude each other"),
        ({"cohort": 50}, "cohort = 50 is below min_requests = 200"),
        ({"cert_file": "c.pem"}, "cert_file and key_file go together"),
        ({"require": 4.0}, "require needs an SLO of your own"),
        ({"events": "some"}, "--events: Input should be 'none', 'sample', 'prompt' or 'all' (got 'some')"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(overrides: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load_scenario(None, overrides)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_is_blamed_by_name_and_key(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('rate = "2..18"\nwindow = 120\n')
    with pytest.raises(ScenarioError, match=r"s\.toml: window: '120' is not a duration"):
        load_scenario(str(file), {})
    file.write_text("rate = \n")
    with pytest.raises(ScenarioError, match=r"s\.toml: .*line 1"):
        load_scenario(str(file), {})
    with pytest.raises(ScenarioError, match=r"no such file; ready scenarios are .*demo"):
        load_scenario("dmo", {})


def test_an_option_displaces_the_key_of_the_file_that_contradicts_it(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('seeds = "1..5"\ninput = "8"\nwindow = "10s"\n')
    scenario = load_scenario(str(file), {"seed": 7, "lengths": "l.csv"})
    assert (scenario.seeds, scenario.seed, scenario.window) == (None, 7, 10.0)


def test_the_hash_covers_results_and_not_budgets_and_survives_the_disk() -> None:
    scenario = load_scenario(None, {"window": "90.1s", "slo": ("ttft<=800ms", "tpot<=50ms"), "warmup": "1e-05s"})
    assert Scenario.restore(scenario.stored()).sha256 == scenario.sha256
    assert load_scenario(None, {"max_time": "1h"}).sha256 == load_scenario(None, {}).sha256
    other = load_scenario(None, {"window": "91s"})
    assert other.sha256 != scenario.sha256
    assert "window: 90.1s → 91.0s" in differences(scenario, other)


@pytest.mark.parametrize(
    ("key", "spellings"),
    [
        ("max_error_rate", ("0.05", "5%", "5.0 %", ".05", "5e-2")),
        ("attain", ("0.995", "99.5%", "995e-3")),
        ("width", ("5%", "0.050")),
        ("window", ("120s", "2m", "1m60s", "120000ms")),
        ("rate", ("2..18", "2.0..18.00", " 2 .. 1.8e1")),
        ("rate", ("2,4,6", "6,4.0,2", "2..6:2")),
        ("seeds", ("1..5", "1,2,3..5")),
        ("slo", (("ttft<=800ms", "tpot<=50ms"), ("tpot <= 0.05s", "ttft<=.8s"))),
        ("input", ("1024", "uniform:1024..1024")),
        ("output", ("lognormal:150,1", "lognormal:150.0, 1.0, 1..10000000")),
        ("token_ids", ("1000..4000", " 1000 .. 4000")),
    ],
)
def test_the_hash_covers_what_is_meant_and_not_how_it_is_written(key: str, spellings: tuple[Any, ...]) -> None:
    read = [Scenario.restore(load_scenario(None, {key: text}).stored()) for text in spellings]
    assert len({scenario.sha256 for scenario in read}) == 1
    assert all(differences(read[0], other) == [] for other in read)


def test_other_values_have_another_hash() -> None:
    for key, one, other in (("max_error_rate", "5%", "5.01%"), ("rate", "2..18", "2,18"), ("seeds", "1,2", "2,1")):
        first, second = load_scenario(None, {key: one}), load_scenario(None, {key: other})
        assert first.sha256 != second.sha256
        assert len(differences(first, second)) == 1


@pytest.mark.parametrize(
    ("written", "kept"), [("0.05", "5%"), ("1e-3", "0.1%"), ("0.99950", "99.95%"), ("1", "100%"), ("0", "0%")]
)
def test_a_share_has_one_spelling(written: str, kept: str) -> None:
    assert load_scenario(None, {"max_error_rate": written}).max_error_rate == kept


def test_the_timeout_follows_the_slo() -> None:
    assert timeout_s_of(load_scenario(None, {"slo": ("ttft<=1s", "tpot<=100ms")}), 1001) == pytest.approx(202.0)
    assert timeout_s_of(load_scenario(None, {"slo": ("e2e<=1s",)}), 128) == 60.0
    assert timeout_s_of(load_scenario(None, {"timeout": "8s"}), 128) == 8.0
    # a first token promises nothing of the last one: long outputs are not to be our own time-outs
    assert timeout_s_of(load_scenario(None, {"slo": ("ttft<=800ms",)}), 8000) == 600.0
    # lognormal without a range reaches 10^7 tokens, which a TPOT would give 277 h
    assert timeout_s_of(load_scenario(None, {"slo": ("ttft<=1s", "tpot<=50ms")}), 10_000_000) == 3600.0


@pytest.mark.parametrize(
    ("slo", "timeout", "says"),
    [
        (("ttft<=3s",), "1s", "1s ends requests that keep the SLO, which gives ttft 3s: pass --timeout 3s or more"),
        (("e2e<=30s", "tpot<=1s"), "20s", "which gives e2e 30s"),
        (("client_queue<=5s",), "4s", "which gives client_queue 5s"),
        (("ttft<=800ms", "tpot<=50ms"), "5s", "an output of 128 tokens 7.15s: pass --timeout 8s or more, or bound"),
        (("e2e<=2h",), None, "1h 00m ends requests that keep the SLO, which gives e2e 2h 00m"),
    ],
)
def test_a_timeout_that_ends_what_keeps_the_slo_is_refused(
    slo: tuple[str, ...], timeout: str | None, says: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        Workload.of(load_scenario(None, {"slo": slo} | ({} if timeout is None else {"timeout": timeout})))
    assert says in str(refused.value)
    assert str(refused.value).startswith("--timeout: ")


def test_what_the_slo_bounds_otherwise_needs_no_longer_timeout() -> None:
    bounded = load_scenario(None, {"slo": ("e2e<=10s", "tpot<=50ms"), "timeout": "10s"})
    assert timeout_s_of(bounded, 10_000) == 10.0  # nobody keeps 10 s in 500


def test_every_shipped_scenario_is_valid_and_says_what_it_answers() -> None:
    files = sorted(SHIPPED.glob("*.toml"))
    assert files
    for file in files:
        if "[[variant]]" not in file.read_text():
            load_scenario(str(file), {})
        assert file.read_text().startswith("# "), f"{file.name} does not say which question it answers"


def test_a_command_is_split_as_a_shell_would_and_comes_back_whole() -> None:
    scenario = load_scenario(None, {"cache": "restart", "restart_command": "systemctl restart 'my server'"})
    assert scenario.restart_command == ("systemctl", "restart", "my server")
    assert Scenario.restore(scenario.stored()).restart_command == scenario.restart_command


def test_notes_are_kept_with_their_secrets_left_out_and_decide_nothing() -> None:
    scenario = load_scenario(None, {"note": ("gpu=H100 SXM", "driver=a=b", "api_key=sk-123")})
    assert scenario.note["driver"] == "a=b"
    assert scenario.stored()["note"] == {"gpu": "H100 SXM", "driver": "a=b", "api_key": "[redacted]"}
    assert scenario.sha256 == load_scenario(None, {}).sha256
    assert Scenario.restore(scenario.stored()).note["gpu"] == "H100 SXM"


@pytest.mark.parametrize(
    ("target", "endpoint"),
    [
        ("http://h:1/v1/chat/completions", "chat"),
        ("https://h/x/v1/chat/completions/", "chat"),
        ("http://h:1/v1/completions", "completions"),
        ("http://h:1/v1", "completions"),
    ],
)
def test_a_target_s_path_says_which_api_is_meant(target: str, endpoint: str) -> None:
    scenario = load_scenario(None, {"target": (target,)})
    assert scenario.endpoint == endpoint
    assert Scenario.restore(scenario.stored()).sha256 == scenario.sha256


def test_a_path_that_contradicts_the_endpoint_is_refused() -> None:
    with pytest.raises(
        ScenarioError, match=r"endpoint = completions with target http://h/v1/chat/completions: the path"
    ):
        load_scenario(None, {"target": ("http://h/v1/chat/completions",), "endpoint": "completions"})
    with pytest.raises(ScenarioError, match="the path says chat and completions"):
        load_scenario(None, {"target": ("http://a/v1/chat/completions", "http://b/v1/completions")})


def test_token_events_are_kept_of_live_runs_and_not_of_virtual_ones_unless_asked_and_decide_nothing() -> None:
    live, virtual = load_scenario(None, {"target": ("http://h:1",)}), load_scenario(None, {"target": ("virtual",)})
    assert (live.kept_events, virtual.kept_events) == ("prompt", "none")
    assert load_scenario(None, {"target": ("virtual:mm1",), "events": "sample"}).kept_events == "sample"
    assert load_scenario(None, {"target": ("http://h:1",), "events": "none"}).sha256 == live.sha256
