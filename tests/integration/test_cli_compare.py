"""`loadgen compare` in virtual time: what it prints, keeps, and resumes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loadgen as library
from tests.conftest import RunResult

Loadgen = Callable[..., RunResult]
QUICK = (
    "--rate", "2..24", "--width", "20%", "--slo", "e2e:1s", "--output", "2", "--cohort", "200", "--runs", "3",
    "--min-requests", "100",
)  # fmt: skip
PAIR = ("--variant", "slow=virtual:mm1?service.mean_ms=100", "--variant", "fast=virtual:mm1")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison of PAIR, measured once."""
    directory = tmp_path_factory.mktemp("compared") / "r"
    keys = (name.removeprefix("--").replace("-", "_") for name in QUICK[::2])
    scenario: dict[str, Any] = {**dict(zip(keys, QUICK[1::2], strict=True)), "slo": ("e2e:1s",)}
    setup = library.prepare_comparison(
        *library.load_comparison(None, scenario, {"variant": PAIR[1::2], "price_per_gpu_hour": 2.0})
    )
    library.compare_sync(setup, directory)
    return directory


@pytest.fixture
def own(measured: Path, tmp_path: Path) -> str:
    """A copy of it that a test may change, as `r` in its directory."""
    shutil.copytree(measured, tmp_path / "r")
    return "r"


def test_the_verdict_comes_first_and_is_the_faster_server(loadgen: Loadgen) -> None:
    compared = loadgen("compare", *PAIR, *QUICK, "--out", "r", "--price-per-gpu-hour", "2")
    first, second = compared.stdout.splitlines()[:2]
    assert first == "SIMULATED, no real server: slow, fast"
    assert second.startswith("at own λ*: fast is better than slow: G_card of slow against fast differs by -")
    assert "(n = 3)" in second
    for said in ("λ* per GPU: slow", "per million joint-good output tokens", "With 3 pairs the sign test can say"):
        assert said in compared.stdout
    assert loadgen("show", "r").stdout == compared.stdout
    order = [line.split(":")[0] for line in compared.stderr.splitlines() if "req/s, pair" in line]
    # at the λ* of both, then each at the other's; the next replicate begins with the other variant
    assert order[:6] == ["slow", "fast", "fast", "slow", "fast", "slow"]


def test_pairs_have_one_seed_schedule_and_workload(measured: Path) -> None:
    runs = library.load_compared(measured).runs
    shared = runs[runs["label"] != "own λ*"]
    assert len(shared) == 12
    for _, pair in shared.groupby(["label", "replicate"]):
        assert set(pair["variant"]) == {"slow", "fast"}
        for column in ("rate", "seed", "schedule_sha256", "workload_sha256"):
            assert pair[column].nunique() == 1


def test_each_variant_is_an_experiment_of_its_own(own: str, loadgen: Loadgen) -> None:
    found = library.load_compared(own)
    answer = found.answer
    assert answer.outcome == "COMPLETE"
    assert [one.variant for one in answer.capacities] == ["slow", "fast"]
    for one in answer.capacities:
        alone = found.variants[one.variant].answer
        assert alone.capacity == one.at
        assert not [run for run in alone.runs if run.kind == "paired"]
    assert "capacity" in loadgen("show", "r/variants/fast").stdout
    assert json.loads(loadgen("show", "r", "--json").stdout)["outcome"] == "COMPLETE"


@pytest.mark.parametrize("among", [pytest.param("the searches", marks=pytest.mark.slow), "the pairs"])
def test_a_budget_ends_it_and_more_of_it_gives_the_answer_of_one_go(
    among: str, measured: Path, loadgen: Loadgen
) -> None:
    whole = library.load_compared(measured).answer
    ledgers = [one.ledger for one in library.load_compared(measured).variants.values()]
    searches = sum(line.requests for ledger in ledgers for line in ledger if line.run.kind != "paired")
    budget = 1500 if among == "the searches" else searches + 1500
    part = loadgen("compare", *PAIR, *QUICK, "--out", "p", "--max-requests", str(budget), code=4)
    assert part.stdout.splitlines()[1].startswith("BUDGET_EXHAUSTED: ")
    assert "is better than" not in part.stdout
    assert "Go on with: loadgen compare --resume p with more of it" in part.stdout
    unfinished = library.load_compared("p").answer
    Path("p/answer.json").unlink()
    assert library.load_compared("p").answer.runs == unfinished.runs
    loadgen("compare", "--resume", "p", "--max-requests", "1000000", "--price-per-gpu-hour", "2")
    again = library.load_compared("p").answer
    assert again.runs == whole.runs
    assert again.primary == whole.primary


def test_resuming_under_other_settings_is_refused(own: str, loadgen: Loadgen) -> None:
    for option, said in (
        (("--rate", "2..30"), "rate: 2..24 → 2..30"),
        (("--indifference", "1%"), "indifference"),
        (("--variant", "slow=virtual:mm1", "--variant", "fast=virtual:mm1"), "variant"),
    ):
        refused = loadgen("compare", "--resume", own, *option, code=2).stderr
        assert "not the same comparison" in refused
        assert said in refused
        assert refused.count("\n") == 1
    loadgen("compare", "--resume", own, "--max-time", "9h")


def test_the_same_server_twice_is_identical_and_not_tested(loadgen: Loadgen) -> None:
    same = ("--variant", "a=virtual:mm1", "--variant", "b=virtual:mm1")
    said = loadgen("compare", *same, *QUICK, "--rate", "8", "--quiet").stdout
    assert "no difference: " in said
    assert "all pairs are bit-identical" in said


def test_what_the_end_of_the_range_hides_is_no_verdict(loadgen: Loadgen) -> None:
    """Both carry the highest rate that was offered: equal goodput there says nothing of their capacities."""
    said = loadgen("compare", *PAIR, *QUICK, "--rate", "2..4", "--json").stdout
    (verdict,) = json.loads(said)["primary"]
    assert verdict["winner"] == "cannot tell"
    assert "the λ* of slow lies above the rates that were offered" in verdict["words"]
    assert "widen --rate" in verdict["words"]


@pytest.mark.slow
def test_a_winner_may_be_better_than_the_range_shows(loadgen: Loadgen) -> None:
    said = loadgen("compare", *PAIR, *QUICK, "--rate", "2..12", "--json").stdout
    (verdict,) = json.loads(said)["primary"]
    assert verdict["winner"] == "B"
    assert verdict["words"].endswith(
        "The λ* of fast lies above the rates that were offered; it ran at the highest of them."
    )


@pytest.mark.slow
def test_overload_at_the_lowest_rate_says_nothing_of_goodput_below_it(loadgen: Loadgen) -> None:
    """At 7.9/s the slower server could keep every request in time, as far as the runs at 8/s show."""
    pair = ("--variant", "slow=virtual:mm1?service.mean_ms=115", "--variant", "fast=virtual:mm1")
    for highest, winner in (("8.1", "cannot tell"), ("12", "B")):
        said = loadgen("compare", *pair, *QUICK, "--rate", f"8..{highest}", "--json").stdout
        (verdict,) = json.loads(said)["primary"]
        assert verdict["difference"]["hi"] < -0.03
        assert verdict["winner"] == winner
        assert "the λ* of slow lies below the rates that were offered" in verdict["words"].replace(". The", ". the")


def test_alternatives_make_a_second_verdict_of_the_best_of_each(loadgen: Loadgen) -> None:
    more = ("--variant", "tuned=virtual:mm1?service.mean_ms=40,alternative_of=slow")
    answer = json.loads(loadgen("compare", *PAIR, *more, *QUICK, "--json").stdout)
    verdicts = {one["difference"]["label"]: (one["a"], one["b"], one["winner"]) for one in answer["primary"]}
    assert verdicts["own λ*"] == ("slow", "fast", "B")
    assert set(verdicts["own λ*, tuned"][:2]) == {"fast", "tuned"}
    best = {point["variant"]: point["configuration"] for point in answer["envelope"]}
    assert best["slow"] == "tuned"


def test_per_gpu_rates_and_the_decision_rule(loadgen: Loadgen) -> None:
    """Four servers of one GPU each against one of four GPUs: the rule asks for the better G_card on the same GPUs."""
    said = loadgen(
        "compare", "--variant", "replicas=virtual:mm1?service.mean_ms=30,gpus=4,replicas=4",
        "--variant", "tp4=virtual:mm1?service.mean_ms=60,gpus=4,tp=4", "--per-gpu", *QUICK, "--rate", "1..8",
    ).stdout  # fmt: skip
    assert "tp4 (TP=4) is not deserved: its G_card differs from that of replicas (4 × TP=1) by -" in said
    assert "take replicas." in said


def test_dry_run_and_rehearsal_write_nothing(loadgen: Loadgen, tmp_path: Path) -> None:
    costs = json.loads(loadgen("compare", *PAIR, *QUICK, "--dry-run", "--json").stdout)
    assert costs["replicates"] == 3
    assert costs["searches"]["hours"] > costs["pairs"]["hours"] > 0
    assert costs["worst"]["hours"] > costs["searches"]["hours"] + costs["pairs"]["hours"]
    report = loadgen("compare", *PAIR, *QUICK, "--rehearse", "2").stdout
    assert "SIMULATED in virtual time: 2 repeats, 2 COMPLETE" in report
    assert "slow against fast at own λ*: fast is better 2" in report
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Name two variants or more"),
        (("--variant", "a=virtual:mm1"), "two variants or more"),
        ((*PAIR, "--target", "http://h"), "No such option: --target"),
        ((*PAIR, "--arrivals", "trace:x.csv"), "the blocks of a trace have no pairs"),
        ((*PAIR, "--paired-rate", "2..4"), "is a range to search"),
        (("--variant", "a=virtual:nothere", "--variant", "b=virtual:mm1", "--rate", "3"), "unknown emulator profile"),
        (("--resume", "nothere"), "holds no comparison"),
        ((*PAIR, "--rehearse", "2", "--out", "r"), "--rehearse writes no results"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], said: str, loadgen: Loadgen, tmp_path: Path) -> None:
    done = loadgen("compare", *arguments, code=2)
    assert said in done.stdout + done.stderr
    assert said in (done.stderr or done.stdout).splitlines()[-1 if arguments else 0]
    assert not list(tmp_path.glob("results/*/comparison.json"))


def test_a_directory_that_holds_something_is_refused(own: str, loadgen: Loadgen) -> None:
    again = loadgen("compare", *PAIR, *QUICK, "--out", own, code=2)
    assert "holds another comparison: choose another --out, or go on with it: --resume r" in again.stderr
    sweep = loadgen("sweep", "--target", "virtual:mm1", "--rate", "3", "--out", own, code=2)
    assert "holds another comparison" in sweep.stderr


def test_the_library_reads_what_the_command_wrote(measured: Path) -> None:
    found = library.load_compared(measured)
    frame = found.differences
    assert list(frame.loc[0, ["a", "b", "endpoint", "label"]]) == ["slow", "fast", "g_card", "own λ*"]
    assert len(frame) == len(found.answer.primary) + len(found.answer.exploratory)
    with pytest.raises(library.ResultsError, match="holds a comparison: read it with load_compared"):
        library.load(measured)
    with pytest.raises(library.ResultsError, match="holds no comparison"):
        library.load_compared(measured / "variants/slow")


def test_a_damaged_ledger_is_named_by_its_line(own: str, loadgen: Loadgen) -> None:
    ledger = Path(own, "variants/slow/verdicts.jsonl")
    lines = ledger.read_bytes().splitlines(keepends=True)
    changed: dict[str, Any] = json.loads(lines[-1])
    changed["schedule_sha256"] = "0" * 64
    ledger.write_bytes(b"".join([*lines[:-1], json.dumps(changed).encode() + b"\n"]))
    Path(own, "answer.json").unlink()
    refused = loadgen("show", own, code=2).stderr
    assert "other schedules or workloads: they are no pair" in refused
    ledger.write_bytes(b"".join([*lines[:-1], b"{\n"]))
    assert f"{ledger}:{len(lines)}: not valid JSON" in loadgen("show", own, code=2).stderr


def test_a_ledger_in_another_order_is_refused_in_one_line(own: str, loadgen: Loadgen) -> None:
    ledger = Path(own, "variants/slow/verdicts.jsonl")
    first, second, third, *rest = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([first, third, second, *rest]))
    Path(own, "answer.json").unlink()
    for command in (("show", own), ("compare", "--resume", own, "--quiet"), ("show", f"{own}/variants/slow")):
        Path(own, "variants/slow/capacity.json").unlink(missing_ok=True)
        refused = loadgen(*command, code=2).stderr
        assert "the ledger was changed by hand" in refused
        assert refused.count("\n") == 1


def test_a_variant_goes_on_with_its_comparison_alone(own: str, loadgen: Loadgen) -> None:
    refused = loadgen("sweep", "--resume", f"{own}/variants/slow", code=2).stderr
    assert f"a variant goes on with its comparison: loadgen compare --resume {own}\n" in refused
    Path(own, "variants/slow/capacity.json").unlink()
    ledger = Path(own, "variants/slow/verdicts.jsonl")
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))
    said = loadgen("show", f"{own}/variants/slow").stdout
    assert f"go on with: loadgen compare --resume {own}." in said


def test_an_answer_is_forgotten_once_more_is_measured(
    own: str, loadgen: Loadgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Path(own, "variants/slow/verdicts.jsonl")
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))

    async def killed(*_: object) -> None:
        raise library.ResultsError("the disk is full")

    monkeypatch.setattr("loadgen.experiment.compare.library.run_phases", killed)
    loadgen("compare", "--resume", own, "--quiet", code=2)
    assert library.load_compared(own).answer.outcome == "UNFINISHED"
