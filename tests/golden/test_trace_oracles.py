"""Measured values of real public traces, and our own measurement of the same files."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traces.describe import Description, describe
from traces.read import read_trace
from traces.trace import Trace

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACES = SHARED / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces beside the repository")


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return json.loads((SHARED / "oracles" / "traces.json").read_text())


@pytest.fixture(scope="module")
def azure() -> Trace:
    return read_trace(TRACES / "azure_2023_conv.csv")[0]


@pytest.fixture(scope="module")
def described(azure: Trace) -> Description:
    return describe(azure, max_model_len=4096)


def test_azure_2023_has_the_measured_arrivals(described: Description, oracle: dict[str, Any]) -> None:
    want = oracle["azure_2023_conv"]
    assert described.rows == want["rows"]
    assert described.arrivals.span_s == pytest.approx(want["span_s"], abs=5e-10)
    assert round(described.arrivals.rate, 4) == want["rate"]
    assert round(described.arrivals.gap_cv, 4) == want["iat_cv"]
    assert round(described.gamma_shape, 4) == want["gamma_mle_shape"]
    assert round(described.arrivals.dispersion[1.0], 3) == want["dispersion_1s"]
    assert round(described.arrivals.dispersion[10.0], 3) == want["dispersion_10s"]
    assert described.ties == want["ties"]


def test_azure_2023_has_the_measured_lengths(described: Description, oracle: dict[str, Any]) -> None:
    want = oracle["azure_2023_conv"]
    for lengths, side in ((described.input, "input"), (described.output, "output")):
        assert lengths.total == want[f"sum_{side}"]
        assert [lengths.quantiles[q] for q in (0.5, 0.99, 1.0)] == want[f"{side}_p50_p99_max"]


def test_azure_2023_offsets_equal_an_independent_conversion(azure: Trace) -> None:
    with (TRACES / "azure_2023_conv.offsets_oracle.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(azure)
    offsets = np.array([int(Decimal(row["arrived_at"]) * 10**9) for row in rows])
    # the conversion keeps microseconds, through floats: half of one, and a nanosecond of noise
    assert int(np.abs(azure.at_ns - offsets).max()) <= 501
    assert azure.input_tokens.tolist() == [int(row["num_prefill_tokens"]) for row in rows]
    assert azure.output_tokens.tolist() == [int(row["num_decode_tokens"]) for row in rows]


def test_mooncake_blocks_are_512_tokens_and_arrivals_come_in_batches() -> None:
    trace, report = read_trace(TRACES / "mooncake_conversation.first2000.jsonl")
    assert (report.format, report.rows, report.kept, report.span_s) == ("mooncake", 2000, 2000, 669.0)
    assert trace.hashes is not None
    assert np.array_equal(trace.hashes.counts, -(-trace.input_tokens // 512))
    seen = describe(trace)
    assert seen.distinct_instants == 224
    assert np.isnan(seen.gamma_shape)  # ties: no maximum of the likelihood


def test_mooncake_prefix_bound_is_that_of_a_plain_walk() -> None:
    path = TRACES / "mooncake_conversation.first2000.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen: set[int] = set()
    blocks = tokens = 0
    for row in rows:
        run = next((k for k, one in enumerate(row["hash_ids"]) if one not in seen), len(row["hash_ids"]))
        blocks += run
        tokens += min(run * 512, row["input_length"])
        seen.update(row["hash_ids"])
    bound = describe(read_trace(path)[0]).prefix
    assert bound is not None
    assert bound.blocks == blocks / sum(len(row["hash_ids"]) for row in rows)
    assert bound.tokens == tokens / sum(row["input_length"] for row in rows)
    assert bound.distinct_blocks == len(seen)


@pytest.mark.parametrize(
    ("name", "form", "rows", "first"),
    [
        ("azure_2024_code.head5.csv", "azure", 5, [0, 7_405_000, 12_384_000]),
        ("burstgpt_1.head5.csv", "burstgpt", 5, [0, 40 * 10**9, 113 * 10**9]),
        ("burstgpt_3.head4.csv", "burstgpt", 4, [0, 51 * 10**9, 82 * 10**9]),
        ("bailian.example3.jsonl", "bailian", 3, [0, 61_114_000_000, 62_500_000_000]),
    ],
)
def test_excerpts_are_recognised_and_exact(name: str, form: str, rows: int, first: list[int]) -> None:
    trace, report = read_trace(TRACES / name)
    assert (report.format, report.rows, report.kept) == (form, rows, rows)
    assert trace.at_ns[:3].tolist() == first


def test_bailian_turns_know_their_parents() -> None:
    trace, _ = read_trace(TRACES / "bailian.example3.jsonl")
    assert trace.session is not None
    assert trace.parent is not None
    assert trace.session.tolist() == [0, 1, 1]
    assert trace.parent.tolist() == [-1, -1, 1]
    assert trace.hashes is not None
    assert trace.hashes.block_tokens == 16
    assert trace.hashes.counts.tolist() == [32, 0, 0]
