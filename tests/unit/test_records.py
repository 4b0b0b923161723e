from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.records import buffered, columns, derive, itl_s, table
from analysis.schema import DERIVED, EVENT_COLUMNS, REQUEST_COLUMNS

ROW = {
    "scheduled_ns": 1_000_000_000,
    "released_ns": 1_001_000_000,
    "admitted_ns": 1_201_000_000,
    "sent_ns": 1_252_000_000,
    "connect_ns": 50_000_000,
    "first_token_ns": 1_500_000_000,
    "last_token_ns": 2_500_000_000,
    "ended_ns": 2_501_000_000,
    "outcome": "ok",
    "output_tokens": 21,
    "token_events": 21,
    "token_reads": 20,
}


def one(**changed: object) -> pd.Series:
    return derive(table([ROW | changed])).iloc[0]


def test_a_table_has_the_schema_s_columns_types_and_order() -> None:
    made = table([{"outcome": "ok", "worker": 3}, {"scheduled_ns": 2**60 + 1}])
    assert list(made.columns) == list(REQUEST_COLUMNS)
    assert {name: str(dtype) for name, dtype in made.dtypes.items()} == REQUEST_COLUMNS
    assert made["scheduled_ns"].tolist() == [-1, 2**60 + 1]  # int64 all the way: no float may touch an instant
    assert made["outcome"].tolist() == ["ok", ""]
    assert made["index"].tolist() == [0, 1]
    assert made["worker"].tolist() == [3, 0]


def test_an_empty_table_is_typed_and_derivable() -> None:
    made = table([])
    assert {name: str(dtype) for name, dtype in made.dtypes.items()} == REQUEST_COLUMNS
    assert {name: str(dtype) for name, dtype in derive(made)[list(DERIVED)].dtypes.items()} == DERIVED


@pytest.mark.parametrize(
    ("known", "names"),
    [({"ttft": 1}, "ttft"), ({"sent_ns": ["soon", "late"]}, "sent_ns"), ({"sent_ns": np.zeros(3)}, "sent_ns")],
)
def test_a_wrong_column_is_named(known: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        columns(2, known)


def test_each_wait_is_told_apart() -> None:
    row = one()
    assert row["client_queue_s"] == 0.252
    assert row["send_lag_s"] == pytest.approx(0.002, abs=1e-12)  # less 0.200 s for a slot and 0.050 s to connect
    assert row["ttft_s"] == 0.5
    assert row["ttft_from_sent_s"] == 0.248
    assert row["e2e_s"] == 1.5
    assert row["e2e_from_sent_s"] == 1.248
    assert row["tpot_s"] == 0.05


def test_without_a_cap_there_is_no_slot_wait() -> None:
    assert one(admitted_ns=-1, connect_ns=0)["send_lag_s"] == 0.252


def test_what_did_not_happen_is_undefined() -> None:
    row = one(outcome="connect_error", sent_ns=-1, first_token_ns=-1, last_token_ns=-1, output_tokens=-1)
    assert row[list(DERIVED)].isna().all()
    row = one(outcome="truncated", last_token_ns=-1)
    assert row["ttft_s"] == 0.5
    assert np.isnan(row["e2e_s"])
    assert np.isnan(row["tpot_s"])


def test_tpot_leaves_out_all_tokens_of_the_first_event() -> None:
    assert one(first_read_tokens=5)["tpot_s"] == 1.0 / 16
    assert one(first_read_tokens=-1)["tpot_s"] == 0.05


def test_tpot_on_its_bound_is_not_above_it() -> None:
    # gaps of exactly 50 ms; (last - first in seconds)/gaps would land an ulp above for some counts
    gaps = np.arange(1, 5000)
    assert ((gaps * 0.05) / gaps > 0.05).any()
    known = {"outcome": "ok", "sent_ns": 0, "first_token_ns": 7, "last_token_ns": 7 + gaps * 50_000_000}
    derived = derive(columns(len(gaps), known | {"output_tokens": gaps + 1}))
    assert (derived["tpot_s"] == 0.05).all()


@pytest.mark.parametrize(
    ("changed", "is_buffered"),
    [
        ({"output_tokens": 1, "token_events": 1, "token_reads": 1}, False),  # O = 1: nothing to buffer
        ({"token_events": 1, "token_reads": 1}, True),
        ({"token_events": 21, "token_reads": 1}, True),
        ({"token_events": 1, "token_reads": -1}, True),
        ({"token_events": -1, "token_reads": -1, "output_tokens": -1}, False),
        ({"first_read_tokens": 21}, False),  # nothing after the first event
    ],
)
def test_tpot_is_undefined(changed: dict[str, int], is_buffered: bool) -> None:
    derived = derive(table([ROW | changed]))
    assert np.isnan(derived["tpot_s"][0])
    assert buffered(derived).tolist() == [is_buffered]


def test_tpot_needs_no_counts_that_nobody_took() -> None:
    assert one(token_events=-1, token_reads=-1)["tpot_s"] == 0.05


def test_deriving_changes_no_input_and_can_be_repeated() -> None:
    plain = table([ROW])
    before = plain.copy()
    derived = derive(plain)
    pd.testing.assert_frame_equal(plain, before)
    pd.testing.assert_frame_equal(derive(derived), derived)


def test_itl_are_the_gaps_within_each_request() -> None:
    rows = [(1, 30), (0, 10), (0, 40), (1, 90), (2, 5), (0, 20)]
    events = pd.DataFrame([(i, at * 1_000_000, -1) for i, at in rows], columns=list(EVENT_COLUMNS)).astype(
        EVENT_COLUMNS
    )
    assert itl_s(events).tolist() == [0.010, 0.020, 0.060]
    assert itl_s(events.iloc[:0]).size == 0
