"""What a sweep will cost before it starts, in runs, hours, requests and tokens (method, section 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from analysis.search import Bill, CostModel, Expectation, expect
from analysis.units import format_duration
from loadgen.common import defaults
from loadgen.common.errors import ScenarioError
from loadgen.experiment.prepare import Setup
from loadgen.experiment.warmup import warm_requests
from loadgen.plan.seeds import stream
from loadgen.scenario.model import Scenario
from loadgen.target.between import longest_between_s
from loadgen.target.probe import PROBE_REQUESTS, PROBE_TIMEOUT_S

__all__ = ["BETWEEN_S", "Forecast", "bill_words", "forecast", "run_costs"]

BETWEEN_S = 2.0  # idle waits, probes, identity and sealing between two runs
COMMAND_S = 60.0  # what the user's own command is taken to need: nobody knows before
START_S = 10.0  # probing and warming a server that is up
_SAMPLE = 2000  # requests whose lengths are drawn for the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What `loadgen sweep --dry-run --json` prints; the fields are those of an `Expectation`."""

    rates: int
    settings: str
    expected: Bill
    worst: Bill
    peak_rate: float  # requests/s
    searches: int
    steepness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected and worst-case cost, and the rates that may be offered."""

    expectation: Expectation
    tabulate: bool
    gates: bool  # one required rate
    rates: tuple[float, ...]
    settings: str
    assumed: str  # what the expected time takes for granted
    thin: str  # why nothing, or little, could pass: too few requests in a window; or empty

    def lines(self) -> list[str]:
        """For people."""
        low, high = self.rates[0], self.rates[-1]
        what = (
            f"tests {low:.4g}/s and no other rate"
            if self.gates
            else f"measures one rate, {low:.4g}/s"
            if len(self.rates) == 1
            else f"measures {len(self.rates)} rates, {low:.4g}..{high:.4g} requests/s"
            if self.tabulate
            else f"searches {low:.4g}..{high:.4g} requests/s on a grid of {len(self.rates)} rates"
        )
        lines = [f"plan: {what}; {self.settings}"]
        if self.gates:
            lines.append(f"if the rate keeps the SLO: {bill_words(self.expectation.expected)}{self.assumed}")
        elif not self.tabulate:
            lines.append(
                f"expected: {bill_words(self.expectation.expected)} (mean of {self.expectation.searches} simulated "
                f"searches{self.assumed})"
            )
        lines.append(
            f"worst case, with every time-out and wait used up: {bill_words(self.expectation.worst)}; peak rate "
            f"{self.expectation.peak_rate:.4g} requests/s"
        )
        return [*lines, f"warning: {self.thin}"] if self.thin else lines

    def costs(self) -> Costs:
        """For programs."""
        found = self.expectation
        return Costs(
            rates=found.rates,
            settings=self.settings,
            expected=found.expected,
            worst=found.worst,
            peak_rate=found.peak_rate,
            searches=found.searches,
            steepness=found.steepness,
        )


def forecast(setup: Setup) -> Forecast:
    """Play the search of this very experiment against the documented prior."""
    scenario, spec, workload = setup.scenario, setup.spec, setup.workload
    expected, worst = run_costs(setup)
    paired = scenario.seeding == "paired"
    bound = expect(spec, worst, paired=paired, searches=1).worst
    limit_s = PROBE_REQUESTS * PROBE_TIMEOUT_S + scenario.ready_timeout + defaults.WARMUP_MAX_S + workload.timeout_s
    found = expect(spec, expected, paired=paired)
    found = replace(found, expected=_later(found.expected, START_S), worst=_later(bound, limit_s))
    window_s = expected.window_s
    measured = f"{scenario.cohort} requests" if scenario.cohort is not None else format_duration(window_s)
    proof = "" if spec.tabulate else f" to prove a rate, {spec.explore} to explore one"
    return Forecast(
        expectation=found,
        tabulate=spec.tabulate,
        gates=spec.gates,
        rates=spec.grid,
        assumed=_assumed(scenario),
        thin=_thin(scenario, spec.grid[0]),
        settings=(
            f"{scenario.objective} for {scenario.attain} of requests, errors ≤ {scenario.max_error_rate}; "
            f"{spec.runs} runs{proof or ' a rate'}, windows of {measured} after {format_duration(scenario.warmup)} "
            f"warm-up or more, which {warm_requests(scenario, spec.grid[0])} requests before the first run decide; "
            f"time-out {format_duration(workload.timeout_s)}"
            + ("; placeholder SLO: set --slo" if scenario.objective.placeholder else "")
        ),
    )


def run_costs(setup: Setup) -> tuple[CostModel, CostModel]:
    """What a run costs as a rule, and what it costs at most.

    At most, warm-up follows residences as long as the time-out (the mean age of what is in service is below the longest
    residence), the load stays on for a whole time-out after the window, and every wait between two runs is used up.
    """
    scenario, spec, workload = setup.scenario, setup.spec, setup.workload
    drawn = workload.lengths.draw(stream(0, "lengths"), _SAMPLE)
    window_s = longest_s = scenario.window
    if scenario.cohort is not None:  # lasts as long as it takes: reckoned at the middle of the range
        window_s = scenario.cohort / math.sqrt(spec.grid[0] * spec.grid[-1])
        longest_s = (scenario.cohort + 4 * math.sqrt(scenario.cohort)) / spec.grid[0]
    command_s = COMMAND_S if scenario.cache in ("restart", "command") else 0.0
    expected = CostModel(
        warmup_s=scenario.warmup,
        window_s=window_s,
        sentinel_window_s=min(window_s, defaults.SENTINEL_REQUESTS / spec.grid[0]),
        drain_s=_longest_answer_s(scenario, float(drawn.output_tokens.mean())) / 2,
        between_s=BETWEEN_S + command_s,
        tokens_per_request=float((drawn.input_tokens + drawn.output_tokens).mean()),
    )
    worst = replace(
        expected,
        warmup_s=max(scenario.warmup, 3 * workload.timeout_s),
        window_s=longest_s,
        drain_s=workload.timeout_s,
        between_s=longest_between_s(scenario.cache, scenario.ready_timeout),
    )
    return expected, worst


def _longest_answer_s(scenario: Scenario, output_tokens: float) -> float:
    """How long a request stays that just keeps its bounds; 0 where nothing is bounded."""
    slo = scenario.objective
    generation_s = (slo.ttft_s or 0.0) + (output_tokens - 1) * (slo.tpot_s or 0.0)
    return max(slo.e2e_s or 0.0, generation_s)


def _later(bill: Bill, seconds: float) -> Bill:
    return replace(bill, hours=bill.hours + seconds / 3600)


def _assumed(scenario: Scenario) -> str:
    if scenario.cache not in ("restart", "command"):
        return ""
    return f"; {format_duration(COMMAND_S)} assumed for each --{scenario.cache.replace('command', 'between')}-command"


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


def bill_words(bill: Bill) -> str:
    """A bill in one line."""
    return (
        f"{bill.runs:.0f} runs, {format_duration(bill.hours * 3600)}, {bill.requests:,.0f} requests, "
        f"{bill.tokens:,.0f} tokens"
    )
