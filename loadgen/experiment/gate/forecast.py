"""What a gate against a baseline will cost before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.search import Bill
from analysis.units import format_duration
from loadgen.experiment.forecast import bill_words, run_costs
from loadgen.experiment.gate.against import GateSetup

__all__ = ["GateForecast", "forecast_gate"]

_TRIES = 2  # of each run, where none is valid the first time


@dataclass(frozen=True, slots=True, kw_only=True)
class GateForecast:
    """What `loadgen gate --baseline DIR --dry-run --json` prints. Rate in requests/s, margin as a share."""

    baseline: str
    rate: float
    pairs: int
    margin: float
    settings: str
    expected: Bill
    worst: Bill

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"plan: makes {self.pairs} runs of {self.baseline} again at {self.rate:.4g}/s, all to their end; "
            f"margin {100 * self.margin:.3g} %; {self.settings}",
            f"expected: {bill_words(self.expected)}",
            f"worst case, with every time-out and wait used up: {bill_words(self.worst)}",
        ]

    def costs(self) -> GateForecast:
        """For programs."""
        return self


def forecast_gate(gate: GateSetup) -> GateForecast:
    """The cost of the runs at the baseline's rate, with its warm-up."""
    record, scenario = gate.baseline, gate.setup.scenario
    pairs = len(record.runs)
    window = f"{scenario.cohort} requests" if scenario.cohort is not None else format_duration(scenario.window)
    return GateForecast(
        baseline=record.partner.directory,
        rate=record.rate,
        pairs=pairs,
        margin=record.margin,
        settings=f"{scenario.objective} for {scenario.attain} of requests; windows of {window} after "
        f"{format_duration(record.warmup_s)} warm-up",
        expected=_bill(gate, pairs, worst=False),
        worst=_bill(gate, pairs * _TRIES, worst=True),
    )


def _bill(gate: GateSetup, runs: int, *, worst: bool) -> Bill:
    cost, record = run_costs(gate.setup)[worst], gate.baseline
    cohort = gate.setup.scenario.cohort
    window_s = cost.window_s if cohort is None else cohort / record.rate
    load_s = record.warmup_s + window_s + cost.drain_s
    requests = runs * record.rate * load_s
    return Bill(
        runs=runs,
        hours=runs * (load_s + cost.between_s) / 3600,
        requests=requests,
        tokens=requests * cost.tokens_per_request,
    )
