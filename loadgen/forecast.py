"""What a sweep will cost before it starts, in runs, hours, requests and tokens (method, section 7)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from analysis.search import Bill, CostModel, Expectation, RateList, expect
from analysis.units import format_duration
from loadgen import defaults
from loadgen.errors import ScenarioError
from loadgen.experiment import Setup
from loadgen.plan.seeds import stream
from loadgen.scenario import Scenario
from loadgen.warmup import warm_requests

__all__ = ["BETWEEN_S", "Forecast", "forecast"]

BETWEEN_S = 1.0  # idle wait, identity and sealing between two runs
_SAMPLE = 2000  # requests whose lengths are drawn for the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected and worst-case cost, and the rates that may be offered."""

    expectation: Expectation
    tabulate: bool
    rates: tuple[float, ...]
    settings: str
    thin: str  # why nothing, or little, could pass: too few requests in a window; or empty

    def lines(self) -> list[str]:
        """For people."""
        low, high = self.rates[0], self.rates[-1]
        what = (
            f"measures {len(self.rates)} rates, {low:.4g}..{high:.4g} requests/s"
            if self.tabulate
            else f"searches {low:.4g}..{high:.4g} requests/s on a grid of {len(self.rates)} rates"
        )
        lines = [f"plan: {what}; {self.settings}"]
        if not self.tabulate:
            lines.append(
                f"expected: {_bill(self.expectation.expected)} (mean of {self.expectation.searches} simulated searches)"
            )
        lines.append(
            f"worst case: {_bill(self.expectation.worst)}; peak rate {self.expectation.peak_rate:.4g} requests/s"
        )
        return [*lines, f"warning: {self.thin}"] if self.thin else lines

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"rates": list(self.rates), "settings": self.settings, **asdict(self.expectation)}


def forecast(setup: Setup) -> Forecast:
    """Play the search of this very experiment against the documented prior."""
    scenario, spec, workload = setup.scenario, setup.spec, setup.workload
    drawn = workload.lengths.draw(stream(0, "lengths"), _SAMPLE)
    window_s = scenario.window
    if scenario.cohort is not None:  # lasts as long as it takes: reckoned at the middle of the range
        window_s = scenario.cohort / math.sqrt(spec.grid[0] * spec.grid[-1])
    cost = CostModel(
        warmup_s=scenario.warmup,
        window_s=window_s,
        sentinel_window_s=min(window_s, defaults.SENTINEL_REQUESTS / spec.grid[0]),
        between_s=BETWEEN_S,
        tokens_per_request=float((drawn.input_tokens + drawn.output_tokens).mean()),
    )
    measured = f"{scenario.cohort} requests" if scenario.cohort is not None else format_duration(window_s)
    proof = "" if spec.tabulate else f" to prove a rate, {spec.explore} to explore one"
    return Forecast(
        expectation=expect(spec, cost, paired=scenario.seeding == "paired"),
        tabulate=isinstance(spec.rates, RateList),
        rates=spec.grid,
        thin=_thin(scenario, spec.grid[0]),
        settings=(
            f"{scenario.objective} for {scenario.attain} of requests, errors ≤ {scenario.max_error_rate}; "
            f"{spec.runs} runs{proof or ' a rate'}, windows of {measured} after {format_duration(scenario.warmup)} "
            f"warm-up or more, which {warm_requests(scenario, spec.grid[0])} requests before the first run decide; "
            f"time-out {format_duration(workload.timeout_s)}"
            + ("; placeholder SLO: set --slo" if scenario.objective.placeholder else "")
        ),
    )


def _thin(scenario: Scenario, lowest_rate: float) -> str:
    """The lowest rate decides where a search begins: too small a cohort there can pass nothing.

    Raises `ScenarioError` where four standard deviations of luck would not be enough.
    """
    if scenario.cohort is not None:
        return ""
    expected, needed = lowest_rate * scenario.window, scenario.least_requests
    enough_s = math.ceil((1 + math.sqrt(1 + needed)) ** 2 / lowest_rate)  # brings n with n − 2√n = needed
    text = (
        f"at {lowest_rate:g} requests/s a window of {format_duration(scenario.window)} brings about {expected:.0f} "
        f"requests, and fewer than --min-requests {needed} cannot pass: lengthen --window to about "
        f"{format_duration(enough_s)}"
    )
    if expected + 4 * math.sqrt(expected) < needed:
        raise ScenarioError(text)
    return text if expected - 2 * math.sqrt(expected) < needed else ""


def _bill(bill: Bill) -> str:
    return (
        f"{bill.runs:.0f} runs, {format_duration(bill.hours * 3600)}, {bill.requests:,.0f} requests, "
        f"{bill.tokens:,.0f} tokens"
    )
