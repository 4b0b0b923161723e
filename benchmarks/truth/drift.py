"""Does the drift test leave stable rates alone, and does it see overload? With an SLO that nothing breaks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from analysis.judge import judge_rate
from analysis.verdict import RunVerdict
from benchmarks.truth.board import Board
from benchmarks.truth.crew import Asked, Crew, asked, one_run, ready
from loadgen.planned import criteria_of

R = 12
LONG = {"input": "1024", "output": "384"}  # on the 8B profile: residence about 11 s at ρ = 0.8
SATURATION = {
    "mm1": 20.0,
    "fcfs": 1 / 0.052,
    "llama8b-80gb": 6.7,
}  # requests/s; the last is where completions level off


@dataclass(frozen=True)
class Case:
    profile: str
    load: float
    window: str
    settings: dict[str, Any]
    note: str = ""


QUEUE = {"input": "16", "output": "1"}
CASES = (
    Case("mm1", 0.8, "120s", QUEUE),
    Case("fcfs", 0.8, "120s", QUEUE),
    Case("llama8b-80gb", 0.8, "120s", {**LONG, "warmup": "45s"}, "residence 11 s, warm-up 45 s"),
    Case("llama8b-80gb", 0.8, "120s", LONG, "residence 11 s, warm-up as a sweep from 1/s sets it"),
    Case("mm1", 1.05, "300s", QUEUE),
    Case("fcfs", 1.05, "300s", QUEUE),
    Case("llama8b-80gb", 1.05, "300s", LONG),
)


def show(board: Board, crew: Crew, *, quick: bool) -> None:
    board.head(f"Drift: false alarms of stable rates, power on overloaded ones (R = {R})")
    groups = 4 if quick else 100
    rows = []
    for case in CASES:
        of = asked(
            case.profile, rate="1..20", runs=R, window=case.window, slo=("e2e<=300s",), timeout="300s", **case.settings
        )
        rate = case.load * SATURATION[case.profile]
        name = f"drift/{case.profile}/{case.load}/{case.settings.get('warmup', '')}"
        runs = crew.all(one_run, [(of, rate, seed) for seed in crew.seeds(name, groups * R)], together=4)
        grouped = [runs[i : i + R] for i in range(0, len(runs), R)]
        any_run = statistics.fmean(any(_rising(run) for run in group) for group in grouped)
        verdicts = [_rate_fails(of, rate, group) for group in grouped]
        failed = statistics.fmean(verdicts)
        mean = statistics.fmean(run.drift_ratio or 0.0 for run in runs)
        undecided = statistics.fmean(run.drift_state == "undecided" for run in runs)
        label = f"{case.profile} at ρ = {case.load:g}, {case.window}" + (f", {case.note}" if case.note else "")
        rows.append(
            [label, f"{rate:.2f}", f"{mean:+.2%}", f"{undecided:.0%}", f"{any_run:.1%}", f"{failed:.1%}",
             f"{ready(of).warmup_s:.0f} s"]
        )  # fmt: skip
        if case.load < 1:
            board.hold(f"false alarms, {label}", f"{failed:.1%} of {groups} rates", "≤ 5 %", failed <= 0.05)
        else:
            board.hold(f"power, {label}", f"{failed:.1%} of {groups} rates", "≥ 75 %", failed >= 0.75)
    board.say("")
    board.table(
        ["rate under test", "requests/s", "mean drift", "runs undecided", "any of R runs rising", "rate fails",
         "warm-up"],
        rows,
    )  # fmt: skip


def _rising(run: RunVerdict) -> bool:
    return run.drift_state == "rising"


def _rate_fails(of: Asked, rate: float, group: list[RunVerdict]) -> bool:
    """Whether the judge fails the rate, by a run of its own or by all of them together."""
    on = ready(of)
    return judge_rate(rate, group, criteria_of(on.setup.scenario, on.setup.workload), R).status == "FAIL"
