"""`loadgen gate --baseline`: the runs of stored results again, on servers that differ in a known way."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loadgen as library
from loadgen.experiment.virtual_sut import VirtualSut
from loadgen.results.store import ExperimentStore
from tests.conftest import RunResult
from tests.fakes.cli import LOADGEN

Loadgen = Callable[..., RunResult]
TARGET = "virtual:mm1"  # mean service 50 ms
SLOWER = "virtual:mm1?service.mean_ms=60"
ABOUT_EQUAL = "virtual:mm1?service.mean_ms=51"
QUICK: dict[str, Any] = {
    "target": (TARGET,), "slo": ("e2e:1s",), "output": "2", "cohort": 200, "runs": 6, "width": "20%", "rate": "2..24",
}  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep, measured once."""
    directory = tmp_path_factory.mktemp("swept") / "base"
    assert library.sweep_sync(library.Scenario(**QUICK), directory).answer.outcome == "FOUND"
    return directory


@pytest.fixture
def base(swept: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change, as `base` in its directory."""
    return Path(shutil.copytree(swept, tmp_path / "base"))


def ledger(directory: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(directory, "verdicts.jsonl").read_text().splitlines()]


def test_a_slower_server_is_worse_and_show_prints_it_again(loadgen: Loadgen, base: Path) -> None:
    done = loadgen("gate", "--baseline", "base", "--target", SLOWER, "--out", "r", code=1)
    first = done.stdout.splitlines()[0]
    assert first.startswith("WORSE: ")
    assert "E2E (geometric mean) by +" in first
    assert first.endswith("margin 5 %, 6 pairs of runs.")
    assert "Baseline: base, measured 20" in done.stdout
    assert "the same 6 seeds, schedules and workloads (hashes checked)" in done.stdout
    assert loadgen("show", "r").stdout == done.stdout
    answer = json.loads(loadgen("show", "r", "--json").stdout)
    assert (answer["verdict"], answer["pairs"], answer["outcome"]) == ("WORSE", 6, "COMPLETE")


def test_the_runs_are_the_baseline_s_at_its_proved_rate_and_go_to_their_end(loadgen: Loadgen, base: Path) -> None:
    loadgen("gate", "--baseline", "base", "--target", SLOWER, "--out", "r", code=1)
    proved = library.load(base).answer.proved
    of_base = [one for one in ledger("base") if (one["run"]["kind"], one["run"]["rate"]) == ("prove", proved)]
    made = ledger("r")
    assert [one["run"]["kind"] for one in made] == ["paired"] * 6
    for old, new in zip(of_base, made, strict=True):
        for key in ("schedule_sha256", "workload_sha256", "window"):
            assert new[key] == old[key]
        assert new["run"]["seed"] == old["run"]["seed"]
        assert new["verdict"]["attainment_is_bound"] is False


def test_the_same_server_is_identical_and_not_tested(loadgen: Loadgen, base: Path) -> None:
    said = loadgen("gate", "--baseline", "base").stdout
    assert said.startswith("NOT WORSE: all 6 pairs of runs are bit-identical.")


def test_less_than_the_margin_is_let_pass_and_a_smaller_margin_asks_more(loadgen: Loadgen, base: Path) -> None:
    asked = ("gate", "--baseline", "base", "--target", ABOUT_EQUAL)
    assert loadgen(*asked, "--margin", "30%", "--out", "a").stdout.startswith("NOT WORSE: at 95 % confidence by less ")
    assert loadgen(*asked, "--margin", "0.5%", "--out", "b", code=1).stdout.startswith("WORSE: ")


def test_between_bound_and_margin_it_cannot_tell_and_says_how_many_pairs_would_do(loadgen: Loadgen, base: Path) -> None:
    said = loadgen("gate", "--baseline", "base", "--target", ABOUT_EQUAL, "--margin", "8%", code=4).stdout
    assert said.startswith(
        "CANNOT TELL: whether it is worse by 8 %, 6 pairs of runs: TTFT (geometric mean) is worse by "
    )
    assert re.search(r"; about \d+ pairs would do\.$", said.splitlines()[0])


def gone(_: VirtualSut) -> str:
    raise library.TargetError("the server is gone")


def limited(_: VirtualSut) -> str:
    raise library.ClientLimited("no port is left")


@pytest.mark.parametrize(("ending", "code", "outcome"), [(gone, 3, "UNSTABLE_TARGET"), (limited, 4, "CLIENT_LIMITED")])
def test_a_lost_target_and_a_limited_client_say_nothing_and_can_be_resumed(
    ending: Callable[[VirtualSut], str], code: int, outcome: str, loadgen: Loadgen, base: Path, monkeypatch: Any
) -> None:
    settled = 0

    async def settle(sut: VirtualSut) -> str:
        nonlocal settled
        settled += 1  # the first of them before the target is warmed
        return ending(sut) if settled == 4 else ""

    with monkeypatch.context() as patched:
        patched.setattr(VirtualSut, "settle", settle)
        loadgen("gate", "--baseline", "base", "--target", SLOWER, "--out", "r", code=code)
    shown = loadgen("show", "r").stdout
    assert shown.startswith(f"CANNOT TELL: {outcome}: ")
    assert "2 of 6 pairs are measured." in shown.splitlines()[0]
    assert loadgen("gate", "--resume", "r", code=1).stdout.startswith("WORSE: ")


def test_a_gate_is_the_next_baseline(loadgen: Loadgen, base: Path) -> None:
    loadgen("gate", "--baseline", "base", "--target", SLOWER, "--out", "one", code=1)
    again = loadgen("gate", "--baseline", "one", "--out", "two").stdout  # whose target is the slower one
    assert again.startswith("NOT WORSE: all 6 pairs of runs are bit-identical.")
    loadgen("gate", "--baseline", "two", "--target", TARGET, "--out", "three", code=None)
    assert [one["workload_sha256"] for one in ledger("three")] == [one["workload_sha256"] for one in ledger("one")]


def test_a_gate_of_one_rate_is_a_baseline_at_its_rate(loadgen: Loadgen, tmp_path: Path) -> None:
    options = ("--slo", "e2e:1s", "--output", "2", "--cohort", "200")
    loadgen("gate", "--target", TARGET, *options, "--rate", "4", "--runs", "6", "--out", "base")
    loadgen("gate", "--baseline", "base", "--target", SLOWER, "--out", "r", code=1)
    assert {one["run"]["rate"] for one in ledger("r")} == {4.0}
    assert "go on with loadgen gate --resume r" in loadgen("sweep", "--resume", "r", code=2).stderr


def test_a_variant_of_a_comparison_is_a_baseline(loadgen: Loadgen, tmp_path: Path) -> None:
    setup = library.prepare_comparison(
        *library.load_comparison(
            None,
            {key: value for key, value in QUICK.items() if key != "target"} | {"rate": "4"},
            {"variant": [f"one={TARGET}", f"two={SLOWER}"]},
        )
    )
    library.compare_sync(setup, "c")
    refused = loadgen("gate", "--baseline", "c", code=2).stderr
    assert "c holds a comparison: name one variant of it (c/variants/one, c/variants/two)" in refused
    assert loadgen("gate", "--baseline", "c/variants/one", "--out", "a").stdout.startswith("NOT WORSE: all 6 pairs")
    loadgen("gate", "--baseline", "c/variants/one", "--target", SLOWER, "--out", "b", code=1)
    Path("c/answer.json").unlink()
    assert "its comparison has not ended" in loadgen("gate", "--baseline", "c/variants/one", code=2).stderr


def test_any_stored_rate_and_fewer_runs_may_be_picked(loadgen: Loadgen, tmp_path: Path) -> None:
    scenario = library.Scenario(**QUICK | {"rate": "2,3,4.123456", "runs": 8})
    library.sweep_sync(scenario, "base")
    refused = loadgen("gate", "--baseline", "base", code=2).stderr
    assert "it has no proved rate: name one of its rates by --rate (2, 3, 4.123)" in refused
    loadgen("gate", "--baseline", "base", "--rate", "4.123", "--runs", "7", "--out", "r")
    assert [one["run"]["rate"] for one in ledger("r")] == [4.123456] * 7


def test_a_budget_ends_it_and_more_of_it_gives_the_answer_of_one_go(loadgen: Loadgen, base: Path) -> None:
    asked = ("gate", "--baseline", "base", "--target", SLOWER, "--quiet")
    whole = loadgen(*asked, "--out", "whole", code=1).stdout
    part = loadgen(*asked, "--out", "part", "--max-requests", "1000", code=4).stdout
    assert part.startswith("CANNOT TELL: BUDGET_EXHAUSTED: --max-requests 1000")
    assert "Go on with: loadgen gate --resume part with more of it" in part
    assert (
        "has not ended: go on with loadgen gate --resume part" in loadgen("gate", "--baseline", "part", code=2).stderr
    )
    Path("part/gate.json").unlink()
    assert loadgen("show", "part").stdout.startswith("CANNOT TELL: UNFINISHED: go on with: loadgen gate --resume part")
    shutil.rmtree("base")  # which is needed no more
    assert loadgen("gate", "--resume", "part", "--max-requests", "99999", "--quiet", code=1).stdout == whole


def test_dry_run_writes_nothing(loadgen: Loadgen, base: Path, tmp_path: Path) -> None:
    said = loadgen("gate", "--baseline", "base", "--dry-run").stdout
    assert said.startswith("plan: makes 6 runs of base again at ")
    costs = json.loads(loadgen("gate", "--baseline", "base", "--dry-run", "--json").stdout)
    assert costs["expected"]["runs"] == costs["pairs"] == 6
    assert costs["worst"]["hours"] > costs["expected"]["hours"] > 0
    assert [one.name for one in tmp_path.iterdir()] == ["base"]


@pytest.mark.parametrize(
    ("options", "differing"),
    [
        (("--slo", "e2e:2s"), "slo: ['e2e:1s'] → ['e2e:2s']"),
        (("--attain", "90%"), "attain: 95% → 90%"),
        (("--output", "3"), "output: 2 → 3"),
        (("--input", "512"), "input: 1024 → 512"),
        (("--cohort", "300"), "cohort: 200 → 300"),
        (("--warmup", "60s"), "warmup: 20.0s → 60.0s"),
        (("--arrivals", "constant"), "arrivals: poisson → constant"),
        (("--slo", "e2e:2s", "--cache", "keep"), "cache: salt → keep; slo: ['e2e:1s'] → ['e2e:2s']"),
    ],
)
def test_other_conditions_are_refused_in_one_line(
    options: tuple[str, ...], differing: str, loadgen: Loadgen, base: Path, tmp_path: Path
) -> None:
    refused = loadgen("gate", "--baseline", "base", *options, code=2).stderr
    assert f"--baseline base: measured under other conditions ({differing})" in refused
    assert refused.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_scenario_must_agree_too(loadgen: Loadgen, base: Path, tmp_path: Path) -> None:
    text = f'target = "{SLOWER}"\nslo = ["e2e:1s"]\noutput = "2"\ncohort = 200\nrate = "3..9"\nseed = 9\n'
    (tmp_path / "same.toml").write_text(text)
    loadgen("gate", "--baseline", "base", "--scenario", "same.toml", "--out", "r", code=1)
    (tmp_path / "other.toml").write_text(text.replace("1s", "3s"))
    refused = loadgen("gate", "--baseline", "base", "--scenario", "other.toml", code=2).stderr
    assert "(slo: ['e2e:1s'] → ['e2e:3s'])" in refused


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_another_model_or_other_requests_are_refused_before_anything_is_written(
    loadgen: Loadgen, base: Path, tmp_path: Path
) -> None:
    change(base / "experiment.json", '"model": "emulator"', '"model": "other"')
    refused = loadgen("gate", "--baseline", "base", "--out", "r", code=2).stderr
    assert "measured under other conditions (model: other → emulator)" in refused
    assert refused.splitlines()[-1].startswith("loadgen: --baseline base")
    change(base / "experiment.json", '"model": "other"', '"model": "emulator"')
    seed = next(one["run"]["seed"] for one in ledger(base) if one["run"]["kind"] == "prove")
    for what in ("schedule", "workload"):
        lines = ledger(base)
        for one in lines:
            one[f"{what}_sha256"] = "0" * 64
        (base / "verdicts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        refused = loadgen("gate", "--baseline", "base", "--out", "r", code=2).stderr
        assert f"{what} of seed " in refused
    assert str(seed)
    assert not (tmp_path / "r").exists()


def unfinished(base: Path) -> None:
    (base / "capacity.json").unlink()


def torn(base: Path) -> None:
    path = base / "verdicts.jsonl"
    path.write_bytes(path.read_bytes()[:-20])


def shortened(base: Path) -> None:
    path = base / "verdicts.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def damaged(base: Path) -> None:
    path = base / "verdicts.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"format":', b'"format";', 1))


def emptied(base: Path) -> None:
    shutil.rmtree(base / "runs")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unfinished, "--baseline base has not ended: go on with loadgen sweep --resume base"),
        (torn, "base/verdicts.jsonl ends within a line: it is cut off"),
        (shortened, "verdicts.jsonl has other runs than its answer: it is cut off"),
        (damaged, "base/verdicts.jsonl:1: not valid JSON"),
        (emptied, "requests.parquet: "),
        (shutil.rmtree, "--baseline base: there is no such directory"),
        (lambda base: (base / "experiment.json").unlink(), "--baseline base holds no results"),
    ],
)
def test_what_cannot_be_a_baseline_is_one_line(
    spoil: Callable[[Path], Any], said: str, loadgen: Loadgen, base: Path
) -> None:
    spoil(base)
    refused = loadgen("gate", "--baseline", "base", code=2).stderr
    assert said in refused
    assert refused.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", "3.3"), "no run to its end at --rate 3.3; its rates are 2, "),
        (("--rate", "fast"), "--rate fast: with --baseline it is one of the rates"),
        (
            ("--rate", "2"),
            "only 1 of its runs at 2 requests/s went to its end, and a gate needs 6 or more: measure a baseline",
        ),
        (("--runs", "3"), "--runs 3: a gate needs 6 pairs of runs or more"),
        (("--runs", "50"), "--runs 50: it has 6 runs that went to their end at "),
        (("--margin", "0"), "--margin 0: must be above 0"),
        (("--margin", "much"), "--margin: "),
        (("--seed", "4"), "--baseline replays the baseline's seeds: drop --seed"),
        (("--resume", "base"), "drop --scenario, --out and --baseline"),
    ],
)
def test_what_the_baseline_does_not_have_is_one_line(
    options: tuple[str, ...], said: str, loadgen: Loadgen, base: Path
) -> None:
    refused = loadgen("gate", "--baseline", "base", *options, code=2).stderr
    assert said in refused
    assert refused.count("\n") == 1


def test_a_margin_without_a_baseline_is_refused(loadgen: Loadgen) -> None:
    assert "--margin belongs to" in loadgen("gate", "--rate", "2", "--margin", "5%", code=2).stderr


def test_single_runs_are_no_baseline(loadgen: Loadgen, base: Path) -> None:
    loadgen("run", "--target", TARGET, "--rate", "4", "--cohort", "200", "--out", "run")
    one = next(base.rglob("run.json")).parent
    for directory, said in (
        ("run", "run holds a single run, and a gate needs 6 runs or more"),
        (str(one), "holds the directory of one run: name that of its experiment"),
    ):
        assert said in loadgen("gate", "--baseline", directory, code=2).stderr


def test_an_experiment_that_goes_on_is_no_baseline(loadgen: Loadgen, base: Path) -> None:
    with (base / "verdicts.jsonl").open("ab") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        refused = loadgen("gate", "--baseline", "base", code=2).stderr
    assert refused == "loadgen: base is in use by another loadgen process: wait until it has ended\n"
    store = ExperimentStore.open(base)  # a reader does not keep a resumed experiment from its directory
    store.close()


def test_a_run_that_ended_early_is_no_partner(loadgen: Loadgen, base: Path) -> None:
    lines = ledger(base)
    proved = library.load(base).answer.proved
    next(one for one in lines if (one["run"]["kind"], one["run"]["rate"]) == ("prove", proved))["verdict"][
        "attainment_is_bound"
    ] = True
    (base / "verdicts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert "only 5 of its runs at " in loadgen("gate", "--baseline", "base", code=2).stderr


@pytest.mark.slow
def test_ctrl_c_keeps_sealed_runs_and_names_how_to_go_on(loadgen: Loadgen, tmp_path: Path) -> None:
    library.sweep_sync(library.Scenario(**QUICK | {"rate": "4", "runs": 20, "cohort": 5_000}), "base")
    asked = [*LOADGEN, "gate", "--baseline", "base", "--target", SLOWER, "--out", "r", "--quiet"]
    process = subprocess.Popen(asked, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    path, deadline = tmp_path / "r" / "verdicts.jsonl", time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") >= 2) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert out.startswith("CANNOT TELL: ABORTED: ")
    assert "Go on with: loadgen gate --resume r" in out
