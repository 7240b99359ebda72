"""Ledger entries and watermarks as targets store them: as rows of a database, or as JSON next to the data.

Their columns and keys are on disk and in buckets, so they never change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ematix_flow.backends.base import LedgerEntry, Load, LoadResult
from ematix_flow.spec.row_counts import UNKNOWN_ROWS
from ematix_flow.spec.watermarks import Watermark

_COUNT_COLUMNS = {
    "rows_in": "read",
    "rows_inserted": "inserted",
    "rows_updated": "updated",
    "rows_deleted": "deleted",
}


def new_ledger_entry(load: Load, batch_key: str, result: LoadResult) -> LedgerEntry:
    """The entry of a load that commits now."""
    source_from, source_to = load.source_bounds(result.watermark)
    return LedgerEntry(
        pipeline=load.pipeline,
        target=load.target,
        batch_key=batch_key,
        run_id=str(load.run_id),
        source_from=source_from,
        source_to=source_to,
        rows=replace(result.rows, unchanged=None, outranked=None),
        committed_at=dt.datetime.now(dt.timezone.utc),
    )


def entry_to_columns(entry: LedgerEntry) -> dict[str, Any]:
    columns = {field.name: getattr(entry, field.name) for field in fields(entry)}
    rows = columns.pop("rows")
    committed_at = columns.pop("committed_at")
    counts = {column: getattr(rows, name) for column, name in _COUNT_COLUMNS.items()}
    return {**columns, **counts, "committed_at": committed_at}


def entry_from_columns(columns: Mapping[str, Any]) -> LedgerEntry:
    counts = {name: columns[column] for column, name in _COUNT_COLUMNS.items()}
    others = {name: value for name, value in columns.items() if name not in _COUNT_COLUMNS}
    return LedgerEntry(**others, rows=replace(UNKNOWN_ROWS, **counts))


def entry_to_json(entry: LedgerEntry) -> dict[str, Any]:
    return {**entry_to_columns(entry), "committed_at": entry.committed_at.isoformat()}


def entry_from_json(value: Mapping[str, Any]) -> LedgerEntry:
    return entry_from_columns({**value, "committed_at": dt.datetime.fromisoformat(value["committed_at"])})


@dataclass(frozen=True)
class StoredWatermark:
    """The watermark of a pipeline for a target."""

    pipeline: str
    target: str
    watermark: Watermark

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "target": self.target,
            "column": self.watermark.column,
            "type": self.watermark.type_json(),
            "value": self.watermark.encode(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StoredWatermark:
        watermark = Watermark.decode(value["column"], value["type"], value["value"])
        return cls(value["pipeline"], value["target"], watermark)


def find_watermark(
    stored: tuple[StoredWatermark, ...], pipeline: str, target: str, column: str
) -> Watermark | None:
    return next((each.watermark for each in stored if _key(each) == (pipeline, target, column)), None)


def with_watermark(
    stored: tuple[StoredWatermark, ...], pipeline: str, target: str, watermark: Watermark
) -> tuple[StoredWatermark, ...]:
    """The watermarks with this one in the place of its predecessor."""
    new = StoredWatermark(pipeline, target, watermark)
    return (*(each for each in stored if _key(each) != _key(new)), new)


def _key(stored: StoredWatermark) -> tuple[str, str, str]:
    return stored.pipeline, stored.target, stored.watermark.column
