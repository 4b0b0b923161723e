"""What a comparison keeps of one run, from its request table."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pandas as pd

from analysis.cohort import cohort_of
from analysis.compare.types import VariantRun, VariantSpec
from analysis.indicator import joint
from analysis.records import NS_PER_S, Bools, derive, numbers, outcome_is
from analysis.slo import Slo
from analysis.verdict import Status

__all__ = ["RESULT_COLUMNS", "results_sha256", "variant_run"]

# what the server did to a request, as the client stamped it
RESULT_COLUMNS: Final = (
    "index", "scheduled_ns", "first_token_ns", "last_token_ns", "ended_ns", "output_tokens", "http_status",
)  # fmt: skip


def variant_run(
    requests: pd.DataFrame,
    spec: VariantSpec,
    *,
    slo: Slo,
    warmup_ns: int,
    window_ns: int,
    label: str,
    rate: float,
    replicate: int,
    seed: int,
    status: Status,
    schedule_sha256: str,
    workload_sha256: str,
) -> VariantRun:
    """The numbers of one run to its end. Raises `ValueError` for a window or GPUs not above 0, or an empty cohort."""
    if window_ns <= 0 or spec.gpus <= 0:
        raise ValueError("a window and a number of GPUs above 0 are needed")
    cohort = derive(cohort_of(requests, warmup_ns=warmup_ns, window_ns=window_ns))
    if cohort.empty:
        raise ValueError("no request is scheduled in the window")
    good, ok = joint(cohort, slo), outcome_is(cohort, "ok")
    window_s, count = window_ns / NS_PER_S, int(np.count_nonzero(good))
    tokens = int(np.maximum(numbers(cohort, "output_tokens"), 0)[good].sum())
    return VariantRun(
        variant=spec.name,
        label=label,
        rate=rate,
        rate_per_gpu=rate / spec.gpus,
        replicate=replicate,
        seed=seed,
        status=status,
        attainment=count / len(cohort),
        good_requests=count,
        goodput_per_s=count / window_s,
        good_output_tokens=tokens,
        token_goodput_per_s=tokens / window_s,
        g_card=tokens / (window_s * spec.gpus),
        log_ttft=_mean_log(cohort, "ttft_s", ok),
        log_e2e=_mean_log(cohort, "e2e_s", ok),
        backlog=(_outstanding(requests, warmup_ns + window_ns) - _outstanding(requests, warmup_ns)) / len(cohort),
        schedule_sha256=schedule_sha256,
        workload_sha256=workload_sha256,
        results_sha256=results_sha256(cohort),
    )


def results_sha256(cohort: pd.DataFrame) -> str:
    """SHA-256 over RESULT_COLUMNS and the outcomes: two cohorts with one hash are bit-identical."""
    digest = hashlib.sha256()
    for name in RESULT_COLUMNS:
        digest.update(numbers(cohort, name).astype("<i8").tobytes())
    digest.update("\n".join(cohort["outcome"]).encode())
    return digest.hexdigest()


def _outstanding(requests: pd.DataFrame, at_ns: int) -> int:
    """N(t): requests scheduled before `at_ns` and not ended by then; `requests` are all of the run."""
    scheduled_ns, ended_ns = numbers(requests, "scheduled_ns"), numbers(requests, "ended_ns")
    return int(np.count_nonzero((scheduled_ns < at_ns) & ((ended_ns < 0) | (ended_ns >= at_ns))))


def _mean_log(cohort: pd.DataFrame, name: str, ok: Bools) -> float | None:
    values = cohort[name].to_numpy(dtype=np.float64)[ok]
    known = values[values > 0]
    return float(np.log(known).mean()) if known.size else None
