"""Findings about answers: their token counts, the reads they arrived in, and whether a time-out cut them.

All but late first reads have the blame *workload*: a number does not mean what it seems to mean, whatever the cause.
They block where it decides (method, sections 2 and 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pandas as pd

from analysis.cohort import PERCENTILES, nearest_rank
from analysis.indicator import joint
from analysis.records import NS_PER_S, Bools, Ints, buffered, derive, numbers, outcome_is
from analysis.units import format_duration
from analysis.verdict import Criteria, Finding, TargetFacts

__all__ = ["limit_contradicted", "read_findings", "still_answering", "usage_findings"]

BUFFERED_SHARE_MAX: Final = 0.01  # of the cohort
FIRST_READS_MAX: Final = 0.01
SEVERAL: Final = 2.0  # events a read, where
SINGLE: Final = 1.25  # is what a lone request met
DOUBTED_SHARE_MAX: Final = 0.001  # of the cohort whose indicator rests on a count that is doubted
STILL_ANSWERING_MAX: Final = 0.001
PAUSES: Final = 10  # of a stream's own mean gap are not a stall
PAUSE_S: Final = 2.0  # nor is this pause


def read_findings(
    cohort: pd.DataFrame, target: TargetFacts, criteria: Criteria, *, stamps: str = "user"
) -> Iterator[Finding]:
    """Streams that something between gathered, and first reads that brought more than the first token.

    The first is seen on requests that were read promptly. The second blocks where the kernel stamps reads (`stamps`):
    a read has the stamp of its newest segment, so the stamp of the first token is late (method, section 5). It does
    not where a lone request met several events a read: there the server sends them together.
    """
    whole, cohort = cohort, cohort[cohort["read"].to_numpy() != "batched"]
    total = len(cohort)
    bounded = criteria.slo.tpot_s is not None
    events, reads = numbers(cohort, "token_events"), numbers(cohort, "token_reads")
    first, last = numbers(cohort, "first_token_ns"), numbers(cohort, "last_token_ns")
    late = buffered(cohort)
    if (count := int(np.count_nonzero(late))) > BUFFERED_SHARE_MAX * total:
        span, wait = _median_s((last - first)[late]), _median_s((first - numbers(cohort, "sent_ns"))[late])
        yield Finding(
            check="buffered_streams", blame="workload", severity="block" if bounded else "warning",
            value=count / total, limit=BUFFERED_SHARE_MAX,
            text=f"{count} of {total} streams came in one piece or a few, {_events_per_read(events, reads, late)}, all "
            f"tokens within {format_duration(span)} after a wait of {format_duration(wait)} (medians): a proxy "
            "between server and client buffers them",
        )  # fmt: skip
    several = outcome_is(cohort, "ok") & ~late & (reads > 0) & (events >= SEVERAL * reads)
    lone = target.survey_events_per_read
    if (
        lone is not None
        and lone <= SINGLE
        and (count := int(np.count_nonzero(several))) > BUFFERED_SHARE_MAX * total
    ):  # fmt: skip
        yield Finding(
            check="gathered_reads", blame="workload", severity="block" if bounded else "warning",
            value=count / total, limit=BUFFERED_SHARE_MAX,
            text=f"{count} of {total} streams came with {_events_per_read(events, reads, several)}, where a lone "
            f"request met {lone:.3g}: a proxy buffers them under load",
        )  # fmt: skip
    total, events, reads = len(whole), numbers(whole, "token_events"), numbers(whole, "token_reads")
    more = outcome_is(whole, "ok") & (numbers(whole, "first_read_events") > 1)
    if (count := int(np.count_nonzero(more))) > FIRST_READS_MAX * total:
        late_reads = stamps == "kernel" and (lone is None or lone <= SINGLE)
        why = "; this machine read too late: use a less busy one, or a lower rate" if late_reads else ""
        yield Finding(
            check="first_reads", blame="client", severity="block" if late_reads else "warning",
            value=count / total, limit=FIRST_READS_MAX,
            text=f"{count} of {total} first reads brought more than one token, "
            f"{_events_per_read(events, reads, more)}: their TTFT is an upper bound{why}",
        )  # fmt: skip


def usage_findings(cohort: pd.DataFrame, criteria: Criteria, passes: Callable[[Bools], bool]) -> Iterator[Finding]:
    """Counts of output tokens that the server contradicts itself about, and whether the indicator rests on them.

    `passes` says whether the cohort attains what it must with a given indicator.
    """
    usage, taken = numbers(cohort, "usage_tokens"), numbers(cohort, "output_tokens")
    planned = numbers(cohort, "output_tokens_planned")
    source = cohort["output_tokens_source"].array
    doubted: Bools = outcome_is(cohort, "ok") & (usage >= 0) & ~source.isin(["usage", ""])
    short = limit_contradicted(cohort)
    count = int(np.count_nonzero(doubted | short))
    if not count:
        return
    other = np.where(doubted, usage, np.where(short, planned, taken))
    outcomes = cohort["outcome"].to_numpy(dtype=object).copy()
    if criteria.forced:
        outcomes[doubted & (usage < planned)] = "short_output"
    otherwise = derive(cohort.assign(output_tokens=other, outcome=pd.array(outcomes, dtype="str")))
    good, instead = joint(cohort, criteria.slo), joint(otherwise, criteria.slo)
    flips = int(np.count_nonzero(good != instead))
    decides = flips > DOUBTED_SHARE_MAX * len(cohort) or passes(good) != passes(instead)
    row = int(np.argmax(doubted | short))
    said = f"the first says {usage[row]} tokens"
    said += f" where {taken[row]} came" if doubted[row] else ""
    said += f", with finish_reason {cohort['finish_reason'].iloc[row] or 'missing'} and max_tokens {planned[row]}"
    used = ", ".join(sorted({str(name) for name in source[doubted]}))
    yield Finding(
        check="usage", blame="workload", severity="block" if decides else "warning",
        value=flips / len(cohort) if decides else count / len(cohort), limit=DOUBTED_SHARE_MAX if decides else 0,
        text=f"usage contradicts {count} of {len(cohort)} answers: {said}"
        + (f"; counted by {used} instead" if used else "")
        + (f"; with the other count {flips} requests would be judged differently" if flips else ""),
    )  # fmt: skip


def limit_contradicted(cohort: pd.DataFrame) -> Bools:
    """Good answers that ended at max_tokens with fewer tokens than that, as usage says.

    Not where all of them end at one total with their prompts, which differ: that is the server's own limit.
    """
    given, planned = numbers(cohort, "output_tokens"), numbers(cohort, "output_tokens_planned")
    short: Bools = outcome_is(cohort, "ok") & (cohort["finish_reason"] == "length").to_numpy(dtype=np.bool_)
    short &= (given >= 0) & (given < planned) & (cohort["output_tokens_source"] == "usage").to_numpy(dtype=np.bool_)
    prompts = numbers(cohort, "input_tokens")[short]
    if np.unique(prompts).size > 1 and prompts.min() >= 0 and np.unique(prompts + given[short]).size == 1:
        short[:] = False
    return short


def still_answering(cohort: pd.DataFrame, criteria: Criteria) -> Iterator[Finding]:
    """Requests that our time-out ended while tokens came and every bound could be kept: not the server's fault."""
    last, ended = numbers(cohort, "last_token_ns"), numbers(cohort, "ended_ns")
    gaps = np.maximum(numbers(cohort, "token_events") - 1, 1)
    pause_ns = np.maximum(PAUSES * (last - numbers(cohort, "first_token_ns")) // gaps, round(PAUSE_S * NS_PER_S))
    undecided = ((cohort["certain_miss"] == "") & (cohort["finish_reason"] == "")).to_numpy(dtype=np.bool_)
    cut = outcome_is(cohort, "timeout") & undecided & (last >= 0) & (ended - last <= pause_ns)
    if (count := int(np.count_nonzero(cut))) > STILL_ANSWERING_MAX * len(cohort):
        yield Finding(
            check="still_answering", blame="workload", severity="block", value=count / len(cohort),
            limit=STILL_ANSWERING_MAX,
            text=f"{count} of {len(cohort)} requests were still bringing tokens when the time-out of "
            f"{format_duration(criteria.timeout_s)} ended them: set a longer --timeout, or shorter outputs",
        )  # fmt: skip


def _events_per_read(events: Ints, reads: Ints, among: Bools) -> str:
    counted = among & (reads > 0)
    if not counted.any():
        return "events per read unknown"
    ratio = np.sort(events[counted] / reads[counted])
    return f"{nearest_rank(ratio, PERCENTILES['p50']):.3g} events per read"


def _median_s(values_ns: Ints) -> float:
    return float(nearest_rank(np.sort(values_ns), PERCENTILES["p50"])) / NS_PER_S
