"""The setting `routing`: what it may be, where it makes sense, and where it is said."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.common.errors import ScenarioError
from loadgen.experiment.compare.setup import prepare_comparison
from loadgen.experiment.prepare import prepare
from loadgen.experiment.run_plan import options_of
from loadgen.scenario.comparison import ComparisonSettings
from loadgen.scenario.file import load_scenario
from loadgen.scenario.model import Scenario, differences
from loadgen.scenario.option import options_of as command_options

TWO = ("http://a:8000", "http://b:8000")
POLICIES = ("round-robin", "random", "least-in-flight")


def loaded(**settings: Any) -> Scenario:
    return load_scenario(None, {"rate": "4", **settings})


@pytest.mark.parametrize("routing", POLICIES)
def test_each_policy_reaches_the_sender(routing: str) -> None:
    setup = prepare(loaded(target=TWO, routing=routing))
    assert options_of(setup.scenario, setup.workload).routing == routing
    assert Scenario.restore(setup.scenario.stored()).routing == routing


def test_without_a_word_it_is_round_robin() -> None:
    assert loaded(target=TWO).routing == "round-robin"
    assert "routing" not in loaded(target=TWO).stored()


def test_a_resumed_experiment_keeps_its_policy() -> None:
    before, now = loaded(target=TWO), loaded(target=TWO, routing="random")
    assert differences(before, now) == ["routing: round-robin → random"]
    assert before.sha256 != now.sha256


def test_an_unknown_policy_is_one_line_with_those_there_are() -> None:
    with pytest.raises(ScenarioError) as refused:
        loaded(target=TWO, routing="fastest")
    text = str(refused.value)
    assert text.startswith("--routing: ")
    assert all(policy in text for policy in POLICIES)
    assert "'fastest'" in text
    assert "\n" not in text


@pytest.mark.parametrize("target", ["http://a:8000", "virtual:llama8b-80gb?parallel.replicas=4", "emulator"])
def test_one_target_leaves_nothing_to_choose(target: str) -> None:
    with pytest.raises(ScenarioError, match=r"routing = random chooses among several URLs, and target names one"):
        loaded(target=(target,), routing="random")
    assert loaded(target=(target,), routing="round-robin").routing == "round-robin"  # as a file's may be overridden


def test_replicas_that_a_profile_simulates_are_said_to_take_turns() -> None:
    with pytest.raises(ScenarioError, match="take requests in turn"):
        loaded(target=("virtual:llama70b-replicas",), routing="least-in-flight")


@pytest.mark.parametrize("command", ["sweep", "run", "replay"])
def test_every_command_that_sends_load_has_the_option(command: str) -> None:
    option = next(one for one in command_options(Scenario, command) if one.name == "routing")
    assert all(policy in option.help for policy in POLICIES)


def compared(*variants: str) -> Any:
    settings = ComparisonSettings.model_validate({"variant": variants})
    return prepare_comparison(loaded(rate="2,4"), settings)


def test_a_variant_has_a_policy_of_its_own() -> None:
    setup = compared("a=http://a:1,http://b:1,gpus=2,routing=least-in-flight", "b=http://c:1,http://d:1,gpus=2")
    assert setup["a"].setup.scenario.routing == "least-in-flight"
    assert setup["b"].setup.scenario.routing == "round-robin"


def test_a_variant_of_one_url_with_a_policy_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"^variant a: routing = random chooses among several URLs"):
        compared("a=http://a:1,routing=random", "b=http://c:1")
