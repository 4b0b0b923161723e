"""What a setting's text means: one value, whatever its spelling, for the hash of a scenario.

`--rate 4` and `--rate 4.0` are one experiment, as are `--slo 'ttft<=800ms'` and `--slo 'ttft<=0.8s'`. Durations,
numbers and shares are values already when a scenario has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from analysis.search import parse_rates
from analysis.slo import parse_slo
from loadgen.plan.lengths import parse_law
from loadgen.plan.seeds import parse_seeds
from loadgen.scenario.reading import parse_mapping
from loadgen.scenario.settings import parse_token_ids, parse_window_s

__all__ = ["canonical"]


def _rates(text: str) -> Any:
    rates = parse_rates(text)
    return [type(rates).__name__, asdict(rates)]


_MEANING: Final[Mapping[str, Callable[[Any], Any]]] = {
    "rate": _rates,
    "slo": lambda terms: parse_slo(terms).bounds(),
    "seeds": parse_seeds,
    "input": lambda text: asdict(parse_law(text)),
    "output": lambda text: asdict(parse_law(text)),
    "token_ids": parse_token_ids,
    # an open end is no number in JSON
    "trace_window": lambda text: [repr(bound) for bound in parse_window_s(text)],
    "map": parse_mapping,
}


def canonical(key: str, value: Any) -> Any:
    """A setting, JSON-ready, with its meaning in place of its text; what means nothing stays as it is."""
    if key not in _MEANING or value is None:
        return value
    try:
        return _MEANING[key](value)
    except ValueError:
        return value  # refused later, where it can be said what is wrong with it
