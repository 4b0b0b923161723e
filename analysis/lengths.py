"""Gates about the workload's size: were outputs and inputs as long as asked, and what ended the outputs?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from analysis.records import numbers, outcome_is
from analysis.verdict import Criteria, Finding

__all__ = ["length_findings"]

LENGTH_SHARE_MAX: Final = 0.01  # of requests whose output is not as asked
INPUT_OFF_WARN: Final = 0.02  # of the planned mean
INPUT_OFF_MAX: Final = 0.10
INPUT_OFF_SLACK_TOKENS: Final = 32  # a chat template or a BOS token is not another workload


def length_findings(cohort: pd.DataFrame, criteria: Criteria) -> Iterator[Finding]:
    """Findings about the lengths of outputs and inputs, in tokens, and about the reasons why outputs ended."""
    yield from _output_lengths(cohort)
    yield from _finish_reasons(cohort, criteria)
    yield from _input_lengths(cohort, criteria)


def _output_lengths(cohort: pd.DataFrame) -> Iterator[Finding]:
    """Fewer tokens than were forced is an outcome; more than the maximum is seen here. Both are not what was asked."""
    planned, given = numbers(cohort, "output_tokens_planned"), numbers(cohort, "output_tokens")
    over = outcome_is(cohort, "ok") & (planned > 0) & (given > planned)
    off = int(np.count_nonzero(outcome_is(cohort, "short_output") | over))
    if not off:
        return
    too_many = off > LENGTH_SHARE_MAX * len(cohort)
    cut = _cut_at(cohort)
    why = f"; those that fell short all end at {cut} tokens with their prompt, the server's limit" if cut else ""
    yield Finding(
        check="output_lengths", blame="workload", severity="block" if too_many else "warning",
        value=off / len(cohort), limit=LENGTH_SHARE_MAX,
        text=f"{off} of {len(cohort)} requests did not return the requested number of output tokens{why}",
    )  # fmt: skip


def _cut_at(cohort: pd.DataFrame) -> int:
    """The total that all short outputs were cut at; 0 if there is none.

    A server that is asked for more than its context holds may give what fits and call it done. Only prompts of
    different lengths show that: where all are alike, any other fault gives equal totals too.
    """
    short = outcome_is(cohort, "short_output")
    given, output = numbers(cohort, "input_tokens")[short], numbers(cohort, "output_tokens")[short]
    totals = np.unique(given + output)
    return int(totals[0]) if np.unique(given).size > 1 and given.min() >= 0 and totals.size == 1 else 0


def _finish_reasons(cohort: pd.DataFrame, criteria: Criteria) -> Iterator[Finding]:
    """Under forced lengths nothing but the limit ends an output; else it is of interest how many the limit ended."""
    ok = outcome_is(cohort, "ok")
    total = int(np.count_nonzero(ok))
    limited = int(np.count_nonzero((cohort["finish_reason"] == "length").to_numpy(dtype=np.bool_) & ok))
    if criteria.forced and limited < total:
        reasons = ", ".join(sorted({str(reason) for reason in cohort["finish_reason"][ok]} - {"length"}))
        yield Finding(
            check="finish_reasons", blame="workload", severity="warning", value=(total - limited) / total, limit=0,
            text=f"{total - limited} of {total} outputs of a forced length ended by themselves ({reasons}): the server "
            "may ignore ignore_eos",
        )  # fmt: skip
    elif not criteria.forced and limited:
        yield Finding(
            check="finish_reasons", blame="workload", severity="info", value=limited / total,
            text=f"{limited} of {total} outputs were ended by max_tokens, the others by the model",
        )  # fmt: skip


def _input_lengths(cohort: pd.DataFrame, criteria: Criteria) -> Iterator[Finding]:
    planned, given = numbers(cohort, "input_tokens_planned"), numbers(cohort, "input_tokens")
    known = outcome_is(cohort, "ok") & (planned > 0) & (given >= 0)
    if not known.any():
        return
    asked, reported = float(planned[known].mean()), float(given[known].mean())
    off = abs(reported - asked)
    if off <= INPUT_OFF_WARN * asked:
        differing = int(np.count_nonzero((planned != given) & known))
        if criteria.exact_inputs and differing:
            apart = int(np.abs(given - planned)[known].max())
            yield Finding(
                check="input_lengths", blame="workload", severity="warning", value=apart, limit=0,
                text=f"the server counts other input tokens than planned in {differing} of {np.count_nonzero(known)} "
                f"prompts of exact lengths, by up to {apart}",
            )  # fmt: skip
        return
    other_work = off > max(INPUT_OFF_MAX * asked, INPUT_OFF_SLACK_TOKENS)
    yield Finding(
        check="input_lengths", blame="workload", severity="block" if other_work else "warning",
        value=off / asked, limit=INPUT_OFF_MAX if other_work else INPUT_OFF_WARN,
        text=f"the server counts {reported:.0f} input tokens a request where {asked:.0f} were planned",
    )  # fmt: skip
