"""Ledger entries as they are stored: their keys are on disk and never change."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from ematix_flow.backends.base import LedgerEntry
from ematix_flow.backends.stores.ledger_records import (
    entry_from_columns,
    entry_from_json,
    entry_to_columns,
    entry_to_json,
)
from ematix_flow.spec.row_counts import UNKNOWN_ROWS

ROWS = replace(UNKNOWN_ROWS, read=4, inserted=3, updated=1, deleted=0)
ENTRY = LedgerEntry(
    "orders",
    "dw:sales.orders",
    "slot:1",
    "run 1",
    None,
    "7",
    ROWS,
    dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc),
)
STORED = {
    "pipeline": "orders",
    "target": "dw:sales.orders",
    "batch_key": "slot:1",
    "run_id": "run 1",
    "source_from": None,
    "source_to": "7",
    "rows_in": 4,
    "rows_inserted": 3,
    "rows_updated": 1,
    "rows_deleted": 0,
    "committed_at": "2026-03-01T00:00:00+00:00",
}


def test_an_entry_has_one_json_key_for_each_column_in_their_order() -> None:
    assert list(entry_to_json(ENTRY).items()) == list(STORED.items())
    assert entry_to_columns(ENTRY) == {**STORED, "committed_at": ENTRY.committed_at}


def test_a_stored_entry_is_read_as_it_was_written() -> None:
    assert entry_from_json(STORED) == ENTRY
    assert entry_from_columns(entry_to_columns(ENTRY)) == ENTRY
