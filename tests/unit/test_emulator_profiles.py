"""Profiles: the shipped ones load, and a bad file is refused in one line that names it and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.common.errors import UsageError
from loadgen.emulator.profiles import FcfsProfile, load_profile, profile_names

GOOD = """
kind = "fcfs"
description = "mine"
[service]
times_ms = [1.0]
shares = [1.0]
"""


def test_every_shipped_profile_loads_is_simulated_and_explains_its_constants() -> None:
    assert {"fcfs", "fcfs-fast"} <= set(profile_names())
    for name in profile_names():
        profile = load_profile(name)
        assert profile.simulated
        assert len(profile.description) > 20
    assert "time-compressed 10x" in load_profile("fcfs-fast").description


def test_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_profile(str(path)).description == "mine"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD + "speed = 3\n", "unknown key service.speed"),
        ("speed = 3\n" + GOOD, "unknown key speed"),
        (GOOD.replace("[1.0]\nshares", "[-1.0]\nshares"), "key service.times_ms.0: Input should be greater than 0"),
        (GOOD.replace("shares = [1.0]", "shares = [0.5]"), "key service: shares must sum to 1, not 0.5"),
        (GOOD.replace("shares = [1.0]", "shares = [0.5, 0.5]"), "key service: times_ms and shares must have the same"),
        (GOOD.replace("fcfs", "lifo"), "key kind must be one of"),
        (GOOD.replace('kind = "fcfs"', ""), "key kind must be one of"),
        (GOOD + "simulated = false\n", "unknown key service.simulated"),
        ("simulated = false\n" + GOOD, "key simulated: Input should be True"),
        ("kind = ", "Invalid value"),
    ],
)
def test_a_bad_file_names_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_profile(str(path))
    message = str(caught.value)
    assert message.startswith(f"emulator profile {path}: ")
    assert named in message
    assert "\n" not in message


def test_an_unknown_name_lists_the_known_and_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown emulator profile 'h100'; there are .*fcfs, fcfs-fast"):
        load_profile("h100")
    with pytest.raises(UsageError, match=r"nope\.toml: cannot be read: No such file"):
        load_profile(str(tmp_path / "nope.toml"))
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not UTF-8 text"):
        load_profile(str(tmp_path / "latin.toml"))


def test_settings_take_the_place_of_the_files_and_are_told() -> None:
    profile = load_profile("fcfs", ["service.times_ms=[1.0, 5]", "server.stream_interval = 4", "description=mine"])
    assert isinstance(profile, FcfsProfile)
    assert profile.service.times_ms == (1.0, 5.0)
    assert profile.server.stream_interval == 4
    assert profile.description.startswith("mine [with service.times_ms=[1.0, 5], ")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("stream_interval", "--set stream_interval: write it as key=value"),
        (".x=1", "write it as key=value"),
        ("server.speed=3", "emulator profile fcfs.toml: unknown key server.speed"),
        ("server.stream_interval=0", "key server.stream_interval: Input should be greater than or equal to 1"),
        ("kind.x=3", "--set kind.x=3: kind is not a section of the profile"),
        ("description.x=3", "description is not a section of the profile"),
    ],
)
def test_a_bad_setting_is_one_line(setting: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile("fcfs", [setting])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_may_bring_settings_of_its_own() -> None:
    told = load_profile("llama8b-80gb?parallel.replicas=2&step.jitter=0.05")
    asked = load_profile("llama8b-80gb", ["parallel.replicas=2", "step.jitter=0.05"])
    assert told == asked
    assert "parallel.replicas=2, step.jitter=0.05" in told.description
