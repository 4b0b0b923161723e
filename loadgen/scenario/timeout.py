"""How long a request may take before we give it up, so that no time-out of ours becomes the server's error."""

from __future__ import annotations

import math

from analysis.units import format_duration
from loadgen.common import defaults
from loadgen.common.errors import ScenarioError
from loadgen.scenario.model import Scenario

__all__ = ["timeout_s_of"]


def timeout_s_of(scenario: Scenario, output_tokens_max: int) -> float:
    """How long a request may take, seconds (method, section 6), for outputs of at most so many tokens.

    2 × max(B_e, B_f + (O_max - 1)·B_d), at least 1 min and at most 1 h; 10 min where the SLO bounds no answer's
    length. Raises `ScenarioError` where the time asked for, or that hour, would end requests that keep the SLO.
    """
    slo = scenario.objective
    allowed = {name: bound for name, bound in slo.bounds().items() if name != "tpot"}
    generation_s = (slo.ttft_s or 0.0) + (output_tokens_max - 1) * (slo.tpot_s or 0.0)
    default_s = 2 * max(generation_s, slo.e2e_s or 0.0)
    default_s = max(default_s, defaults.MIN_TIMEOUT_S)
    if slo.tpot_s is None and slo.e2e_s is None:
        default_s = max(default_s, defaults.UNBOUNDED_TIMEOUT_S)
    elif slo.e2e_s is None:
        allowed[f"an output of {output_tokens_max} tokens"] = min(generation_s, defaults.MAX_TIMEOUT_S)
    timeout_s = min(default_s, defaults.MAX_TIMEOUT_S) if scenario.timeout is None else scenario.timeout
    longest = max(allowed, key=lambda name: allowed[name], default="")
    if timeout_s < (longest_s := allowed.get(longest, 0.0)):
        raise ScenarioError(
            f"--timeout: {format_duration(timeout_s)} ends requests that keep the SLO, which gives {longest} "
            f"{format_duration(longest_s)}: pass --timeout {math.ceil(longest_s)}s or more"
            + (", or bound --output" if longest.startswith("an ") else "")
        )
    return timeout_s
