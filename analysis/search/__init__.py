"""The capacity search, without I/O: rates and grid, seeds, ask/tell, outcome, and what it will cost."""

from analysis.search.expect import Bill, CostModel, Expectation, expect
from analysis.search.machine import Search
from analysis.search.rates import Grid, RateList, RatePlan, RateRange, parse_rates
from analysis.search.types import (
    VARIANT,
    Kind,
    Outcome,
    OutcomeName,
    RunRequest,
    SearchSpec,
    SeedBook,
    Support,
    exit_code,
)

__all__ = [
    "VARIANT",
    "Bill",
    "CostModel",
    "Expectation",
    "Grid",
    "Kind",
    "Outcome",
    "OutcomeName",
    "RateList",
    "RatePlan",
    "RateRange",
    "RunRequest",
    "Search",
    "SearchSpec",
    "SeedBook",
    "Support",
    "exit_code",
    "expect",
    "parse_rates",
]
