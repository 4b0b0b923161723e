"""A command's options are the fields of its settings: each setting is shown with its own help and its own default."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel

from loadgen.scenario.file import load_scenario
from loadgen.scenario.model import Scenario
from loadgen.scenario.option import Settings, options_of, setting
from loadgen.scenario.reading import Converting, Describing, Reading
from loadgen.scenario.settings import Seconds, Texts

COMMANDS: dict[str, type[BaseModel]] = {
    "sweep": Scenario,
    "run": Scenario,
    "replay": Scenario,
    "check": Scenario,
    "trace describe": Describing,
    "trace convert": Converting,
}
# of a scenario file or of the program: no option of any command
NO_OPTIONS = {"name", "trace_sha256", "lengths_sha256"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_shows_each_of_its_settings_with_help_and_default_of_the_field(
    command: str, loadgen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no help is wrapped or cut
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", loadgen(*command.split(), "--help").stdout).split())
    for option in options_of(COMMANDS[command], command.split()[-1]):
        assert option.hidden != (f"{option.flag} " in text), option.flag
        if not option.hidden:
            assert " ".join(option.help.split()) in text, option.flag


def test_every_setting_is_an_option_of_a_command_that_sends_load() -> None:
    shown = {option.name for command in ("sweep", "run", "replay") for option in options_of(Scenario, command)}
    assert set(Scenario.model_fields) - shown == NO_OPTIONS
    only_elsewhere = {"closed", "speed", "sessions"}  # of run and of replay
    assert {option.name for option in options_of(Scenario, "sweep")} == shown - only_elsewhere


def test_how_a_trace_is_read_is_written_once_for_scenarios_and_trace_commands() -> None:
    of_sweep = {option.name: option for option in options_of(Scenario, "sweep")}
    for command, settings in (("describe", Describing), ("convert", Converting)):
        of_trace = {option.name: option for option in options_of(settings, command)}
        assert all(of_trace[name] == of_sweep[name] for name in Reading.model_fields)


@pytest.mark.parametrize("settings", [Scenario, Describing, Converting])
def test_no_default_is_typed_into_a_help_text(settings: type[BaseModel]) -> None:
    for name, field in settings.model_fields.items():
        assert "default" not in (field.description or "").lower(), name


def test_the_help_follows_the_default_of_the_field() -> None:
    class Other(Settings):
        pause: Seconds = setting(77.0, "How long to pause.", panel="P")
        many: Texts = setting(("a", "b"), "Names.", panel="P")
        none: int | None = setting(None, "A number.", panel="P")
        told: int | None = setting(None, "A number.", panel="P", shown="as many as fit")

    assert [option.help for option in options_of(Other, "sweep")] == [
        "How long to pause (default 77s).",
        "Names (default a, b).",
        "A number.",
        "A number (default as many as fit).",
    ]
    shown = {option.name: option.help for option in options_of(Scenario, "sweep")}
    assert shown["window"].endswith("(default 120s).")
    assert shown["attain"].endswith("(default 95%).")
    assert shown["target"].endswith("(default http://127.0.0.1:8000).")
    assert shown["cache"].endswith("(default salt).")


def test_an_option_that_may_be_repeated_gives_what_the_file_gives() -> None:
    typed = load_scenario(None, {"extra": ["priority=1", 'user="me"'], "note": ["gpu=H100"]})
    assert typed.extra == {"priority": 1, "user": "me"}
    assert typed == load_scenario(None, {"extra": {"priority": 1, "user": "me"}, "note": {"gpu": "H100"}})
