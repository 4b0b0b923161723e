"""A gate of one rate: the fresh runs of a proof, and no search (method, section 7)."""

from __future__ import annotations

from analysis.search import RateList, parse_rates
from loadgen.common.errors import ScenarioError
from loadgen.scenario.model import Scenario

__all__ = ["at_one_rate"]


def at_one_rate(scenario: Scenario) -> Scenario:
    """The scenario with its one rate, or the one it requires, as the only one to be tested.

    Raises `ScenarioError` for several rates, a closed loop, and the placeholder SLO.
    """
    if scenario.closed is not None:
        raise ScenarioError("--closed has no arrival rate to test: use loadgen run --closed N")
    if not scenario.slo:
        raise ScenarioError("a gate needs an SLO of your own, such as --slo ttft:800ms: a placeholder decides nothing")
    if scenario.require is not None and "rate" not in scenario.model_fields_set:
        rate = scenario.require
    else:
        try:
            rates = parse_rates(scenario.rate)
        except ValueError as error:
            raise ScenarioError(f"--rate: {error}") from None
        if not isinstance(rates, RateList) or len(rates.rates) > 1:
            asked = f"--rate {scenario.rate}: " if "rate" in scenario.model_fields_set else ""
            raise ScenarioError(f"{asked}a gate tests one rate, such as --rate 6; loadgen sweep takes more")
        (rate,) = rates.rates
    return scenario.model_copy(update={"rate": repr(rate), "require": rate, "search": False})
